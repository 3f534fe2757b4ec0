//! What is done about findings.

use serde::{Deserialize, Serialize};

/// What is done about a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// It is told.
    #[default]
    Report,
    /// It is told, and the kernel's memory is written to a file.
    Dump,
    /// It is told, and what is certain is written back.
    Repair,
    /// It is told, and the kernel is stopped by force.
    Stop,
    /// It is told, and the kernel is stopped by force and started again.
    Restart,
}

impl Action {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Report,
        Self::Dump,
        Self::Repair,
        Self::Stop,
        Self::Restart,
    ];

    /// Its name in rules and options.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Dump => "dump",
            Self::Repair => "repair",
            Self::Stop => "stop",
            Self::Restart => "restart",
        }
    }
}
