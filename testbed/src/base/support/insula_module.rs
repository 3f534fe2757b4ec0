//! Loads and unloads insula.ko.

use std::fs;
use std::process::Command;

use crate::base::Finding;
use crate::host::payload::equipment::MODULE_PATH;

/// Loaded insula.ko. Unload it with [`LoadedModule::unload`]: only that returns errors.
pub(crate) struct LoadedModule(());

impl LoadedModule {
    /// Loads it.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub(crate) fn load() -> Result<Self, Finding> {
        run("insmod", MODULE_PATH)?;
        Ok(Self(()))
    }

    /// Unloads it.
    ///
    /// # Errors
    /// When it is in use, or not loaded any more.
    pub(crate) fn unload(self) -> Result<(), Finding> {
        run("rmmod", "insula")
    }
}

/// Whether insula.ko is loaded.
///
/// # Errors
/// When /proc/modules cannot be read.
pub(crate) fn module_is_loaded() -> Result<bool, Finding> {
    let modules = fs::read_to_string("/proc/modules")?;
    Ok(modules.lines().any(|line| line.starts_with("insula ")))
}

fn run(program: &str, argument: &str) -> Result<(), Finding> {
    let output = Command::new(program).arg(argument).output()?;
    let message = || {
        format!(
            "{program} {argument}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )
    };
    Finding::unless(output.status.success(), message)
}
