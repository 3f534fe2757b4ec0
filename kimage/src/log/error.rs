//! Why a log cannot be read.

use crate::memory::ReadError;
use thiserror::Error;

/// Why a log cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LogError {
    /// Memory that the log lies in cannot be read.
    #[error("the kernel's log cannot be read: {0}")]
    Read(#[from] ReadError),
    /// What lies there is no log.
    #[error(
        "the kernel's log is damaged: {0}; the kernel has overwritten it, or does not run there any more"
    )]
    Damaged(&'static str),
}
