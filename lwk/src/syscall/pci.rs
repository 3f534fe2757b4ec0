//! Calls of programs that drive PCI functions: `abi/include/insula_pci.h`.

use alloc::boxed::Box;

use insula_abi::pci::{
    PCI_BLOCK_MAX, PCI_DECODE, PCI_DMA, PCI_NO_ENDPOINT, PciFunction, PciMemory,
};
use zerocopy::{FromZeros, IntoBytes};

use crate::base::polling;
use crate::hw::memory::room::has_room;
use crate::model::errno::Errno;
use crate::model::pci::claims::Ready;
use crate::model::pci::function::Function;
use crate::model::vma::PAGE;
use crate::syscall::change::{change, whole_pages};
use crate::syscall::delegate::finish;
use crate::syscall::memory_lock::is_capable;
use crate::task::address_space::AddressSpace;
use crate::task::flow::Flow;
use crate::task::thread::Thread;
use crate::task::{endpoint_registry, pci, process_table};

/// `CAP_SYS_RAWIO`.
const RAW_IO: u64 = 17;

/// Writes what functions there are. Returns their number.
pub(super) fn list(thread: &mut Thread, [at, count, ..]: [u64; 6]) -> Result<u64, Errno> {
    /// Kernel memory for the list: a node has a few.
    const LIST_BYTES: u64 = 64 << 10;
    has_room(LIST_BYTES)?;
    let all = pci::all();
    let most = count.min(all.len() as u64) as usize;
    for (index, (function, owner)) in all.iter().take(most).enumerate() {
        let offset = (index * size_of::<PciFunction>()) as u64;
        let info = info(function, *owner);
        let mut space = thread.process.space();
        space.write(at.wrapping_add(offset), info.as_bytes())?;
    }
    Ok(all.len() as u64)
}

fn info(function: &Function, owner: Option<u64>) -> PciFunction {
    let owner = owner.and_then(process_table::find);
    PciFunction {
        address: function.address,
        vendor: function.vendor,
        device: function.device,
        class_code: function.class,
        owner: owner.map_or(0, |owner| owner.pages().pid() as u32),
        bars: function.bars.map(|bar| bar.size),
    }
}

/// Claims a function.
pub(super) fn claim(thread: Box<Thread>, [address, ..]: [u64; 6]) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let result = claim_function(&mut thread, address).await;
        finish(thread, result.map(|()| 0))
    })
}

async fn claim_function(thread: &mut Thread, address: u64) -> Result<(), Errno> {
    if !is_capable(thread, RAW_IO).await? {
        return Err(Errno::EPERM);
    }
    pci::begin_claim(&thread.process, address)?;
    loop {
        match pci::step_claim(&thread.process, address) {
            Ok(Ready::Now) => return Ok(()),
            Ok(Ready::At(at_ns)) => polling::sleep_until(at_ns).await,
            // It has released the function meanwhile, by its end or otherwise.
            Err(Errno::EACCES) => return Err(Errno::EINTR),
            Err(error) => return Err(error),
        }
    }
}

/// Releases a function.
pub(super) fn release(thread: &mut Thread, [address, ..]: [u64; 6]) -> Result<u64, Errno> {
    pci::release(&thread.process, address).map(|()| 0)
}

/// Switches decoding and DMA on or off.
pub(super) fn enable(thread: &mut Thread, [address, flags, ..]: [u64; 6]) -> Result<u64, Errno> {
    match flags & !(PCI_DECODE | PCI_DMA) {
        0 => pci::enable(&thread.process, address, flags).map(|()| 0),
        _ => Err(Errno::EINVAL),
    }
}

/// Has a message arrive at an endpoint, or at none.
pub(super) fn interrupt(
    thread: &mut Thread,
    [address, message, endpoint, ..]: [u64; 6],
) -> Result<u64, Errno> {
    pci::check_claim(&thread.process, address)?;
    let endpoint = match endpoint {
        PCI_NO_ENDPOINT => None,
        handle => Some(endpoint_registry::find(&thread.process, handle, true)?),
    };
    pci::interrupt(&thread.process, (address, message), endpoint).map(|()| 0)
}

/// Reads configuration space.
pub(super) fn read(
    thread: &mut Thread,
    [address, offset, size, ..]: [u64; 6],
) -> Result<u64, Errno> {
    pci::read(&thread.process, address, (offset, size))
}

/// Maps a part of a BAR.
pub(super) fn map(thread: Box<Thread>, [address, bar, offset, size, ..]: [u64; 6]) -> Flow {
    match pci::registers(&thread.process, address, (bar, offset, size)) {
        Ok(registers) => change(thread, move |space| {
            space.map_for_driver(registers.clone(), size, true)
        }),
        Err(error) => finish(thread, Err(error)),
    }
}

/// Allocates memory for a device, and maps it.
pub(super) fn allocate(thread: Box<Thread>, [address, at, ..]: [u64; 6]) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let result = allocate_memory(&mut thread, address, at).await;
        finish(thread, result.map(|()| 0))
    })
}

async fn allocate_memory(thread: &mut Thread, address: u64, at: u64) -> Result<(), Errno> {
    pci::check_claim(&thread.process, address)?;
    let mut asked = PciMemory::new_zeroed();
    {
        let mut space = thread.process.space();
        space.read(at, asked.as_mut_bytes())?;
        // What cannot be returned is not allocated.
        space.can_write(at, at.wrapping_add(size_of::<PciMemory>() as u64))?;
    }
    let size = whole_pages(asked.size)?;
    if size > PCI_BLOCK_MAX {
        return Err(Errno::ENOMEM);
    }
    let order = (size / PAGE).next_power_of_two().trailing_zeros() as u8;
    let (memory, place) = pci::allocate(&thread.process, address, order)?;
    let map = move |space: &mut AddressSpace| space.map_for_driver(memory.clone(), size, false);
    let answer = PciMemory {
        size,
        start: thread.change_space(map).await?,
        device_address: place.0,
    };
    let write = |thread: &Thread| thread.process.space().write(at, answer.as_bytes());
    thread.with_base_pages(write).await
}
