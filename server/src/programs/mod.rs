//! Command lines of the programs that are servers.

mod blocks;
mod files;
mod network;

pub use blocks::BlocksOptions;
use clap::{Command, CommandFactory};
pub use files::{FilesOptions, System};
pub use network::{Card, CardError, NetworkOptions};

/// Returns the definitions of all of them, of which their manual pages are made.
#[must_use]
pub fn definitions() -> [Command; 3] {
    [
        BlocksOptions::command(),
        FilesOptions::command(),
        NetworkOptions::command(),
    ]
}
