//! PCI functions that programs drive.

pub mod claims;
pub mod function;

#[cfg(test)]
mod tests;
