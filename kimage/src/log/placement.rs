//! Where in memory a kernel has put itself.

use serde::{Deserialize, Serialize};

/// Where a running kernel has put itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Physical address of the image's first byte, `_text`.
    pub physical: u64,
    /// By how much its virtual addresses lie above those that it was linked to, in bytes: `kaslr_offset()`.
    pub virtual_offset: u64,
}
