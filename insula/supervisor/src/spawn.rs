//! Spawning a node's supervisor.
//!
//! The supervisor's descriptor of the node is passed to the new process as standard input. If that
//! process exits, or never starts, the module sees the descriptor closed; so a node never has a
//! supervisor that does not exist.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use insula_abi as abi;
use insula_base::error::Error;
use insula_base::root::Root;
use insula_driver::name::{self, Name};
use insula_driver::{CallError, Driver, Node};
use insula_node::events::{NodeEvent, Status};
use insula_node::{
    self as node, Handle, RestartCause, RunRequest, Started, find, wait_for_supervisor_exit,
};
use insula_privilege::detach;
use nix::errno::Errno;

/// This program, even if its file has been replaced.
const PROGRAM: &str = "/proc/self/exe";

/// Starts a node and its supervisor. `began_tsc` is the time stamp counter at the start of the
/// process. If only the supervisor could not be started, [`Started::unsupervised`] has the error.
///
/// # Errors
/// Why it was not started; nothing is left behind, unless the error says that it runs.
pub fn run(
    driver: &Driver,
    root: &Root,
    request: &RunRequest,
    began_tsc: u64,
) -> Result<Started, Error> {
    let (mut started, node) = node::start(driver, root, request, began_tsc)?;
    let spawned = spawn_supervisor(node, &started.name);
    // Best effort: it runs.
    let _ = NodeEvent::now(&started.name, Status::Start).record(root);
    if let (true, Some(name)) = (request.is_created, &request.name) {
        let _ = node::forget_created(root, name);
    }
    started.unsupervised = spawned.err().map(|error| error.to_string());
    Ok(started)
}

/// Restarts a stopped node for its user, and spawns its supervisor.
///
/// # Errors
/// When it is not found or not restarted, or runs without a supervisor.
pub fn restart(driver: &Driver, root: &Root, name: &Name) -> Result<(), Error> {
    let mut handle = find(driver, name)?;
    // Keep its supervisor from restarting it concurrently.
    handle.node.retire().map_err(node::unreadable)?;
    wait_for_supervisor_exit(&mut handle);
    let supervised = claim_supervision(&handle);
    node::restart(driver, root, &mut handle, RestartCause::User)?;
    let _ = NodeEvent::now(name.as_str(), Status::Restart).record(root);
    if supervised? {
        spawn_supervisor(handle.node, name.as_str())?;
    }
    Ok(())
}

/// Spawns supervisors for nodes whose supervisor was killed. Returns the failures.
pub fn ensure_supervised(driver: &Driver, handles: &[Handle]) -> Vec<Error> {
    let unsupervised = handles.iter().filter(|handle| handle.is_unsupervised());
    unsupervised
        .filter_map(|handle| supervise_one(driver, handle).err())
        .collect()
}

/// Uses a descriptor of its own, since this process may keep the handle's open for long.
fn supervise_one(driver: &Driver, handle: &Handle) -> Result<(), Error> {
    let name = name::text(&handle.info.name);
    let own = match handle.open_again(driver).and_then(Handle::of) {
        // It was removed meanwhile.
        Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ENODEV) => return Ok(()),
        own => own.map_err(|source| unsupervised(&name, source))?,
    };
    match claim_supervision(&own)? {
        true => spawn_supervisor(own.node, &name),
        false => Ok(()),
    }
}

/// Makes this descriptor the supervisor's; false if another process was first.
fn claim_supervision(handle: &Handle) -> Result<bool, Error> {
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
        Err(source) => Err(unsupervised(&name::text(&handle.info.name), source)),
    }
}

/// Spawns the supervisor process, detached from this one.
fn spawn_supervisor(node: Node, name: &str) -> Result<(), Error> {
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
    spawned.map(drop).map_err(|source| {
        let what = format!("the supervisor of the node '{name}' cannot be started");
        Error::new(what).because(source)
    })
}

/// The error for a node that the module does not give a supervisor. It runs on.
fn unsupervised(name: &str, source: CallError) -> Error {
    Error::new(format!("the node '{name}' cannot be supervised")).because(source)
}
