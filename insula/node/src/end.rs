//! Stopping, killing and removing nodes.

use std::thread::sleep;
use std::time::{Duration, Instant};

use insula_abi as abi;
use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_driver::name::{Missing, Name};
use insula_driver::{CallError, Driver};
use nix::errno::Errno;

use super::created::forget_created;
use super::events::{NodeEvent, Status};
use super::findings::forget_findings;
use super::power_button::press;
use super::shared_core::keep_off_shared_core;
use super::unused_disks::remove_unused_disks;
use super::view::{Handle, find, is_gone, unknown};

/// Interval at which a node that was asked to power off is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Interval at which a stopped node is polled whose supervisor is about to exit.
const EXIT_INTERVAL: Duration = Duration::from_millis(2);
/// Interval of presses of the power button, whose listener may still be starting.
const PRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Time another process gets to finish a restart, or the supervisor to exit.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(10);

/// How a node was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It powered off when asked to.
    ByItself,
    /// It did not do so in time, and its cores were stopped.
    ByForce {
        /// Whether its kernel handled the power button, so that it could be pressed.
        was_asked: bool,
    },
}

/// Presses a node's power button; stops its cores if it has not ended after `timeout`. The cores
/// go back to the base; the memory is kept.
///
/// # Errors
/// Why it was not; [`Kind::NotRunning`] and [`Kind::NoNode`] tell that nothing was to be done.
pub fn stop(driver: &Driver, name: &Name, timeout: Duration) -> Result<Stopped, Error> {
    let mut handle = find(driver, name)?;
    keep_off_shared_core(&handle);
    if retire(&mut handle, name)? {
        return Ok(Stopped::ByItself);
    }
    // Its kernel could not power off. A failure does not keep the node from being stopped.
    if handle.is_paused() {
        let _ = handle.node.resume();
    }
    let begun = Instant::now();
    let mut pressed: Option<Instant> = None;
    while handle.is_running() && begun.elapsed() < timeout {
        // A failure to press it does not keep the node from being stopped.
        if pressed.is_none_or(|at| at.elapsed() > PRESS_INTERVAL) && press(&handle).unwrap_or(false)
        {
            pressed = Some(Instant::now());
        }
        sleep(POLL_INTERVAL);
        if handle.refresh().is_err() || handle.is_stopped() {
            return Ok(Stopped::ByItself);
        }
    }
    match end(&handle, name, abi::Reason::STOPPED) {
        // It has just ended.
        Err(error) if error.kind == Kind::NotRunning && handle.is_running() => {
            Ok(Stopped::ByItself)
        }
        ended => ended.map(|()| Stopped::ByForce {
            was_asked: pressed.is_some(),
        }),
    }
}

/// Stops a node's cores at once and returns them to the base; its memory is kept.
///
/// # Errors
/// Why it was not; [`Kind::NotRunning`] and [`Kind::NoNode`] tell that nothing was to be done.
pub fn kill(driver: &Driver, name: &Name) -> Result<(), Error> {
    let mut handle = find(driver, name)?;
    keep_off_shared_core(&handle);
    if retire(&mut handle, name)? {
        return Ok(());
    }
    end(&handle, name, abi::Reason::KILLED)
}

/// Removes a stopped node and frees its memory; with `force` stops it first if it runs.
///
/// # Errors
/// Why it was not; [`Kind::NotRunning`] and [`Kind::NoNode`] tell that nothing was to be done.
pub fn remove(driver: &Driver, name: &Name, force: bool) -> Result<(), Error> {
    let mut handle = find(driver, name)?;
    keep_off_shared_core(&handle);
    if force || handle.is_stopped() {
        retire(&mut handle, name)?;
    }
    if !handle.is_stopped() {
        if !force && handle.is_running() {
            return Err(running(name));
        }
        match end(&handle, name, abi::Reason::KILLED) {
            // It has ended meanwhile.
            Err(error) if error.kind != Kind::NotRunning => return Err(error),
            _ => {}
        }
    }
    wait_for_supervisor_exit(&mut handle);
    handle.node.remove().or_else(|source| match source.errno {
        // Its supervisor has removed it already (`insula run --rm`).
        Errno::ENODEV => Ok(()),
        Errno::EBUSY => Err(running(name)),
        _ => Err(failed(name, "removed", source)),
    })?;
    let root = Root::default();
    forget_findings(&root, handle.info.id);
    // That of its first start, if that was killed: else it would be there again.
    let _ = forget_created(&root, name);
    // Best effort: the node is removed.
    let _ = NodeEvent::now(name.as_str(), Status::Remove).record(&root);
    remove_unused_disks(driver, &root);
    Ok(())
}

/// Cancels further restarts of the node. True if nothing else is to be done, since it was stopped
/// and waiting for its restart.
fn retire(handle: &mut Handle, name: &Name) -> Result<bool, Error> {
    // A node that has never been started belongs to another process.
    if handle.info.starts == 0 {
        return Ok(false);
    }
    let waited = handle.is_restarting();
    handle
        .node
        .retire()
        .map_err(|source| failed(name, "stopped", source))?;
    // Its supervisor may be restarting it right now.
    let begun = Instant::now();
    while handle.is_being_restarted() && begun.elapsed() < OTHERS_TIMEOUT {
        sleep(POLL_INTERVAL);
        if handle.refresh().is_err() {
            break;
        }
    }
    Ok(waited && handle.is_stopped())
}

/// Waits for the exit of a stopped node's supervisor, which maps the node's memory until then.
/// Gives up after a timeout.
pub fn wait_for_supervisor_exit(handle: &mut Handle) {
    let begun = Instant::now();
    while handle.refresh().is_ok()
        && handle.is_stopped()
        && handle.is_supervised()
        && begun.elapsed() < OTHERS_TIMEOUT
    {
        sleep(EXIT_INTERVAL);
    }
}

fn end(handle: &Handle, name: &Name, reason: abi::Reason) -> Result<(), Error> {
    match handle.info.state {
        abi::State::STOPPED => return Err(not_running(name)),
        abi::State::CREATING | abi::State::CREATED => return Err(starting(name)),
        _ => {}
    }
    let action = match reason {
        abi::Reason::KILLED => "killed",
        _ => "stopped",
    };
    handle
        .node
        .stop(reason)
        .map_err(|source| match source.errno {
            Errno::EALREADY => not_running(name),
            _ => failed(name, action, source),
        })
}

/// The error of a node that does not run.
pub(super) fn not_running(name: &Name) -> Error {
    Error::of(
        Kind::NotRunning,
        format!("the node '{name}' is not running"),
    )
    .unchanged()
    .hint(format!(
        "`insula restart {name}` restarts it, `insula rm {name}` removes it"
    ))
}

fn starting(name: &Name) -> Error {
    Error::new(format!(
        "the node '{name}' is being started by another `insula run`"
    ))
    .unchanged()
    .hint("try again, or end that command, which removes the node")
}

fn running(name: &Name) -> Error {
    Error::new(format!("the node '{name}' is running"))
        .unchanged()
        .hint(format!(
            "stop it first with `insula stop {name}`, or do both with `insula rm -f {name}`"
        ))
}

/// The module has refused; `action` is a participle.
fn failed(name: &Name, action: &str, error: CallError) -> Error {
    if is_gone(error) {
        return unknown(&Missing::among(name.as_str(), []));
    }
    Error::new(format!("the node '{name}' could not be {action}"))
        .because(error)
        .hint("`insula ps -a` shows its state")
}
