//! Why a log cannot be read.

use crate::memory::ReadError;
use thiserror::Error;

/// Why a log cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LogError {
    /// The log's memory cannot be read.
    #[error("the kernel's log cannot be read: {0}")]
    Read(#[from] ReadError),
    /// The data is not a log.
    #[error(
        "the kernel's log is damaged: {0}; the kernel has overwritten it, or is not there any more"
    )]
    Damaged(&'static str),
}
