//! PCI functions that programs drive.

pub mod claims;
pub mod config;
pub mod function;
pub mod msix;

#[cfg(test)]
mod tests;
