//! One folder for each architecture, all with the same names.

mod x86;

pub use x86::*;
