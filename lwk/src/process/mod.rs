//! Programs: their memory, threads, beginning and end.

pub mod areas;
mod begin;
pub mod core_file;
mod deliver;
mod dump;
pub mod elf;
pub mod errno;
mod exec;
mod fork;
mod futex;
pub(crate) mod layout;
mod list;
mod memory;
mod robust;
pub mod rseq;
pub mod scheduling;
pub mod script;
pub mod shared;
pub mod signals;
pub mod space;
pub mod stack;
mod stop;
mod thread;
mod vdso;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::delegation::ProcessPages;
use core_file::LastMoment;
use fork::Embryo;
use memory::{Memory, SpaceGuard};
use signals::{Full, Info, Notice, Signals};

pub(crate) use begin::{ARGUMENTS_MAX, fill, program};
pub(crate) use deliver::deliver;
pub(crate) use dump::dump;
pub(crate) use exec::{become_next, exec};
pub(crate) use fork::{Copying, copy_key, fork};
pub use futex::{Futexes, Key, Waiter};
pub(crate) use futex::{
    change_urgency, expire, hand_over, next_deadline, requeue, set_holder, wait, wait_for_holder,
    wake,
};
pub(crate) use list::{end_with_programs, is_any_ending};
pub use list::{look, tend};
pub(crate) use stop::{mirror_action, park};
pub use thread::{Gone, THREAD_BYTES, Thread};

/// Size of a page, in bytes.
pub const PAGE: u64 = 4096;

/// Of the word of a futex that has a holder: its id, or 0.
pub const HOLDER: u32 = 0x3fff_ffff;
/// The holder has ended without giving it up.
pub const OWNER_DIED: u32 = 0x4000_0000;
/// Somebody waits in the kernel.
pub const WAITERS: u32 = 0x8000_0000;

/// A program that runs.
#[derive(Debug)]
pub struct Process {
    pages: ProcessPages,
    memory: spin::Mutex<Arc<Memory>>,
    /// Its threads that there still are.
    threads: AtomicU32,
    /// Of these, the ones that have not said that they end.
    staying: AtomicU32,
    /// Its threads are to end: by themselves, or since the proxy is gone.
    ending: AtomicBool,
    /// It has itself stopped: its threads run when it goes on.
    stopped: AtomicBool,
    /// The base has said that it stops it, and the threads have been told.
    base_stopped: AtomicBool,
    /// The thread for which all others are to end; 0 for none.
    survivor: AtomicU64,
    /// Ticket of its last release.
    ticket: AtomicU64,
    signals: spin::Mutex<Signals>,
    /// The thread that writes a core file when all others have ended; 0 for none.
    dumper: AtomicU64,
    /// What the others were when they ended.
    last_moments: spin::Mutex<Vec<LastMoment>>,
    /// What it began with, for a core file.
    words: spin::Mutex<Words>,
    /// How long its threads have run, in ticks of the time stamp counter.
    pub used_ticks: AtomicU64,
    /// Limits that it has been given and that are not the base's, by resource.
    limits: spin::Mutex<BTreeMap<u64, Limit>>,
    /// What personality(2) has of it.
    personality: AtomicU64,
    /// It has no thread any more, and somebody frees it.
    freed: AtomicBool,
    /// How many of its threads are copying the process, or having the base do so.
    forking: AtomicU32,
    /// The first thread of a copy whose proxy is not ready yet.
    embryo: spin::Mutex<Option<Box<Embryo>>>,
    /// A thread of the program that this is a copy of waits until it goes its own way.
    holds_parent: AtomicBool,
}

/// What a program may have of something: `struct rlimit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// As much as that.
    pub soft: u64,
    /// It may raise the former to this.
    pub hard: u64,
}

impl Limit {
    /// As it lies in a program's memory.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 16]) -> Self {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        Self {
            soft: word(0),
            hard: word(8),
        }
    }
}

/// What a program began with.
#[derive(Clone, Debug, Default)]
struct Words {
    name: Vec<u8>,
    auxiliary: Vec<u8>,
}

impl Process {
    fn new(pages: ProcessPages, memory: Arc<Memory>) -> Arc<Self> {
        Arc::new(Self {
            pages,
            memory: spin::Mutex::new(memory),
            threads: AtomicU32::new(0),
            staying: AtomicU32::new(0),
            ending: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            base_stopped: AtomicBool::new(false),
            survivor: AtomicU64::new(0),
            ticket: AtomicU64::new(0),
            signals: spin::Mutex::new(Signals::default()),
            dumper: AtomicU64::new(0),
            last_moments: spin::Mutex::new(Vec::new()),
            words: spin::Mutex::new(Words::default()),
            used_ticks: AtomicU64::new(0),
            limits: spin::Mutex::new(BTreeMap::new()),
            personality: AtomicU64::new(0),
            freed: AtomicBool::new(false),
            forking: AtomicU32::new(0),
            embryo: spin::Mutex::new(None),
            holds_parent: AtomicBool::new(false),
        })
    }

    /// Its pages in the delegation area.
    pub fn pages(&self) -> &ProcessPages {
        &self.pages
    }

    /// Its memory. Whoever has it may wait for this core to take an interrupt.
    pub fn space(&self) -> SpaceGuard {
        self.memory().space()
    }

    /// The same, and who else has it.
    pub fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.memory.lock())
    }

    /// Whether its threads are to end.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// Has all its threads end; whether nobody has said so before.
    pub fn end(&self) -> bool {
        let first = !self.ending.swap(true, Ordering::AcqRel);
        if first {
            self.let_parent_go();
            futex::break_off(self.pages.number(), |_| true);
            crate::cores::wake_all();
        }
        first
    }

    /// Has all its threads but one end; whether nobody has said so for another.
    fn leave_only(&self, thread: u64) -> bool {
        let said = self
            .survivor
            .compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed);
        if said.is_ok() && self.threads.load(Ordering::Acquire) > 1 {
            futex::break_off(self.pages.number(), Thread::is_superseded);
            crate::cores::wake_all();
        }
        said.is_ok()
    }

    /// What stands for a futex at an address of its own, which may be in shared memory.
    #[must_use]
    pub fn futex_at(&self, address: u64) -> Key {
        match self.space().shared_at(address) {
            Some((memory, place)) => (futex::SHARED | memory, place),
            None => self.private_futex_at(address),
        }
    }

    /// The same of one that is said to be in memory of its own.
    #[must_use]
    pub fn private_futex_at(&self, address: u64) -> Key {
        (self.memory().number(), address)
    }

    /// Limits that are kept here. Whoever has them waits for nobody.
    pub fn limits(&self) -> spin::MutexGuard<'_, BTreeMap<u64, Limit>> {
        self.limits.lock()
    }

    /// What personality(2) has of it: [`layout::NOT_RANDOM`] or nothing.
    pub fn personality(&self) -> u64 {
        self.personality.load(Ordering::Relaxed)
    }

    /// Changes that; what it was.
    pub fn set_personality(&self, personality: u64) -> u64 {
        self.personality.swap(personality, Ordering::Relaxed)
    }

    /// Its signals. Whoever has them waits for nobody.
    pub fn signals(&self) -> spin::MutexGuard<'_, Signals> {
        self.signals.lock()
    }

    /// Sends it a signal, or one of its threads, which finds it wherever it is.
    ///
    /// # Errors
    /// [`Full`].
    pub fn post(&self, to: Option<u64>, info: Info) -> Result<(), Full> {
        if info.signal == signals::number::CONT {
            self.resume();
        }
        let told = self.signals().post(to, info)?;
        if let Some(notice) = told {
            futex::break_off(self.pages.number(), Thread::can_be_told);
            crate::cores::interrupt(notice.core.load(Ordering::Relaxed));
        }
        Ok(())
    }

    /// Takes the signals that the base has for it, in the order in which they came. What a call brings
    /// with it is there when the call has been answered.
    pub(crate) fn take_sent(&self) {
        if !self.pages.has_signals() {
            return;
        }
        let (told, goes_on) = self.post_sent();
        if goes_on {
            self.resume();
        }
        if told.is_empty() {
            return;
        }
        futex::break_off(self.pages.number(), Thread::can_be_told);
        for notice in told {
            crate::cores::interrupt(notice.core.load(Ordering::Relaxed));
        }
    }

    /// Who has been told of a signal that came, and whether a program that is stopped goes on. Nobody
    /// else takes any meanwhile, so that none comes before another, or is thought to have come to
    /// somebody who has not been told of it.
    fn post_sent(&self) -> (Vec<Arc<Notice>>, bool) {
        let mut signals = self.signals();
        let (mut told, mut goes_on) = (Vec::new(), false);
        while let Some(sent) = self.pages.take_signal() {
            goes_on |= sent.signal == signals::number::CONT as i32;
            told.extend(signals.post_sent(&sent, self.pages.pid()));
        }
        let mut others = self.pages.take_signals();
        while others != 0 {
            let info = Info::sent(others.trailing_zeros() + 1, Info::USER, 0, 0);
            others &= others - 1;
            // There are as many waiting as a program can have.
            told.extend(signals.post(None, info).ok().flatten());
        }
        (told, goes_on)
    }

    fn next_ticket(&self) -> u64 {
        self.ticket.fetch_add(1, Ordering::Relaxed) + 1
    }
}
