//! A thread's desk: where it meets the thread of the proxy that executes its calls.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use insula_abi::lwk as abi;

use super::area::{Area, ProcessPages};

/// Words that a call can be given by address.
pub(super) const SCRATCH_WORDS: usize = 7;

/// What the base answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The call is done.
    Result {
        /// Its result, negative errno included.
        result: u64,
        /// A second one, of some requests.
        value: u64,
    },
    /// In the middle of the call, the base needs a page of the program's.
    Fault {
        /// At which address.
        address: u64,
        /// Whether it is to be written.
        write: bool,
    },
}

/// A desk.
#[derive(Debug)]
pub struct Desk {
    area: Area,
    number: u64,
    turn: u64,
    /// The turn that is to be broken off.
    interrupted: u64,
    /// The doorbell that the base has been told.
    doorbell: u64,
}

impl Desk {
    /// The desk of that number, which nobody else has: see [`Area::desk_is_of`].
    #[must_use]
    pub fn sit(area: Area, number: u64) -> Self {
        let mut desk = Self {
            area,
            number,
            turn: 0,
            interrupted: 0,
            doorbell: 0,
        };
        // It may have been another thread's: its turns go on.
        desk.turn = desk
            .word(offset_of!(abi::Desk, turn))
            .load(Ordering::Acquire);
        desk
    }

    fn word(&self, offset: usize) -> &'static AtomicU64 {
        let per_page = u64::from(abi::DESKS_PER_PAGE);
        let (page, place) = (self.number / per_page, self.number % per_page);
        let at = place as usize * size_of::<abi::Desk>() + offset;
        self.area.word(page, at)
    }

    /// Asks the base for a call or a request.
    pub fn post(&mut self, number: u64, arguments: [u64; 6]) {
        let words = [number].into_iter().chain(arguments);
        for (value, place) in words.zip(0..) {
            let at = offset_of!(abi::Desk, number) + 8 * place;
            self.word(at).store(value, Ordering::Relaxed);
        }
        self.turn = self.turn.wrapping_add(1);
        self.word(offset_of!(abi::Desk, turn))
            .store(self.turn, Ordering::Release);
        // The base's thread says that it sleeps, then looks at the turn; here the other way round.
        fence(Ordering::SeqCst);
        if self
            .word(offset_of!(abi::Desk, base_asleep))
            .load(Ordering::Relaxed)
            != 0
        {
            self.area.ring(self.number);
        }
    }

    /// The answer, once it is there.
    #[must_use]
    pub fn poll(&self) -> Option<Answer> {
        let answered = self
            .word(offset_of!(abi::Desk, answer_turn))
            .load(Ordering::Acquire);
        if answered != self.turn {
            return None;
        }
        // The kind first: an answer to the call may come in the place of a question for a page that
        // took too long, and tells its kind last.
        let answer = |offset| self.word(offset).load(Ordering::Acquire);
        let kind = answer(offset_of!(abi::Desk, kind));
        let result = answer(offset_of!(abi::Desk, result));
        let value = answer(offset_of!(abi::Desk, value));
        Some(match kind {
            abi::ANSWER_FAULT => Answer::Fault {
                address: result,
                write: value != 0,
            },
            _ => Answer::Result { result, value },
        })
    }

    /// Writes words to where calls of this desk can find them: their address in the proxy, if that is
    /// known. They stay until others are written.
    pub fn put_scratch(&self, process: &ProcessPages, words: &[u64]) -> Option<u64> {
        let at = offset_of!(abi::Desk, scratch);
        let desks = process.desks();
        if desks == 0 || words.len() > SCRATCH_WORDS {
            return None;
        }
        for (&word, place) in words.iter().zip(0..) {
            self.word(at + 8 * place).store(word, Ordering::Relaxed);
        }
        Some(desks + self.number * size_of::<abi::Desk>() as u64 + at as u64)
    }

    /// What calls have written there. Anybody of the program may have.
    #[must_use]
    pub fn scratch(&self) -> [u64; SCRATCH_WORDS] {
        let at = offset_of!(abi::Desk, scratch);
        core::array::from_fn(|place| self.word(at + 8 * place).load(Ordering::Relaxed))
    }

    /// Has the base break off what it does for this turn: it then ends as by a signal.
    pub fn interrupt(&mut self) {
        if self.interrupted != self.turn {
            self.interrupted = self.turn;
            self.area.interrupt(self.number);
        }
    }

    /// Says at which doorbell this kernel's core is to be woken, or 0: that it is awake. After the
    /// former the caller looks once more before it sleeps.
    pub fn set_doorbell(&mut self, doorbell: u64) {
        if doorbell == self.doorbell {
            return;
        }
        self.doorbell = doorbell;
        self.word(offset_of!(abi::Desk, lwk_asleep))
            .store(doorbell, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}
