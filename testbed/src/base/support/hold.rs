//! Forces races: a driver for tests (`testbed/src/base/driver/insula_hold.c`) holds a function of the base's
//! kernel, or its reboot, just where another thread is to interleave.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;

use super::insula_command::wait_for;
use crate::base::Finding;
use crate::host::payload::equipment::HOLD_PATH;

const PARAMETERS: &str = "/sys/module/insula_hold/parameters";

/// The loaded driver: it holds the first call. Dropping this releases it.
pub(crate) struct Hold(());

impl Hold {
    /// Holds a function by its name; the caller's core spins.
    pub(crate) fn of(symbol: &str) -> Result<Self, Finding> {
        Self::load(&[&format!("symbol={symbol}")])
    }

    /// The same with the caller asleep.
    pub(crate) fn asleep(symbol: &str) -> Result<Self, Finding> {
        Self::load(&[&format!("symbol={symbol}"), "asleep=1"])
    }

    /// Holds the next call of this process, and the base's reboot, after all notifiers have run.
    /// Supervisors of nodes make the same calls.
    pub(crate) fn asleep_and_reboot(symbol: &str) -> Result<Self, Finding> {
        let process = format!("process={}", std::process::id());
        let symbol = format!("symbol={symbol}");
        Self::load(&[&symbol, &process, "asleep=1", "reboot=1"])
    }

    /// Has the next call of a function fail with this error instead of holding it.
    pub(crate) fn failing(symbol: &str, error: Errno) -> Result<Self, Finding> {
        let error = format!("error=-{}", error as i32);
        Self::load(&[&format!("symbol={symbol}"), &error])
    }

    fn load(parameters: &[&str]) -> Result<Self, Finding> {
        let mut insmod = Command::new("insmod");
        let output = insmod.arg(HOLD_PATH).args(parameters).output()?;
        Finding::unless(output.status.success(), || {
            let error_output = String::from_utf8_lossy(&output.stderr);
            format!("insmod insula_hold.ko {parameters:?}: {error_output}")
        })?;
        Ok(Self(()))
    }

    /// Waits until a caller is held.
    pub(crate) fn wait(&self) -> Result<(), Finding> {
        wait_for("a caller to be held", || is_set("held"))
    }

    /// Waits until the reboot is held.
    pub(crate) fn wait_for_reboot(&self) -> Result<(), Finding> {
        wait_for("the base to reboot", || is_set("rebooting"))
    }

    /// Releases the held caller.
    pub(crate) fn release(&self) -> Result<(), Finding> {
        Ok(fs::write(parameter("release"), "1")?)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let _ = Command::new("rmmod").arg("insula_hold").status();
    }
}

fn is_set(name: &str) -> Result<Option<()>, Finding> {
    Ok((fs::read_to_string(parameter(name))?.trim() == "Y").then_some(()))
}

fn parameter(name: &str) -> PathBuf {
    Path::new(PARAMETERS).join(name)
}
