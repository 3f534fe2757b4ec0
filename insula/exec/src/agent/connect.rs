//! Connecting to a node's agent.

use std::time::{Duration, Instant};

use insula_base::error::Error;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node::{self as node, connect_to_agent};
use insula_supervisor as supervisor;
use nix::errno::Errno;
use socket2::Socket;

/// Time a node gets until its agent listens; an emulated one boots slowly.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);
/// Intervals of attempts, the first and the longest: a copy answers soon, a node that boots does not.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));
/// Attempts to connect at once, each from another port.
const ATTEMPTS: u32 = 3;
/// What every error leaves.
const UNTOUCHED: &str = "nothing was done";

/// Connects to a node's agent, waiting while the node boots or is about to be restarted.
///
/// # Errors
/// When there is no such node, it does not run, or its agent does not answer.
pub(crate) fn to_agent(driver: &Driver, name: &Name) -> Result<Socket, Error> {
    let began = Instant::now();
    let (mut interval, longest) = INTERVALS;
    let mut pause = || {
        std::thread::sleep(interval);
        interval = (interval * 3 / 2).min(longest);
    };
    loop {
        let handle = node::find(driver, name)?;
        // Its supervisor, which serves its sockets and restarts it, may have been killed. On
        // failure connecting fails as well.
        let _ = supervisor::ensure_supervised(driver, std::slice::from_ref(&handle));
        if !handle.is_running() {
            let may_restart = handle.is_unsupervised() || handle.may_restart();
            let will_run = may_restart || handle.is_being_restarted();
            if !will_run || began.elapsed() > BOOT_TIMEOUT {
                return Err(not_running(name));
            }
            pause();
            continue;
        }
        if handle.is_paused() {
            return Err(node::is_paused(name));
        }
        match attempt(handle.info.id)? {
            Ok(stream) => return Ok(stream),
            Err(errno) if began.elapsed() > BOOT_TIMEOUT => {
                return Err(no_answer(name, errno));
            }
            Err(_) => pause(),
        }
    }
}

/// Connects to the agent of a running node, without waiting for one that boots.
///
/// # Errors
/// When there is no such node, it does not run, or its agent does not answer.
pub(crate) fn to_agent_at_once(driver: &Driver, name: &Name) -> Result<Socket, Error> {
    let handle = node::find(driver, name)?;
    if !handle.is_running() {
        return Err(not_running(name));
    }
    if handle.is_paused() {
        return Err(node::is_paused(name));
    }
    let mut attempts = 0;
    loop {
        attempts += 1;
        match attempt(handle.info.id)? {
            Ok(stream) => return Ok(stream),
            // Another command may have had the port a moment ago.
            Err(Errno::ECONNRESET) if attempts < ATTEMPTS => {}
            Err(errno) => return Err(no_answer(name, errno)),
        }
    }
}

/// One attempt to connect to the agent of the node with this id.
fn attempt(node_id: u32) -> Result<Result<Socket, Errno>, Error> {
    let connected = connect_to_agent(node_id).map_err(no_socket)?;
    Ok(connected.map(Socket::from))
}

fn not_running(name: &Name) -> Error {
    Error::new(format!("the node '{name}' is not running"))
        .leaving(UNTOUCHED)
        .hint(format!("start it with `insula restart {name}`"))
}

/// The error for an agent that does not answer; `errno` is that of the last attempt.
fn no_answer(name: &Name, errno: Errno) -> Error {
    let why = errno.desc();
    let what = format!("the agent of the node '{name}' does not answer ({why})");
    Error::new(what).leaving(UNTOUCHED).hint(format!(
        "`insula image build` makes images with an agent; `insula logs {name}` shows how far the \
         node has booted"
    ))
}

/// The error of a process that cannot create a socket, or lacks the permission.
fn no_socket(errno: Errno) -> Error {
    Error::new("the socket to nodes cannot be created")
        .because(std::io::Error::from(errno))
        .leaving(UNTOUCHED)
}
