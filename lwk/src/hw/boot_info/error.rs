//! Errors of reading the machine's description.

use crate::hw::boot_info::bytes::BadAddress;

/// Reason why the description is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootInfoError {
    /// An address is outside memory.
    BadAddress(BadAddress),
    /// A part is missing.
    Missing(&'static str),
}

impl From<BadAddress> for BootInfoError {
    fn from(error: BadAddress) -> Self {
        Self::BadAddress(error)
    }
}
