//! Giving a copy of a node another generation: see [`insula_boot::generation`].

use insula_base::error::Source;
use insula_boot::generation::{NUMBER_SIZE, renewed};
use insula_driver::Memory;
use rustix::rand::{GetRandomFlags, getrandom};

use super::NodeRecord;
use super::power_button;

/// Writes another number to the memory of a node that is about to go on. Returns the vector of the
/// interrupt by which its kernel is notified; `None` if it does not handle such, or has no generation.
///
/// # Errors
/// When there is no number, or the memory cannot be written.
pub(super) fn renew(memory: &Memory, record: &NodeRecord) -> Result<Option<u8>, Source> {
    let Some(vector) = power_button::vector(&memory.map_for_reading()?, record) else {
        return Ok(None);
    };
    if record.generation == 0 {
        return Ok(None);
    }
    let mut number = [0; NUMBER_SIZE];
    getrandom(&mut number, GetRandomFlags::empty())?;
    memory
        .map()?
        .write_at(record.generation, &renewed(number))?;
    Ok(Some(vector))
}
