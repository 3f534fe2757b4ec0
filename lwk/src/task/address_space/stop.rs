//! Why a change of an address space stops: an error, or the base has to do something first.

use crate::model::errno::Errno;

/// Why a change of an address space stops.
///
/// A change that needs the base does all that it can before, stops, and is called again when
/// the base is ready: what it has done already it finds done. Nobody else changes the address space
/// meanwhile, but threads may access it: pages that wait to be freed cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It has failed.
    Error(Errno),
    /// The base has to invalidate a range first. Then
    /// `AddressSpace::finish_invalidation` is due.
    Invalidate(Invalidation),
    /// The proxy has to map the mirror first in place of a base mapping, from the first address to
    /// before the second; then `AddressSpace::end_base_mapping` is due.
    BaseMapping(u64, u64),
    /// The base has to look up the pages that it awaits from the first address to before the second.
    Awaited(u64, u64),
}

impl From<Errno> for Stop {
    fn from(error: Errno) -> Self {
        Self::Error(error)
    }
}

/// A range that the base shall invalidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalidation {
    /// Start of the range.
    pub start: u64,
    /// End of the range.
    pub end: u64,
    /// The program keeps the pages: do not wait for I/O that pins them.
    pub keeps_pages: bool,
    /// Call the base even if it has nothing mapped in the range.
    pub force: bool,
}
