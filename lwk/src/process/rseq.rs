//! Restartable sequences: a program reads its core number from memory, and a critical section that
//! depends on it is aborted when the thread leaves the core.
//!
//! Source: rseq(2) of Linux, its include/uapi/linux/rseq.h and kernel/rseq.c.

use super::Thread;
use super::address_space::AddressSpace;
use super::errno::Errno;
use super::signals::{Info, number};

/// Size of the first version of `struct rseq`, in bytes.
pub const SIZE_MIN: u32 = 32;
/// Size of the fields that this kernel supports, and the alignment; both are in the auxiliary
/// vector.
pub const FEATURES_SIZE: u64 = 28;
/// See above.
pub const ALIGNMENT: u64 = 32;
/// Offsets in `struct rseq`: `rseq_cs`; `node_id` and `mm_cid`. `cpu_id_start` and `cpu_id` come
/// first.
const AT_SEQUENCE: u64 = 8;
const AT_NODE: u64 = 20;
/// `RSEQ_CPU_ID_UNINITIALIZED`.
const UNINITIALIZED: u32 = u32::MAX;

/// A registered `struct rseq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Address.
    pub area: u64,
    /// Bytes.
    pub size: u32,
    /// Signature before each abort handler.
    pub signature: u32,
}

/// A critical section: `struct rseq_cs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sequence {
    start: u64,
    size: u64,
    abort: u64,
}

impl Sequence {
    const BYTES: usize = 32;

    /// Decodes it from the program's memory; `None` if it is invalid.
    fn read(bytes: &[u8; Self::BYTES], end: u64) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        let sequence = Self {
            start: word(8),
            size: word(16),
            abort: word(24),
        };
        let last = sequence.start.checked_add(sequence.size)?;
        let is_version_0 = bytes[..4] == [0; 4];
        let is_sound = is_version_0 && last < end && sequence.abort < end;
        (is_sound && !sequence.holds(sequence.abort)).then_some(sequence)
    }

    fn holds(&self, at: u64) -> bool {
        at.wrapping_sub(self.start) < self.size
    }
}

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
    if !thread
        .process
        .space()
        .covers(given.area & !(super::PAGE - 1), end)
    {
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
/// handler. Sends SIGSEGV if that fails.
pub(crate) fn resume(thread: &mut Thread) {
    let Some(registered) = thread.rseq else {
        return;
    };
    let (core, rip) = (thread.core, thread.context.registers.rip);
    let mut space = thread.process.space();
    let stored = abort_sequence(&mut space, registered, rip).and_then(|abort| {
        store_core(&mut space, registered, core)?;
        Ok(abort)
    });
    drop(space);
    match stored {
        Ok(abort) => thread.context.registers.rip = abort.unwrap_or(rip),
        Err(_) => {
            thread.rseq = None;
            let fault = Info::fault(number::SEGV, Info::KERNEL, 0);
            thread.process.signals().force(thread.id, fault);
        }
    }
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
    space.write(registered.area + AT_SEQUENCE, &[0; 8])?;
    if !sequence.holds(rip) {
        return Ok(None);
    }
    let mut signature = [0; 4];
    space.read(sequence.abort.wrapping_sub(4), &mut signature)?;
    match u32::from_le_bytes(signature) == registered.signature {
        true => Ok(Some(sequence.abort)),
        false => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(version: u32, words: [u64; 3]) -> [u8; Sequence::BYTES] {
        let head = u64::from(version).to_le_bytes();
        let words = words.map(u64::to_le_bytes);
        core::array::from_fn(|at| match at {
            0..8 => head[at],
            at => words[at / 8 - 1][at % 8],
        })
    }

    #[test]
    fn critical_sections_are_validated() {
        const END: u64 = 1 << 47;
        let read = |version, words| Sequence::read(&bytes(version, words), END);
        let sequence = read(0, [0x1000, 16, 0x2000]).unwrap();
        let inside = [0xfff, 0x1000, 0x100f, 0x1010].map(|at| sequence.holds(at));
        assert_eq!(inside, [false, true, true, false]);
        for (version, words) in [
            (1, [0x1000, 16, 0x2000]),
            (0, [0x1000, 16, 0x1004]),
            (0, [0x1000, u64::MAX, 0x2000]),
            (0, [0x1000, 16, END]),
            (0, [END, 16, 0x1000]),
        ] {
            assert_eq!(read(version, words), None, "{words:x?}");
        }
    }
}
