//! Pressing a node's power button.

use insula_base::error::Source;
use insula_boot::power_button;
use insula_driver::Mapping;

use super::view::Handle;
use crate::NodeRecord;

/// Presses the node's power button; false if the kernel does not handle it (yet).
pub(super) fn press(handle: &Handle) -> Result<bool, Source> {
    let Some(record) = &handle.record else {
        return Ok(false);
    };
    let memory = handle.node.memory()?.map_for_reading()?;
    let Some(vector) = vector(&memory, record) else {
        return Ok(false);
    };
    handle.node.interrupt(0, vector.into())?;
    Ok(true)
}

/// The vector that the kernel in this memory expects from its button, if it does.
pub(super) fn vector(memory: &Mapping, record: &NodeRecord) -> Option<u8> {
    let mut word = [0; 4];
    let at = memory.offset_of(record.power_button, word.len() as u64);
    memory.read(at.ok()?, &mut word).ok()?;
    power_button::vector(u32::from_le_bytes(word))
}
