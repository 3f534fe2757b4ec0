//! Copying between the memories of two processes.

use crate::model::endpoint::Window;
use crate::task::address_space::transfer::{TransferError, copy};
use crate::task::process::Process;

/// Most bytes copied while both address spaces are locked.
const STEP: u64 = 256 << 10;

/// Copies `from`, of one process, to an address in another.
///
/// # Errors
/// [`TransferError`]; parts may have been copied.
pub(crate) fn transfer(
    (source, from): (&Process, Window),
    (destination, to): (&Process, u64),
) -> Result<(), TransferError> {
    let mut done = 0;
    while done < from.length {
        let part = from.part(done, STEP);
        transfer_step((source, part), (destination, to.wrapping_add(done)))?;
        done += part.length;
    }
    Ok(())
}

/// Locks both address spaces in the order of their ids, so that no two cores wait for each other.
fn transfer_step(
    (source, from): (&Process, Window),
    (destination, to): (&Process, u64),
) -> Result<(), TransferError> {
    let (source, destination) = (source.mm(), destination.mm());
    if source.id() == destination.id() {
        return source.space().copy_within(from.address, to, from.length);
    }
    let (mut reads, mut writes) = match source.id() < destination.id() {
        true => {
            let reads = source.space();
            (reads, destination.space())
        }
        false => {
            let writes = destination.space();
            (source.space(), writes)
        }
    };
    copy((&mut reads, from.address), (&mut writes, to), from.length)
}
