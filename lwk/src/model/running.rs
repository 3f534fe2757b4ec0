//! State of a running process that the base hands over (insula_running.h).
//!
//! The process itself could have forged it: what is wrong in it must harm that process only.

use insula_abi::running as abi;
use insula_bare::SegmentBases;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::model::elf::FormatError;
use crate::model::signals::action::Action;
use crate::model::signals::set::UNBLOCKABLE;
use crate::model::signals::timer::Timer;
use crate::model::vma::{PAGE, Protection, VMAS_MAX, Vma, VmaFlags};

/// Maximum size of the state, in bytes.
pub const SIZE_MAX: u64 = 64 << 20;

/// Range of addresses.
pub type Range = (u64, u64);

/// State of a running process.
#[derive(Debug)]
pub struct Running<'a> {
    /// The proxy's own part of the addresses.
    pub region: Range,
    /// The heap of brk(2).
    pub heap: Range,
    /// The stack that grows, if there is one.
    pub stack: Option<Range>,
    /// Signals that some signalfd(2) reads.
    pub signals_of_fds: u64,
    actions: [abi::Action; abi::SIGNALS],
    vmas: &'a [u8],
    timers: &'a [u8],
    threads: &'a [u8],
    extended: &'a [u8],
    extended_size: usize,
    /// The program's auxiliary vector.
    pub auxiliary: &'a [u8],
    /// The path of its file.
    pub path: &'a [u8],
}

/// A thread, and its extended state.
#[derive(Clone, Copy, Debug)]
pub struct RunningThread<'a> {
    /// All but that.
    pub state: abi::Thread,
    /// As XSAVE has it in memory.
    pub extended: &'a [u8],
}

impl<'a> Running<'a> {
    /// Decodes and checks it, for a process with these addresses.
    ///
    /// # Errors
    /// [`FormatError`].
    pub fn parse(block: &'a [u8], bounds: Range) -> Result<Self, FormatError> {
        let (head, rest) = abi::Running::read_from_prefix(block).map_err(|_| TOO_SHORT)?;
        let (vmas, rest) = split_array::<abi::Vma>(rest, head.vmas)?;
        let (timers, rest) = split_array::<abi::Timer>(rest, head.timers)?;
        let (threads, rest) = split_array::<abi::Thread>(rest, head.threads)?;
        let extended_size = head.extended_size as usize;
        let all_extended = (head.threads as usize).checked_mul(extended_size);
        let all_extended = all_extended.ok_or(TOO_SHORT)?;
        let (extended, rest) = rest.split_at_checked(all_extended).ok_or(TOO_SHORT)?;
        let (auxiliary, path) = split_array::<u8>(rest, head.auxiliary_size)?;
        if head.size != block.len() as u64 || path.len() != head.path_size as usize {
            return Err(FormatError("its state has another size than it says"));
        }
        let stack = (head.stack_start, head.stack_end);
        let running = Self {
            region: (head.region_start, head.region_end),
            heap: (head.heap_start, head.heap_end),
            stack: (stack != (0, 0)).then_some(stack),
            signals_of_fds: head.signals_of_fds,
            actions: head.actions,
            vmas,
            timers,
            threads,
            extended,
            extended_size,
            auxiliary,
            path,
        };
        running.check(bounds)?;
        Ok(running)
    }

    fn check(&self, bounds: Range) -> Result<(), FormatError> {
        check_range(self.region, bounds)?;
        if self.heap.0 > self.heap.1 || self.heap.1 > bounds.1 {
            return Err(FormatError("its heap is outside of its addresses"));
        }
        if self.vmas().count() > VMAS_MAX / 2 {
            return Err(FormatError("it has too many mappings"));
        }
        let mut end = 0;
        for vma in self.vmas() {
            check_range((vma.start, vma.end), bounds)?;
            let is_of_proxy = vma.start < self.region.1 && self.region.0 < vma.end;
            if vma.start < end || is_of_proxy {
                return Err(FormatError("its mappings overlap"));
            }
            end = vma.end;
        }
        if let Some((start, stack_end)) = self.stack
            && !self
                .vmas()
                .any(|vma| (vma.start, vma.end) == (start, stack_end))
        {
            return Err(FormatError("its stack is not mapped"));
        }
        let is_sound = |thread: RunningThread| {
            let state = thread.state;
            SegmentBases::is_valid(state.fs_base) && SegmentBases::is_valid(state.gs_base)
        };
        match self.threads().next().is_some() && self.threads().all(is_sound) {
            true => Ok(()),
            false => Err(FormatError("its threads are malformed")),
        }
    }

    /// Returns its mappings, ascending: all are base mappings.
    pub fn vmas(&self) -> impl Iterator<Item = Vma> + '_ {
        elements::<abi::Vma>(self.vmas).map(|vma| Vma {
            start: vma.start,
            end: vma.end,
            protection: protection(vma.protection),
            object: None,
            flags: flags(vma.flags),
        })
    }

    /// Returns its POSIX timers.
    pub fn timers(&self) -> impl Iterator<Item = Timer> + '_ {
        elements::<abi::Timer>(self.timers).map(|timer| Timer {
            id: timer.id,
            to_thread: timer.to_thread != 0,
        })
    }

    /// Returns its threads, the thread group leader first.
    pub fn threads(&self) -> impl Iterator<Item = RunningThread<'a>> + '_ {
        let all = elements::<abi::Thread>(self.threads).enumerate();
        all.map(|(index, state)| {
            let at = index * self.extended_size;
            RunningThread {
                state,
                extended: &self.extended[at..at + self.extended_size],
            }
        })
    }

    /// Returns the actions for its signals, from signal 1 on.
    pub fn actions(&self) -> impl Iterator<Item = (u32, Action)> + '_ {
        let signals = (1..).zip(&self.actions);
        signals.map(|(signal, action)| {
            let action = Action {
                handler: action.handler,
                flags: action.flags,
                restorer: action.restorer,
                mask: action.mask & !UNBLOCKABLE,
            };
            (signal, action)
        })
    }
}

const TOO_SHORT: FormatError = FormatError("its state is too short");

/// Splits an array off the front of bytes.
fn split_array<T>(bytes: &[u8], count: u32) -> Result<(&[u8], &[u8]), FormatError> {
    let size = size_of::<T>()
        .checked_mul(count as usize)
        .ok_or(TOO_SHORT)?;
    bytes.split_at_checked(size).ok_or(TOO_SHORT)
}

fn elements<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> impl Iterator<Item = T> {
    let whole = bytes.chunks_exact(size_of::<T>());
    whole.filter_map(|bytes| T::read_from_bytes(bytes).ok())
}

fn check_range((start, end): Range, (bottom, top): Range) -> Result<(), FormatError> {
    let is_aligned = start.is_multiple_of(PAGE) && end.is_multiple_of(PAGE);
    match is_aligned && bottom <= start && start < end && end <= top {
        true => Ok(()),
        false => Err(FormatError("a mapping is outside of its addresses")),
    }
}

/// On this processor, what can be written or executed can be read.
fn protection(bits: u32) -> Protection {
    let protection = Protection::from_bits_truncate(bits as u8);
    match protection.is_empty() {
        true => protection,
        false => protection | Protection::READ,
    }
}

fn flags(given: u32) -> VmaFlags {
    let mut flags = VmaFlags::BASE;
    for (bit, flag) in [
        (abi::SHARED, VmaFlags::SHARED),
        (abi::DONT_FORK, VmaFlags::DONT_FORK),
        (abi::WIPE_ON_FORK, VmaFlags::WIPE_ON_FORK),
        (abi::DONT_DUMP, VmaFlags::DONT_DUMP),
        (abi::LOCKED, VmaFlags::LOCKED),
    ] {
        flags.set(flag, given & bit != 0);
    }
    // What it has written is not known.
    flags.set(VmaFlags::MAY_BE_DIRTY, given & abi::SHARED == 0);
    flags
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use zerocopy::{FromZeros, IntoBytes};

    use super::*;

    const BOUNDS: Range = (0x1_0000, 0x7fff_ffff_f000);
    const EXTENDED: usize = 576;

    fn vma(start: u64, end: u64) -> abi::Vma {
        abi::Vma {
            start,
            end,
            protection: 2,
            flags: 0,
        }
    }

    /// A block of one thread with these mappings, its head changed by a function.
    fn block(vmas: &[abi::Vma], change: impl FnOnce(&mut abi::Running)) -> Vec<u8> {
        let threads = [abi::Thread {
            id: 7,
            ..Default::default()
        }];
        let mut head = abi::Running::new_zeroed();
        head.region_start = 0x6800_0000_0000;
        head.region_end = 0x6801_0000_0000;
        head.heap_start = 0x50_0000;
        head.heap_end = 0x52_0000;
        head.vmas = vmas.len() as u32;
        head.threads = 1;
        head.extended_size = EXTENDED as u32;
        (head.auxiliary_size, head.path_size) = (4, 2);
        let fixed = size_of::<abi::Running>() + size_of_val(vmas) + size_of_val(&threads);
        head.size = (fixed + EXTENDED + 6) as u64;
        change(&mut head);
        let mut bytes = head.as_bytes().to_vec();
        bytes.extend_from_slice(vmas.as_bytes());
        bytes.extend_from_slice(threads.as_bytes());
        bytes.extend(vec![3; EXTENDED]);
        bytes.extend([4, 4, 4, 4, 5, 5]);
        bytes
    }

    #[test]
    fn a_state_is_decoded() {
        let vmas = [
            vma(0x40_0000, 0x50_0000),
            abi::Vma {
                flags: abi::SHARED | abi::DONT_FORK,
                protection: 0,
                ..vma(0x50_0000, 0x60_0000)
            },
        ];
        let bytes = block(&vmas, |head| {
            (head.stack_start, head.stack_end) = (0x40_0000, 0x50_0000);
            head.actions[9].handler = 0x1234;
        });
        let running = Running::parse(&bytes, BOUNDS).unwrap();
        let found: Vec<_> = running
            .vmas()
            .map(|vma| (vma.protection, vma.flags))
            .collect();
        let writable = Protection::READ | Protection::WRITE;
        assert_eq!(
            found,
            [
                (writable, VmaFlags::BASE | VmaFlags::MAY_BE_DIRTY),
                (
                    Protection::empty(),
                    VmaFlags::BASE | VmaFlags::SHARED | VmaFlags::DONT_FORK
                ),
            ]
        );
        assert_eq!(running.stack, Some((0x40_0000, 0x50_0000)));
        let threads: Vec<_> = running.threads().collect();
        assert_eq!((threads.len(), threads[0].state.id), (1, 7));
        assert_eq!(threads[0].extended, [3; EXTENDED]);
        assert_eq!(
            (running.auxiliary, running.path),
            (&[4; 4][..], &[5; 2][..])
        );
        let handled: Vec<_> = running
            .actions()
            .filter(|(_, action)| action.handler != 0)
            .map(|(signal, action)| (signal, action.handler))
            .collect();
        assert_eq!(handled, [(10, 0x1234)]);
    }

    #[test]
    fn a_forged_state_is_refused() {
        let good = [vma(0x40_0000, 0x50_0000), vma(0x50_0000, 0x60_0000)];
        let region: Range = (0x6800_0000_0000, 0x6801_0000_0000);
        for vmas in [
            [vma(0x40_0000, 0x50_1000), vma(0x50_0000, 0x60_0000)],
            [vma(0x40_0000, 0x50_0000), vma(0x50_0000, 0x50_0000)],
            [vma(0x40_0001, 0x50_0000), vma(0x50_0000, 0x60_0000)],
            [vma(0x1000, 0x50_0000), vma(0x50_0000, 0x60_0000)],
            [vma(0x40_0000, 0x50_0000), vma(0x50_0000, 0x8000_0000_0000)],
            [vma(0x40_0000, 0x50_0000), vma(region.1 - PAGE, region.1)],
        ] {
            assert!(Running::parse(&block(&vmas, |_| {}), BOUNDS).is_err());
        }
        let changes: [fn(&mut abi::Running); 10] = [
            |head| head.auxiliary_size = 7,
            |head| head.path_size = 1,
            |head| head.size -= 1,
            |head| head.threads = 2,
            |head| head.threads = 0,
            |head| head.vmas = u32::MAX,
            |head| head.extended_size = u32::MAX,
            |head| head.heap_end = 0,
            |head| head.region_end = head.region_start,
            |head| (head.stack_start, head.stack_end) = (0x40_0000, 0x40_1000),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let bytes = block(&good, change);
            assert!(Running::parse(&bytes, BOUNDS).is_err(), "{number}");
        }
        assert!(Running::parse(&block(&good, |_| {}), BOUNDS).is_ok());
        assert!(Running::parse(&[0; 100], BOUNDS).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, at in 0_usize..3000, byte: u8) {
            let _ = Running::parse(&bytes, BOUNDS);
            let mut bytes = block(&[vma(0x40_0000, 0x50_0000)], |_| {});
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(running) = Running::parse(&bytes, BOUNDS) {
                running.threads().for_each(drop);
                running.vmas().for_each(drop);
            }
        }
    }
}
