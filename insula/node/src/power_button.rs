//! Pressing a node's power button.

use insula_base::error::Source;
use insula_boot::power_button;

use super::view::Handle;

/// Presses the node's power button; false if the kernel does not handle it (yet).
pub(super) fn press(handle: &Handle) -> Result<bool, Source> {
    let Some(address) = handle.record.as_ref().map(|record| record.power_button) else {
        return Ok(false);
    };
    let memory = handle.node.memory()?.map_for_reading()?;
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
