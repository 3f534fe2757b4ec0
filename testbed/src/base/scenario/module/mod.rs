//! The module and its packages: loading, unloading, revisions, installation.

pub(super) mod base;
pub(super) mod packages;
pub(super) mod revision;
