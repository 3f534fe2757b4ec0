//! `insula supervise --here`: the process that other commands start for each node.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use insula_supervisor as supervisor;
use nix::unistd::dup2_stdin;

use super::{Context, Failure};

pub(super) fn supervise(context: &Context) -> Result<(), Failure> {
    let node = take_stdin()?;
    Ok(supervisor::supervise(context.driver()?, node.into())?)
}

/// Takes the standard input, and replaces it by /dev/null.
pub(super) fn take_stdin() -> io::Result<OwnedFd> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    dup2_stdin(File::open("/dev/null")?)?;
    Ok(input)
}
