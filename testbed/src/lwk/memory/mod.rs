//! Memory: mappings, the files behind them, and pages in use while they change.

pub(crate) mod answers;
pub(crate) mod event_rings;
pub(super) mod file_pages;
pub(super) mod files;
pub(super) mod forked;
pub(super) mod huge;
pub(super) mod layout;
pub(super) mod locked;
pub(crate) mod mappings;
pub(super) mod merged;
pub(super) mod others;
pub(super) mod pins;
pub(super) mod private_files;
pub(super) mod race;
pub(super) mod random;
pub(super) mod remote_faults;
pub(super) mod replaced;
pub(crate) mod shared_files;
