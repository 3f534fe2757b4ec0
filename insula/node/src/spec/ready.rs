//! When a node of a file is ready.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The mark of a node that is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Ready {
    /// Text that a line of its kernel log contains once it is ready.
    pub log: String,
    /// Seconds after its start within which it must be ready; 60 by default.
    #[serde(default = "ready_timeout_s")]
    pub timeout_s: u32,
}

impl Ready {
    /// Time from its start within which it must be ready.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_s.into())
    }
}

fn ready_timeout_s() -> u32 {
    60
}
