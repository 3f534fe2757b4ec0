//! One folder for each architecture; the kernels see one set of names.

mod x86;

pub use x86::*;
