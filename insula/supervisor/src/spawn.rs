//! Spawning a node's supervisor.
//!
//! The supervisor's descriptor of the node is passed to the new process as standard input. If that
//! process exits, or never starts, the module sees the descriptor closed; so a node never has a
//! supervisor that does not exist.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use insula_abi as abi;
use insula_base::root::Root;
use insula_driver::name::Name;
use insula_driver::{CallError, Driver, Node};
use insula_node::{
    self as node, FindError, Handle, RestartCause, RunError, RunRequest, Started, find,
    wait_for_supervisor_exit,
};
use insula_privilege::detach;
use nix::errno::Errno;

/// This program, even if its file has been replaced.
const PROGRAM: &str = "/proc/self/exe";

/// Why a node has no supervisor. The node runs on.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
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

/// Starts a node and its supervisor. `began_tsc` is the time stamp counter at the start of the
/// process. If only the supervisor could not be started, [`Started::unsupervised`] has the error.
///
/// # Errors
/// [`RunError`]; except for [`RunError::StateUnknown`] nothing is left behind.
pub fn run(
    driver: &Driver,
    root: &Root,
    request: &RunRequest,
    began_tsc: u64,
) -> Result<Started, RunError> {
    let (mut started, node) = node::start(driver, root, request, began_tsc)?;
    let spawned = spawn_supervisor(node, &started.name);
    started.unsupervised = spawned.err().map(|error| error.to_string());
    Ok(started)
}

/// Why a node was not restarted, or has no supervisor.
#[derive(Debug, thiserror::Error)]
pub enum RestartNodeError {
    /// It was not found.
    #[error(transparent)]
    Find(#[from] FindError),
    /// It could not be started.
    #[error(transparent)]
    Restart(#[from] node::RestartError),
    /// It was started, but its supervisor was not.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
}

/// Restarts a stopped node for its user, and spawns its supervisor.
///
/// # Errors
/// [`RestartNodeError`].
pub fn restart(driver: &Driver, root: &Root, name: &Name) -> Result<(), RestartNodeError> {
    let mut handle = find(driver, name)?;
    // Keep its supervisor from restarting it concurrently.
    handle.node.retire().map_err(FindError::from)?;
    wait_for_supervisor_exit(&mut handle);
    let supervised = claim_supervision(&handle);
    node::restart(driver, root, &mut handle, RestartCause::User)?;
    if supervised? {
        spawn_supervisor(handle.node, name.as_str())?;
    }
    Ok(())
}

/// Spawns supervisors for nodes whose supervisor was killed. Returns the failures.
pub fn ensure_supervised(driver: &Driver, handles: &[Handle]) -> Vec<SpawnError> {
    let unsupervised = handles.iter().filter(|handle| handle.is_unsupervised());
    unsupervised
        .filter_map(|handle| supervise_one(driver, handle).err())
        .collect()
}

/// Uses a descriptor of its own, since this process may keep the handle's open for long.
fn supervise_one(driver: &Driver, handle: &Handle) -> Result<(), SpawnError> {
    let name = insula_driver::name::text(&handle.info.name);
    let own = match driver.open_node(&handle.info.name).and_then(Handle::of) {
        // It was removed meanwhile.
        Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ENODEV) => return Ok(()),
        own => own.map_err(|source| SpawnError::Call {
            name: name.clone(),
            source,
        })?,
    };
    match claim_supervision(&own)? {
        true => spawn_supervisor(own.node, &name),
        false => Ok(()),
    }
}

/// Makes this descriptor the supervisor's; false if another process was first.
fn claim_supervision(handle: &Handle) -> Result<bool, SpawnError> {
    let keep_cpus = handle
        .record
        .as_ref()
        .map_or(0, |record| record.restart.policy.keep_cpus());
    match handle.node.supervise(abi::NodeSupervise {
        keep_cpus,
        flags: 0,
    }) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.errno, Errno::EBUSY | Errno::EPERM | Errno::ENODEV) => {
            Ok(false)
        }
        Err(source) => Err(SpawnError::Call {
            name: insula_driver::name::text(&handle.info.name),
            source,
        }),
    }
}

/// Spawns the supervisor process, detached from this one.
fn spawn_supervisor(node: Node, name: &str) -> Result<(), SpawnError> {
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
    // It usually outlives this process, and is then reaped by init.
    spawned.map(drop).map_err(|source| SpawnError::Spawn {
        name: name.to_owned(),
        source,
    })
}
