//! Ending nodes: stop, kill, remove.

use std::thread::sleep;
use std::time::{Duration, Instant};

use insula_abi as abi;
use nix::errno::Errno;

use super::power_button::press;
use super::view::{FindError, Handle, find};
use crate::driver::{CallError, Driver};
use crate::name::Name;

/// Why a node was not ended.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// It cannot be had.
    #[error(transparent)]
    Find(#[from] FindError),
    /// It does not run.
    #[error(
        "the node '{0}' does not run; it was left as it is\n\
         `insula restart {0}` starts it again, `insula rm {0}` removes it"
    )]
    NotRunning(Name),
    /// It does not run yet.
    #[error(
        "the node '{0}' is just being started by another `insula run`; it was left as it is\n\
         try again, or end that command: then the node goes with it"
    )]
    Starting(Name),
    /// It runs.
    #[error(
        "the node '{0}' runs; it was left as it is\n\
         stop it first with `insula stop {0}`, or do both with `insula rm -f {0}`"
    )]
    Running(Name),
    /// The module failed.
    #[error("the node '{name}' could not be {deed}: {source}\n`insula ps -a` shows its state")]
    Call {
        /// The node.
        name: Name,
        /// What was to be done, as a participle.
        deed: &'static str,
        /// Why not.
        source: CallError,
    },
}

/// How often a node that was asked to end is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// How often a stopped node is looked at, whose supervisor is about to leave it.
const LEAVE_INTERVAL: Duration = Duration::from_millis(2);
/// How often its button is pressed: what listens to it may only just be coming up.
const PRESS_INTERVAL: Duration = Duration::from_secs(1);

/// How long whoever else has to do with a node may take: starting it again, or leaving it.
const OTHERS_PATIENCE: Duration = Duration::from_secs(10);

/// How a node came to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It ended by itself when asked to.
    ByItself,
    /// It had not done so in time, and its cores were stopped.
    ByForce {
        /// Whether its kernel ever waited for its power button, so that it could be pressed.
        was_asked: bool,
    },
}

/// Presses a node's power button and gives it `patience` to end; then stops its cores. They go
/// back to the base; its memory is kept, to be read.
///
/// # Errors
/// [`EndError`].
pub fn stop(driver: &Driver, name: &Name, patience: Duration) -> Result<Stopped, EndError> {
    let mut handle = find(driver, name)?;
    if retire(&mut handle, name)? {
        return Ok(Stopped::ByItself);
    }
    let begun = Instant::now();
    let mut pressed: Option<Instant> = None;
    while handle.is_running() && begun.elapsed() < patience {
        // What keeps the button from being pressed does not keep the node from being stopped.
        if pressed.is_none_or(|at| at.elapsed() > PRESS_INTERVAL) && press(&handle).unwrap_or(false)
        {
            pressed = Some(Instant::now());
        }
        sleep(LOOK_INTERVAL);
        if handle.refresh().is_err() || handle.is_stopped() {
            return Ok(Stopped::ByItself);
        }
    }
    match end(&handle, name, abi::Reason::STOPPED) {
        // It has ended at the last moment.
        Err(EndError::NotRunning(_)) if handle.is_running() => Ok(Stopped::ByItself),
        ended => ended.map(|()| Stopped::ByForce {
            was_asked: pressed.is_some(),
        }),
    }
}

/// Stops a node's cores at once and gives them back; its memory is kept, to be read.
///
/// # Errors
/// [`EndError`].
pub fn kill(driver: &Driver, name: &Name) -> Result<(), EndError> {
    let mut handle = find(driver, name)?;
    if retire(&mut handle, name)? {
        return Ok(());
    }
    end(&handle, name, abi::Reason::KILLED)
}

/// Forgets a stopped node and gives its memory back; with `force` stops it first if it runs.
///
/// # Errors
/// [`EndError`].
pub fn remove(driver: &Driver, name: &Name, force: bool) -> Result<(), EndError> {
    let mut handle = find(driver, name)?;
    if force || handle.is_stopped() {
        retire(&mut handle, name)?;
    }
    if !handle.is_stopped() {
        if !force && handle.is_running() {
            return Err(EndError::Running(name.clone()));
        }
        match end(&handle, name, abi::Reason::KILLED) {
            // It has ended by itself meanwhile.
            Ok(()) | Err(EndError::NotRunning(_)) => {}
            Err(error) => return Err(error),
        }
    }
    wait_until_left(&mut handle);
    handle.node.remove().or_else(|source| match source.errno {
        // Its supervisor was faster, as its user wished when it was started.
        Errno::ENODEV => Ok(()),
        Errno::EBUSY => Err(EndError::Running(name.clone())),
        _ => Err(EndError::Call {
            name: name.clone(),
            deed: "removed",
            source,
        }),
    })
}

/// Sees to it that the node is not started again once it has ended; whether that was all there was
/// to do, as it waited to be started again.
fn retire(handle: &mut Handle, name: &Name) -> Result<bool, EndError> {
    // One that is started for the first time is still another process's.
    if handle.info.starts == 0 {
        return Ok(false);
    }
    let waited = handle.is_restarting();
    handle.node.retire().map_err(|source| EndError::Call {
        name: name.clone(),
        deed: "stopped",
        source,
    })?;
    // Its supervisor may be starting it again at this moment.
    let begun = Instant::now();
    while handle.is_being_restarted() && begun.elapsed() < OTHERS_PATIENCE {
        sleep(LOOK_INTERVAL);
        if handle.refresh().is_err() {
            break;
        }
    }
    Ok(waited && handle.is_stopped())
}

/// Waits until a stopped node's supervisor has left it, as it does by itself. It holds the node's
/// memory until then. One that does not is not waited for for long.
pub fn wait_until_left(handle: &mut Handle) {
    let begun = Instant::now();
    while handle.refresh().is_ok()
        && handle.is_stopped()
        && handle.is_supervised()
        && begun.elapsed() < OTHERS_PATIENCE
    {
        sleep(LEAVE_INTERVAL);
    }
}

fn end(handle: &Handle, name: &Name, reason: abi::Reason) -> Result<(), EndError> {
    let name = name.clone();
    match handle.info.state {
        abi::State::STOPPED => return Err(EndError::NotRunning(name)),
        abi::State::CREATING | abi::State::CREATED => return Err(EndError::Starting(name)),
        _ => {}
    }
    let deed = match reason {
        abi::Reason::KILLED => "killed",
        _ => "stopped",
    };
    handle
        .node
        .stop(reason)
        .map_err(|source| match source.errno {
            Errno::EALREADY => EndError::NotRunning(name),
            _ => EndError::Call { name, deed, source },
        })
}
