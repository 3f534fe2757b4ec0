//! Giving a node into the care of a supervisor.
//!
//! The descriptor that is made the supervisor's goes to the new process as its standard input. So
//! there is no moment at which the node has a supervisor that may not come to be: if that process
//! ends, or never begins, the module sees the descriptor closed.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use insula_abi as abi;
use nix::errno::Errno;

use super::leaving::start_after_leaving;
use crate::driver::{CallError, Driver, Node};
use crate::name::Name;
use crate::node::{
    AgainError, FindError, Handle, RunError, RunRequest, Started, Wish, again, find,
    wait_until_left,
};
use crate::privilege::detach;
use crate::root::Root;

/// This program, also when its file has been replaced.
const PROGRAM: &str = "/proc/self/exe";

/// Why a node has no supervisor. It runs on without.
#[derive(Debug, thiserror::Error)]
pub enum HandOverError {
    /// The module failed.
    #[error("the node '{name}' cannot be supervised: {source}")]
    Call {
        /// The node.
        name: String,
        /// Why.
        source: CallError,
    },
    /// The process could not be started.
    #[error("the supervisor of the node '{name}' cannot be started: {source}")]
    Spawn {
        /// The node.
        name: String,
        /// Why.
        source: io::Error,
    },
}

/// Starts a node and its supervisor. `began_tsc` is the time stamp counter at the beginning of the
/// process. When only the supervisor could not be started, the answer tells why.
///
/// # Errors
/// [`RunError`]; except for [`RunError::Unknown`] nothing is left behind.
pub fn run(
    driver: &Driver,
    root: &Root,
    request: &RunRequest,
    began_tsc: u64,
) -> Result<Started, RunError> {
    let (mut started, node) = start_after_leaving(driver, root, request, began_tsc)?;
    let handed = hand_over(node, &started.name);
    started.unsupervised = handed.err().map(|error| error.to_string());
    Ok(started)
}

/// Why a node was not started again.
#[derive(Debug, thiserror::Error)]
pub enum RestartError {
    /// It cannot be had.
    #[error(transparent)]
    Find(#[from] FindError),
    /// It was not started.
    #[error(transparent)]
    Again(#[from] AgainError),
    /// It was, but has no supervisor.
    #[error(transparent)]
    HandOver(#[from] HandOverError),
}

/// Starts a stopped node again, as its user wishes, and a supervisor for it.
///
/// # Errors
/// [`RestartError`].
pub fn restart(driver: &Driver, root: &Root, name: &Name) -> Result<(), RestartError> {
    let mut handle = find(driver, name)?;
    // What its supervisor may be about to do is this command's to do now.
    handle.node.retire().map_err(FindError::from)?;
    wait_until_left(&mut handle);
    let supervised = claim(&handle);
    again(driver, root, &mut handle, Wish::User)?;
    if supervised? {
        hand_over(handle.node, name.as_str())?;
    }
    Ok(())
}

/// Gives nodes a supervisor that should have one and do not: theirs was killed. Answers why some
/// still have none.
pub fn attach(driver: &Driver, handles: &[Handle]) -> Vec<HandOverError> {
    let left = handles.iter().filter(|handle| handle.is_unsupervised());
    left.filter_map(|handle| attach_one(driver, handle).err())
        .collect()
}

/// By a descriptor of its own: this process may keep the one in the handle for long.
fn attach_one(driver: &Driver, handle: &Handle) -> Result<(), HandOverError> {
    let name = crate::name::text(&handle.info.name);
    let own = match driver.open_node(&handle.info.name).and_then(Handle::of) {
        // It has gone meanwhile.
        Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ENODEV) => return Ok(()),
        own => own.map_err(|source| HandOverError::Call {
            name: name.clone(),
            source,
        })?,
    };
    match claim(&own)? {
        true => hand_over(own.node, &name),
        false => Ok(()),
    }
}

/// Makes this descriptor the supervisor's; whether nobody else was faster.
fn claim(handle: &Handle) -> Result<bool, HandOverError> {
    let hold = handle
        .record
        .as_ref()
        .map_or(0, |record| record.life.policy.hold());
    match handle.node.supervise(abi::NodeSupervise { hold, flags: 0 }) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.errno, Errno::EBUSY | Errno::EPERM | Errno::ENODEV) => {
            Ok(false)
        }
        Err(source) => Err(HandOverError::Call {
            name: crate::name::text(&handle.info.name),
            source,
        }),
    }
}

/// Starts the process that takes care of the node from now on, whoever ends this one.
fn hand_over(node: Node, name: &str) -> Result<(), HandOverError> {
    let mut supervisor = Command::new(PROGRAM);
    supervisor
        .arg0("insula")
        .args(["supervise", name, "--here"])
        .current_dir("/")
        .stdin(OwnedFd::from(node))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    detach(&mut supervisor);
    let spawned = supervisor.spawn();
    // It ends by itself, mostly long after this process, and is then init's to bury.
    spawned.map(drop).map_err(|source| HandOverError::Spawn {
        name: name.to_owned(),
        source,
    })
}
