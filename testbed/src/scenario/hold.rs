//! Making races certain: a driver for tests (`testbed/driver/insula_hold.c`) that holds a function of
//! the base's kernel, or its reboot, just where somebody else is to come in between.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Finding;
use super::insula_command::wait_for;
use crate::equipment::HOLD_PATH;

const PARAMETERS: &str = "/sys/module/insula_hold/parameters";

/// The driver, loaded: what it is to hold is held when it is called for the first time, and goes on
/// when this is dropped.
pub(super) struct Hold(());

impl Hold {
    /// Holds a function by its name, its caller's core busy with nothing.
    pub(super) fn of(symbol: &str) -> Result<Self, Finding> {
        Self::load(&[&format!("symbol={symbol}")])
    }

    /// The same with the caller asleep.
    pub(super) fn asleep(symbol: &str) -> Result<Self, Finding> {
        Self::load(&[&format!("symbol={symbol}"), "asleep=1"])
    }

    /// Holds the base's reboot too, once all have been told of it.
    pub(super) fn asleep_and_reboot(symbol: &str) -> Result<Self, Finding> {
        Self::load(&[&format!("symbol={symbol}"), "asleep=1", "reboot=1"])
    }

    fn load(parameters: &[&str]) -> Result<Self, Finding> {
        let mut insmod = Command::new("insmod");
        let output = insmod.arg(HOLD_PATH).args(parameters).output()?;
        Finding::unless(output.status.success(), || {
            let complaint = String::from_utf8_lossy(&output.stderr);
            format!("insmod insula_hold.ko {parameters:?}: {complaint}")
        })?;
        Ok(Self(()))
    }

    /// Waits until somebody is held.
    pub(super) fn wait(&self) -> Result<(), Finding> {
        wait_for("somebody to be held", || is_set("held"))
    }

    /// Waits until the reboot is held.
    pub(super) fn wait_for_reboot(&self) -> Result<(), Finding> {
        wait_for("the base to reboot", || is_set("rebooting"))
    }

    /// Lets who is held go on.
    pub(super) fn release(&self) -> Result<(), Finding> {
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
