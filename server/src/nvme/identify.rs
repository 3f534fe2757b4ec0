//! What a controller says of itself and of its namespaces (5.15).

use super::command::Command;
use super::controller::Controller;
use super::{BUFFER, Error, PAGE};
use crate::pci::{Device, DeviceMemory};

const NAMESPACE: u32 = 0;
const CONTROLLER: u32 = 1;
const NAMESPACES: u32 = 2;

/// What a controller is, and can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Features {
    pub(super) model: String,
    pub(super) serial: String,
    /// Most bytes of a command.
    pub(super) transfer_max: usize,
    /// What was written survives only after a flush.
    pub(super) has_cache: bool,
    pub(super) can_write_zeroes: bool,
}

/// A namespace: the blocks of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Namespace {
    pub(super) number: u32,
    pub(super) blocks: u64,
    pub(super) block_size: usize,
}

/// Has the controller write a structure to the buffer. Returns it.
fn identify<D: Device>(
    controller: &mut Controller<D>,
    buffer: &D::Memory,
    (structure, namespace): (u32, u32),
) -> Result<Vec<u8>, Error> {
    let command = Command::identify(structure, namespace);
    controller.administer(command.with_data(buffer.device_address(), 0))?;
    let mut bytes = vec![0; PAGE];
    buffer.read(0, &mut bytes);
    Ok(bytes)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

/// Asks what the controller is.
pub(super) fn features<D: Device>(
    controller: &mut Controller<D>,
    buffer: &D::Memory,
) -> Result<Features, Error> {
    const WRITE_ZEROES: u16 = 1 << 3;
    let bytes = identify(controller, buffer, (CONTROLLER, 0))?;
    let transfer_max = match bytes[77] {
        0 => BUFFER,
        shift => PAGE.checked_shl(shift.into()).unwrap_or(BUFFER).max(PAGE),
    };
    Ok(Features {
        serial: text(&bytes[4..24]),
        model: text(&bytes[24..64]),
        transfer_max,
        has_cache: bytes[525] & 1 != 0,
        can_write_zeroes: u16::from_le_bytes(array(&bytes, 520)) & WRITE_ZEROES != 0,
    })
}

/// Finds the first namespace.
pub(super) fn first_namespace<D: Device>(
    controller: &mut Controller<D>,
    buffer: &D::Memory,
) -> Result<Namespace, Error> {
    let list = identify(controller, buffer, (NAMESPACES, 0))?;
    let number = u32::from_le_bytes(array(&list, 0));
    if number == 0 {
        return Err(Error::Unsupported("a controller without namespaces"));
    }
    let bytes = identify(controller, buffer, (NAMESPACE, number))?;
    let format = u32::from_le_bytes(array(&bytes, 128 + 4 * usize::from(bytes[26] & 0xf)));
    if format as u16 != 0 {
        return Err(Error::Unsupported("blocks with metadata"));
    }
    let shift = format >> 16 & 0xff;
    if !(9..=12).contains(&shift) {
        return Err(Error::Unsupported(
            "blocks smaller than 512 bytes or larger than 4 KiB",
        ));
    }
    let blocks = u64::from_le_bytes(array(&bytes, 0));
    match blocks.checked_mul(1 << shift) {
        Some(1..) => Ok(Namespace {
            number,
            blocks,
            block_size: 1 << shift,
        }),
        _ => Err(Error::Malformed("the size of a namespace")),
    }
}
