//! PCI functions of this node, and the processes that drive them (protocol: `abi/include/insula_pci.h`;
//! steps: [`crate::model::pci::claims`]).
//!
//! Who holds the lock of the table touches no program's memory: a page fault may need other locks, and
//! waits for cores that end a process, which takes this one.

use alloc::sync::Arc;
use alloc::vec::Vec;

use insula_abi::pci::PCI_DECODE;
use insula_bare::memory::{FRAME_SIZE, PhysAddr};

use crate::hw::boot_info::acpi::PciBus;
use crate::hw::clock;
use crate::hw::memory::room::has_room;
use crate::hw::pci::ConfigSpace;
use crate::hw::shared_core;
use crate::info;
use crate::model::errno::Errno;
use crate::model::pci::claims::{Claims, Ready};
use crate::model::pci::config::Config;
use crate::model::pci::function::Function;
use crate::task::endpoint::Handle;
use crate::task::irq::{self, Message};
use crate::task::process::Process;
use crate::task::shared_object::SharedObject;

/// Kernel memory needed for a mapping, or a block of memory.
const ENTRY_BYTES: u64 = 4096;

impl Config for ConfigSpace {
    fn read(&self, offset: u16) -> u32 {
        self.read(offset)
    }

    fn write(&mut self, offset: u16, value: u32) {
        self.write(offset, value);
    }
}

static CLAIMS: spin::Mutex<Claims<ConfigSpace, SharedObject>> = spin::Mutex::new(Claims::new());

/// Finds the functions of this node.
pub(crate) fn find_functions(buses: &[PciBus]) {
    let mut claims = CLAIMS.lock();
    for bus in buses {
        for number in 0..=u8::MAX {
            let address =
                u32::from(bus.segment) << 16 | u32::from(bus.number) << 8 | u32::from(number);
            let Some(config) = ConfigSpace::of(bus, number) else {
                continue;
            };
            if let Some(function) = claims.add(address, config) {
                log(function);
            }
        }
    }
}

fn log(function: &Function) {
    info!(
        "PCI function {:04x}:{:02x}:{:02x}.{}: {:04x}:{:04x}, class {:06x}",
        function.address >> 16,
        function.address >> 8 & 0xff,
        function.address >> 3 & 0x1f,
        function.address & 7,
        function.vendor,
        function.device,
        function.class
    );
}

/// Returns all functions, with the numbers of the processes that have claimed them.
pub(crate) fn all() -> Vec<(Function, Option<u64>)> {
    let claims = CLAIMS.lock();
    let all = claims.all();
    all.map(|(function, owner)| (*function, owner)).collect()
}

/// Whether a process has claimed any function.
pub(super) fn has_any(process: &Process) -> bool {
    CLAIMS.lock().has_any(process.pages().number())
}

/// Begins to claim a function for a process.
///
/// # Errors
/// As of [`Claims::begin`]; [`Errno::EINTR`] if the process exits.
pub(crate) fn begin_claim(process: &Process, address: u64) -> Result<(), Errno> {
    let mut claims = CLAIMS.lock();
    // What it had has been released, or will be under the lock.
    if process.is_exiting() {
        return Err(Errno::EINTR);
    }
    claims.begin(address, process.pages().number(), clock::now_ns())
}

/// Makes the next step of a claim.
///
/// # Errors
/// As of [`Claims::step`].
pub(crate) fn step_claim(process: &Process, address: u64) -> Result<Ready, Errno> {
    let number = process.pages().number();
    CLAIMS.lock().step(address, number, clock::now_ns())
}

/// Releases a function.
///
/// # Errors
/// As of [`Claims::release`].
pub(crate) fn release(process: &Process, address: u64) -> Result<(), Errno> {
    let number = process.pages().number();
    let mut claims = CLAIMS.lock();
    if claims.granted(address, number).is_ok() {
        irq::remove(|message| message.function == address);
    }
    let memory = claims.release(address, number);
    drop(claims);
    memory.map(drop)
}

/// Releases all functions of a process, by its number: it exits, or executes another program.
pub(super) fn release_all(process: u64) {
    let mut claims = CLAIMS.lock();
    irq::remove(|message| {
        let mut all = claims.all();
        all.any(|(function, owner)| {
            owner == Some(process) && u64::from(function.address) == message.function
        })
    });
    let memory = claims.release_all(process);
    drop(claims);
    drop(memory);
}

/// Checks that a process has claimed a function.
///
/// # Errors
/// [`Errno::ENODEV`], [`Errno::EACCES`].
pub(crate) fn check_claim(process: &Process, address: u64) -> Result<(), Errno> {
    let number = process.pages().number();
    CLAIMS.lock().granted(address, number).map(drop)
}

/// Switches decoding and DMA of a function on or off.
///
/// # Errors
/// [`Errno::ENODEV`], [`Errno::EACCES`].
pub(crate) fn enable(process: &Process, address: u64, flags: u64) -> Result<(), Errno> {
    let mut claims = CLAIMS.lock();
    let mut grant = claims.granted(address, process.pages().number())?;
    if flags & PCI_DECODE == 0 {
        irq::remove(|message| message.function == address);
    }
    grant.enable(flags);
    Ok(())
}

/// Has a message of a function arrive at an endpoint that the process serves; at none, masks it.
///
/// # Errors
/// [`Errno::ENODEV`], [`Errno::EACCES`], [`Errno::EINVAL`], [`Errno::ENOSPC`], [`Errno::ENOMEM`],
/// [`Errno::EOPNOTSUPP`].
pub(crate) fn interrupt(
    process: &Process,
    (address, number): (u64, u64),
    endpoint: Option<Handle>,
) -> Result<(), Errno> {
    let message = Message {
        function: address,
        number,
    };
    let mut claims = CLAIMS.lock();
    let mut grant = claims.granted(address, process.pages().number())?;
    let entry = PhysAddr(grant.message(number)?);
    match endpoint {
        _ if shared_core::is_shared() => Err(Errno::EOPNOTSUPP),
        Some(endpoint) => irq::add(message, entry, endpoint),
        None => {
            irq::remove(|other| other == message);
            Ok(())
        }
    }
}

/// Reads configuration space.
///
/// # Errors
/// [`Errno::ENODEV`], [`Errno::EACCES`], [`Errno::EINVAL`].
pub(crate) fn read(
    process: &Process,
    address: u64,
    (offset, size): (u64, u64),
) -> Result<u64, Errno> {
    let mut claims = CLAIMS.lock();
    let grant = claims.granted(address, process.pages().number())?;
    grant.read(offset, size)
}

/// Returns a part of a BAR to be mapped.
///
/// # Errors
/// [`Errno::ENODEV`], [`Errno::EACCES`], [`Errno::EINVAL`], [`Errno::ENOMEM`].
pub(crate) fn registers(
    process: &Process,
    address: u64,
    (bar, offset, size): (u64, u64, u64),
) -> Result<Arc<SharedObject>, Errno> {
    has_room(ENTRY_BYTES)?;
    let mut claims = CLAIMS.lock();
    let mut grant = claims.granted(address, process.pages().number())?;
    grant.map(bar, (offset, size), |start, size| {
        SharedObject::of_registers(PhysAddr(start), size / FRAME_SIZE)
    })
}

/// Allocates zeroed memory for a function: 2^order pages. Returns it, and where the device finds it.
///
/// # Errors
/// [`Errno::ENODEV`], [`Errno::EACCES`], [`Errno::ENOMEM`].
pub(crate) fn allocate(
    process: &Process,
    address: u64,
    order: u8,
) -> Result<(Arc<SharedObject>, PhysAddr), Errno> {
    has_room(ENTRY_BYTES)?;
    let number = process.pages().number();
    // Who has no claim does not get as far as to allocate.
    check_claim(process, address)?;
    let (memory, at) = SharedObject::of_block(order)?;
    let mut claims = CLAIMS.lock();
    let mut grant = claims.granted(address, number)?;
    grant.keep(&memory, FRAME_SIZE << order)?;
    Ok((memory, at))
}
