//! This kernel's side of delegation; `abi/include/insula_lwk.h` defines the protocol.

pub mod area;
pub mod clock;
pub(crate) mod core_words;
pub(crate) mod counters;
pub(crate) mod polling;
pub mod process_faults;
pub mod process_pages;
pub(crate) mod proxy_pointers;
pub mod slot;
