//! Pressing a node's power button.

use insula_boot::power_button;
use insula_driver::MapError;

use super::view::Handle;

/// Why the button could not be pressed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PressError {
    /// The node's memory cannot be read.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The module failed.
    #[error(transparent)]
    Call(#[from] insula_driver::CallError),
}

/// Presses the node's power button; false if the kernel does not handle it (yet).
pub(super) fn press(handle: &Handle) -> Result<bool, PressError> {
    let Some(address) = handle.record.as_ref().map(|record| record.power_button) else {
        return Ok(false);
    };
    let memory = handle.node.memory()?.map()?;
    let mut word = [0; 4];
    let read = memory.offset_of(address, word.len() as u64);
    if read.and_then(|at| memory.read(at, &mut word)).is_err() {
        return Ok(false);
    }
    let Some(vector) = power_button::vector(u32::from_le_bytes(word)) else {
        return Ok(false);
    };
    handle.node.interrupt(0, vector.into())?;
    Ok(true)
}
