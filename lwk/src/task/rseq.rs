//! Restartable sequences: a program reads its core number from memory, and a critical section that
//! depends on it is aborted when the thread leaves the core.
//!
//! Source: rseq(2) of Linux, its include/uapi/linux/rseq.h and kernel/rseq.c.

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::model::rseq::{ALIGNMENT, FEATURES_SIZE, Registration, SIZE_MIN, Sequence};
use crate::model::signals::info::Info;
use crate::model::signals::number;
use crate::model::vma::PAGE;
use crate::task::address_space::AddressSpace;
use crate::task::address_space::base_access::{self, MissingPage, Retry};
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// Offsets in `struct rseq`: `rseq_cs`; `node_id` and `mm_cid`. `cpu_id_start` and `cpu_id` come
/// first.
const AT_SEQUENCE: u64 = 8;
const AT_NODE: u64 = 20;
/// `RSEQ_CPU_ID_UNINITIALIZED`.
const UNINITIALIZED: u32 = u32::MAX;

/// Registers or unregisters an area.
///
/// # Errors
/// As of rseq(2).
pub(crate) fn register(thread: &mut Thread, given: Registration, flags: u64) -> Result<u64, Errno> {
    const UNREGISTER: u64 = 1;
    if flags == UNREGISTER {
        return unregister(thread, given);
    }
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    if let Some(registered) = thread.rseq {
        if (registered.area, registered.size) != (given.area, given.size) {
            return Err(Errno::EINVAL);
        }
        let same = registered.signature == given.signature;
        return Err(if same { Errno::EBUSY } else { Errno::EPERM });
    }
    if given.size < SIZE_MIN || !given.area.is_multiple_of(ALIGNMENT) {
        return Err(Errno::EINVAL);
    }
    let end = given.area.saturating_add(given.size.into());
    if !thread.process.space().covers(given.area & !(PAGE - 1), end) {
        return Err(Errno::EFAULT);
    }
    thread.rseq = Some(given);
    let stored = store_core(&mut thread.process.space(), given, thread.core);
    stored.inspect_err(|_| thread.rseq = None)?;
    Ok(0)
}

fn unregister(thread: &mut Thread, given: Registration) -> Result<u64, Errno> {
    let registered = thread.rseq.ok_or(Errno::EINVAL)?;
    if (registered.area, registered.size) != (given.area, given.size) {
        return Err(Errno::EINVAL);
    }
    if registered.signature != given.signature {
        return Err(Errno::EPERM);
    }
    let mut space = thread.process.space();
    write(&mut space, registered.area, [0, UNINITIALIZED])?;
    write(&mut space, registered.area + AT_NODE, [0, 0])?;
    drop(space);
    thread.rseq = None;
    Ok(0)
}

/// Updates the area of a thread that returns to its program after it was off its core or in a
/// handler. Sends SIGSEGV if that fails. If it needs a page of a base mapping, [`complete`] is due.
pub(crate) fn resume(thread: &mut Thread) {
    let Some(registered) = thread.rseq else {
        return;
    };
    let (core, rip) = (thread.core, thread.context.registers.rip);
    let mut space = thread.process.space();
    let stored = update(&mut space, registered, (core, rip));
    drop(space);
    match stored {
        Ok(abort) => thread.context.registers.rip = abort.unwrap_or(rip),
        Err(Errno::EBASEPAGE) => {
            let missing = base_access::take_missing();
            thread.missing_page = missing.map(|page| (page, Retry::Sequence));
        }
        Err(_) => fail(thread),
    }
}

/// Updates an area. Returns the abort handler's address if the thread is in a critical section.
fn update(
    space: &mut AddressSpace,
    registered: Registration,
    (core, rip): (u32, u64),
) -> Result<Option<u64>, Errno> {
    let mut area = [0; FEATURES_SIZE as usize];
    space.read(registered.area, &mut area)?;
    // Mostly there is nothing to do.
    if area == area_of(core) {
        return Ok(None);
    }
    let abort = abort_sequence(space, registered, rip)?;
    store_core(space, registered, core)?;
    Ok(abort)
}

/// What an area has on a core outside of any critical section.
fn area_of(core: u32) -> [u8; FEATURES_SIZE as usize] {
    let mut area = [0; FEATURES_SIZE as usize];
    for at in [0, 4, AT_NODE as usize + 4] {
        area[at..at + 4].copy_from_slice(&core.to_le_bytes());
    }
    area
}

fn fail(thread: &mut Thread) {
    thread.rseq = None;
    let fault = Info::fault(number::SEGV, Info::KERNEL, 0);
    thread.process.signals().force(thread.id, fault);
}

/// Completes [`resume`] when the page that it needs has been faulted in: the critical section, or
/// the signature before its abort handler, is in the program's file.
pub(crate) fn complete(thread: Box<Thread>, missing: MissingPage) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        match thread.fault_in(missing.address, missing.access).await {
            Ok(()) => resume(&mut thread),
            Err(_) => fail(&mut thread),
        }
        Flow::Continue(thread)
    })
}

/// Stores the core number, which is also unique among the program's running threads (`mm_cid`).
fn store_core(space: &mut AddressSpace, registered: Registration, core: u32) -> Result<(), Errno> {
    write(space, registered.area, [core, core])?;
    write(space, registered.area + AT_NODE, [0, core])
}

fn write(space: &mut AddressSpace, at: u64, words: [u32; 2]) -> Result<(), Errno> {
    let [first, second] = words.map(u64::from);
    let both = (first | second << 32).to_le_bytes();
    space.write(at, &both)
}

/// Returns the abort handler's address if the thread is in a critical section.
fn abort_sequence(
    space: &mut AddressSpace,
    registered: Registration,
    rip: u64,
) -> Result<Option<u64>, Errno> {
    let mut address = [0; 8];
    space.read(registered.area + AT_SEQUENCE, &mut address)?;
    let address = u64::from_le_bytes(address);
    if address == 0 {
        return Ok(None);
    }
    let mut bytes = [0; Sequence::BYTES];
    space.read(address, &mut bytes)?;
    let (_, end) = space.bounds();
    let sequence = Sequence::read(&bytes, end).ok_or(Errno::EINVAL)?;
    let mut signature = [0; 4];
    if sequence.holds(rip) {
        space.read(sequence.abort.wrapping_sub(4), &mut signature)?;
    }
    space.write(registered.area + AT_SEQUENCE, &[0; 8])?;
    if !sequence.holds(rip) {
        return Ok(None);
    }
    match u32::from_le_bytes(signature) == registered.signature {
        true => Ok(Some(sequence.abort)),
        false => Err(Errno::EINVAL),
    }
}
