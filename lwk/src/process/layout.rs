//! Where the parts of a program lie: at random, as on Linux, unless it asks for the same each time
//! (personality(2)).

use super::areas::Rights;
use super::errno::Errno;
use super::space::Place;
use super::{Limit, PAGE, Thread};
use crate::calls::number;
use crate::random;

/// Bytes of a stack to begin with; it grows as far as it may.
pub(super) const STACK_SIZE: u64 = 8 << 20;
/// `RLIMIT_STACK`.
pub(crate) const STACK_LIMIT: u64 = 3;
/// Of personality(2): nothing lies at random (`ADDR_NO_RANDOMIZE`).
pub(crate) const NOT_RANDOM: u64 = 0x4_0000;
/// Room that a stack has in any case until mappings begin; and that it may have at most is so much of
/// all addresses. As on Linux.
const STACK_ROOM_MIN: u64 = 128 << 20;
const STACK_ROOM_PART: (u64, u64) = (5, 6);
/// Where a program that can lie anywhere is put, as on Linux: two thirds up.
const MOVABLE_AT: u64 = 0x5555_5555_4000;
/// With fewer addresses there is no room for distances at random.
const ADDRESSES_MIN: u64 = 1 << 45;

/// How far from their usual places the parts of a program lie: bytes, multiples of the page size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    stack: u64,
    mappings: u64,
    program: u64,
    heap: u64,
}

impl Layout {
    /// As Linux has it on x86-64: bits of pages.
    fn at_random(mut word: impl FnMut() -> u64) -> Self {
        let mut pages = |bits: u32| (word() & ((1 << bits) - 1)) * PAGE;
        Self {
            stack: pages(22),
            mappings: pages(28),
            program: pages(28),
            heap: pages(18),
        }
    }

    /// That of a program which is about to begin.
    pub(super) fn of(thread: &Thread) -> Self {
        let (bottom, top) = thread.process.space().bounds();
        let is_random = thread.process.personality() & NOT_RANDOM == 0;
        match is_random && top - bottom >= ADDRESSES_MIN {
            true => Self::at_random(random::word),
            false => Self::default(),
        }
    }

    /// Where a program is put that can lie anywhere.
    pub(super) fn program(&self) -> u64 {
        MOVABLE_AT + self.program
    }

    /// Where the heap begins of a program that ends there.
    pub(super) fn heap(&self, end: u64) -> u64 {
        end + self.heap
    }

    /// Maps a stack, and says where mappings are put: below all that the stack may ever take. Where it
    /// ends.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub(super) fn map_stack(&self, thread: &mut Thread) -> Result<u64, Errno> {
        let limit = limit(thread);
        let distance = self.mappings;
        let below = self.stack;
        thread.with_space(|space, release| {
            let (bottom, end) = space.bounds();
            let top = ((end - PAGE) & !(PAGE - 1)) - below;
            let place = Place::At(top - STACK_SIZE);
            let rights = Rights::READ | Rights::WRITE;
            let start = space.map(place, STACK_SIZE, rights, release)?;
            space.set_stack((start, top), limit);
            space.set_mappings_end(mappings_end((bottom, top), limit).saturating_sub(distance));
            Ok(top)
        })
    }
}

/// Takes from the stack of a program that is about to begin what it may not have of it; 64 KiB it has
/// in any case, beside what lies there.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub(super) fn trim_stack(thread: &mut Thread) -> Result<(), Errno> {
    const SIZE_MIN: u64 = 64 << 10;
    let (limit, pointer) = (limit(thread), thread.context.registers.rsp);
    thread.with_space(|space, release| {
        let (start, top) = space.stack();
        let begin = top.saturating_sub(limit).min(pointer - SIZE_MIN) & !(PAGE - 1);
        if begin <= start {
            return Ok(());
        }
        space.unmap(start, begin, release)?;
        space.set_stack((begin, top), limit);
        Ok(())
    })
}

/// Where mappings end below a stack that ends at `top`.
fn mappings_end((bottom, top): (u64, u64), limit: u64) -> u64 {
    let (part, whole) = STACK_ROOM_PART;
    let most = ((top - bottom) / whole * part).max(STACK_ROOM_MIN);
    let room = limit.clamp(STACK_ROOM_MIN, most) & !(PAGE - 1);
    top.saturating_sub(room + super::space::STACK_GUARD)
}

/// How large the stack of a thread's program may become.
pub(crate) fn limit(thread: &Thread) -> u64 {
    let limits = thread.process.limits();
    limits
        .get(&STACK_LIMIT)
        .map_or(STACK_SIZE, |limit| limit.soft)
}

/// Learns of the base what holds for a program that it begins, through memory of the program's.
///
/// # Errors
/// What the base answered.
pub(super) fn inherit(thread: &mut Thread, buffer: u64) -> Result<(), Errno> {
    const NONE: u64 = 0xffff_ffff;
    let personality = thread.call(number::PERSONALITY, [NONE, 0, 0, 0, 0, 0])?;
    thread.process.set_personality(personality & NOT_RANDOM);
    thread.call(number::PRLIMIT64, [0, STACK_LIMIT, 0, buffer, 0, 0])?;
    let mut bytes = [0; 16];
    thread.process.space().read(buffer, &mut bytes)?;
    let limit = Limit::from_bytes(&bytes);
    thread.process.limits().insert(STACK_LIMIT, limit);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_where_linux_puts_them() {
        let most = Layout::at_random(|| u64::MAX);
        let gib = |bytes: u64| bytes.next_multiple_of(1 << 30) >> 30;
        assert_eq!([gib(most.stack), gib(most.heap)], [16, 1]);
        assert_eq!([gib(most.mappings), gib(most.program)], [1024, 1024]);
        assert_eq!(Layout::at_random(|| 0), Layout::default());
        assert_eq!(Layout::default().program(), MOVABLE_AT);
        let mut number = 0;
        let different = Layout::at_random(|| {
            number += 1;
            number
        });
        assert_eq!(different.stack + PAGE, different.mappings);
        assert_eq!(different.heap, 4 * PAGE);
    }

    #[test]
    fn a_stack_has_room_for_all_that_it_may_take() {
        const TOP: u64 = 1 << 46;
        let room = |limit| TOP - mappings_end((0, TOP), limit) - super::super::space::STACK_GUARD;
        assert_eq!(room(8 << 20), STACK_ROOM_MIN);
        assert_eq!(room(1 << 30), 1 << 30);
        assert_eq!(room(u64::MAX), (TOP / 6 * 5) & !(PAGE - 1));
    }
}
