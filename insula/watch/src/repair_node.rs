//! Repairing a node's kernel.

use insula_base::error::Error;
use insula_driver::DriverError;
use insula_node::{Handle, log_layout};
use kimage::PhysicalMemory;
use kimage::log::locate;
use kimage::running::RunningKernel;

use crate::repair::{Repair, RepairError};

/// Makes a repair in a node's memory. The node is paused meanwhile, if it can be: a confined one.
///
/// # Errors
/// Why it was not made; nothing was changed.
pub fn repair_node(handle: &Handle, repair: &Repair) -> Result<(), Error> {
    let was_paused = handle.is_paused();
    let is_paused = was_paused || handle.node.pause().is_ok();
    let repaired = apply(handle, repair, is_paused);
    if is_paused && !was_paused {
        let resumed = handle.node.resume();
        resumed.map_err(|error| Error::new("the node stays paused").because(error))?;
    }
    repaired
}

fn apply(handle: &Handle, repair: &Repair, is_paused: bool) -> Result<(), Error> {
    let memory = handle.node.memory().map_err(DriverError::from);
    let memory = memory.and_then(|memory| memory.map());
    let memory = memory.map_err(|error| failed().because(error))?;
    let layout = log_layout(handle)?;
    let placement = locate(&layout, &memory).ok_or_else(failed)?;
    let bytes: &dyn PhysicalMemory = &memory;
    let kernel = RunningKernel::attach(&layout, placement, bytes);
    let kernel = kernel.map_err(|error| failed().because(error))?;
    let repaired = repair.apply(&kernel, &memory, is_paused);
    repaired.map_err(|error| match error {
        RepairError::NotPaused => failed()
            .because(error)
            .hint("only nodes with --isolation vmm can be paused"),
        error => failed().because(error),
    })
}

fn failed() -> Error {
    Error::new("it is not repaired").unchanged()
}
