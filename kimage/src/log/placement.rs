//! Placement of a kernel in memory.

use serde::{Deserialize, Serialize};

/// Placement of a running kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Physical address of the image's start, `_text`.
    pub physical: u64,
    /// Offset of its virtual addresses from its link addresses, in bytes: `kaslr_offset()`.
    pub virtual_offset: u64,
}
