//! Operations of file systems and of the network: each must lead to code of the kernel or of a
//! loaded module.
//!
//! Tables of operations among the constants are compared as such. But an object points to its table,
//! and some tables can be written: if one of both is exchanged, calls of the kernel lead to code that
//! belongs to nobody.

mod files;
mod members;
mod network;
mod tables;

use super::{Check, Round};
use crate::finding::Finding;
use kimage::running::RunningError;
use tables::Tables;

/// Looks at the tables of live objects.
#[derive(Debug)]
pub(super) struct Operations;

impl Check for Operations {
    fn name(&self) -> &'static str {
        "operations"
    }

    fn look(&mut self, round: &Round<'_>) -> Result<Vec<Finding>, RunningError> {
        let mut tables = Tables::new(round.target.kernel)?;
        files::look(&mut tables)?;
        network::look(&mut tables)?;
        Ok(tables.found)
    }
}
