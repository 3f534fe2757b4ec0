//! Address space layout: randomized as on Linux, unless disabled by personality(2).

use crate::hw::random;
use crate::model::errno::Errno;
use crate::model::limits::Limit;
use crate::model::number;
use crate::model::vma::{PAGE, Protection};
use crate::task::address_space::{AddressSpace, Placement, STACK_GUARD};
use crate::task::thread::Thread;

/// Initial size of a stack, in bytes.
pub(super) const STACK_SIZE: u64 = 8 << 20;
/// `RLIMIT_STACK`.
pub(crate) const RLIMIT_STACK: u64 = 3;
/// Bit of personality(2): no randomization.
pub(crate) const ADDR_NO_RANDOMIZE: u64 = 0x4_0000;
/// Minimum distance between the stack's end and mappings, in bytes, and the maximum as a fraction
/// of all addresses. As on Linux.
const STACK_GAP_MIN: u64 = 128 << 20;
const STACK_GAP_MAX_FRACTION: (u64, u64) = (5, 6);
/// Base of position-independent programs, as on Linux: two thirds of the address space.
const PIE_BASE: u64 = 0x5555_5555_4000;
/// Smaller address spaces are not randomized.
const ADDRESSES_MIN: u64 = 1 << 45;

/// Random offsets of a program's parts, in bytes; multiples of the page size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    stack: u64,
    mappings: u64,
    program: u64,
    heap: u64,
}

impl Layout {
    /// Chooses offsets of as many random bits as Linux on x86-64.
    fn at_random(mut word: impl FnMut() -> u64) -> Self {
        let mut pages = |bits: u32| (word() & ((1 << bits) - 1)) * PAGE;
        Self {
            stack: pages(22),
            mappings: pages(28),
            program: pages(28),
            heap: pages(18),
        }
    }

    /// Chooses the layout for a program to be loaded.
    pub(super) fn of(thread: &Thread) -> Self {
        let (bottom, top) = thread.process.space().bounds();
        let is_random = thread.process.personality() & ADDR_NO_RANDOMIZE == 0;
        match is_random && top - bottom >= ADDRESSES_MIN {
            true => Self::at_random(random::word),
            false => Self::default(),
        }
    }

    /// Returns the base of a position-independent program.
    pub(super) fn program(&self) -> u64 {
        PIE_BASE + self.program
    }

    /// Returns the start of the heap for a program that ends at `end`.
    pub(super) fn heap(&self, end: u64) -> u64 {
        end + self.heap
    }

    /// Maps a stack, and limits mappings to below what the stack may grow to. Returns the stack's
    /// end.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub(super) async fn map_stack(&self, thread: &mut Thread) -> Result<u64, Errno> {
        let stack_limit = stack_limit(thread);
        let distance = self.mappings;
        let below = self.stack;
        let map = move |space: &mut AddressSpace| {
            let (bottom, end) = space.bounds();
            let top = ((end - PAGE) & !(PAGE - 1)) - below;
            let place = Placement::Fixed(top - STACK_SIZE);
            let protection = Protection::READ | Protection::WRITE;
            let start = space.map(place, STACK_SIZE, protection)?;
            space.set_stack((start, top), stack_limit);
            space.set_mappings_end(
                mappings_end((bottom, top), stack_limit).saturating_sub(distance),
            );
            Ok(top)
        };
        thread.change_space(map).await
    }
}

/// Unmaps the part of a new stack that exceeds the limit, but keeps 64 KiB below its content.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub(super) async fn trim_stack(thread: &mut Thread) -> Result<(), Errno> {
    const SIZE_MIN: u64 = 64 << 10;
    let (stack_limit, pointer) = (stack_limit(thread), thread.context.registers.rsp);
    let trim = move |space: &mut AddressSpace| {
        let (start, top) = space.stack();
        let begin = top.saturating_sub(stack_limit).min(pointer - SIZE_MIN) & !(PAGE - 1);
        if begin <= start {
            return Ok(());
        }
        space.unmap(start, begin)?;
        space.set_stack((begin, top), stack_limit);
        Ok(())
    };
    thread.change_space(trim).await
}

/// Returns the end of mappings for a stack that ends at `top`.
pub(super) fn mappings_end((bottom, top): (u64, u64), stack_limit: u64) -> u64 {
    let (part, whole) = STACK_GAP_MAX_FRACTION;
    let most = ((top - bottom) / whole * part).max(STACK_GAP_MIN);
    let room = stack_limit.clamp(STACK_GAP_MIN, most) & !(PAGE - 1);
    top.saturating_sub(room + STACK_GUARD)
}

/// Returns the stack limit of a thread's process, in bytes.
pub(crate) fn stack_limit(thread: &Thread) -> u64 {
    let limits = thread.process.limits();
    limits
        .get(&RLIMIT_STACK)
        .map_or(STACK_SIZE, |stack_limit| stack_limit.soft)
}

/// Gets persona and stack limit from the base, through a buffer in the program's memory.
///
/// # Errors
/// The base's error.
pub(super) async fn inherit_limits(thread: &mut Thread, buffer: u64) -> Result<(), Errno> {
    const NONE: u64 = 0xffff_ffff;
    let personality = thread
        .remote_syscall(number::PERSONALITY, [NONE, 0, 0, 0, 0, 0])
        .await?;
    thread
        .process
        .set_personality(personality & ADDR_NO_RANDOMIZE);
    thread
        .remote_syscall(number::PRLIMIT64, [0, RLIMIT_STACK, 0, buffer, 0, 0])
        .await?;
    let mut bytes = [0; 16];
    thread.process.space().read(buffer, &mut bytes)?;
    let stack_limit = Limit::from_bytes(&bytes);
    thread.process.limits().insert(RLIMIT_STACK, stack_limit);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_as_on_linux() {
        let most = Layout::at_random(|| u64::MAX);
        let gib = |bytes: u64| bytes.next_multiple_of(1 << 30) >> 30;
        assert_eq!([gib(most.stack), gib(most.heap)], [16, 1]);
        assert_eq!([gib(most.mappings), gib(most.program)], [1024, 1024]);
        assert_eq!(Layout::at_random(|| 0), Layout::default());
        assert_eq!(Layout::default().program(), PIE_BASE);
        let mut number = 0;
        let different = Layout::at_random(|| {
            number += 1;
            number
        });
        assert_eq!(different.stack + PAGE, different.mappings);
        assert_eq!(different.heap, 4 * PAGE);
    }

    #[test]
    fn the_stack_has_room_up_to_its_limit() {
        const TOP: u64 = 1 << 46;
        let room = |stack_limit| {
            TOP - mappings_end((0, TOP), stack_limit) - super::super::address_space::STACK_GUARD
        };
        assert_eq!(room(8 << 20), STACK_GAP_MIN);
        assert_eq!(room(1 << 30), 1 << 30);
        assert_eq!(room(u64::MAX), (TOP / 6 * 5) & !(PAGE - 1));
    }
}
