//! Programs: their memory, threads, beginning and end.

pub mod areas;
mod begin;
pub mod elf;
pub mod errno;
mod futex;
mod list;
pub mod space;
pub mod stack;
mod thread;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use insula_bare::cpu;

use crate::delegation::ProcessPages;
use space::Space;

pub(crate) use begin::{fill, program};
pub use futex::{Futexes, Key, Waiter};
pub(crate) use futex::{expire, next_deadline, requeue, wait, wake};
pub use list::{look, tend};
pub use thread::{Gone, Thread};

/// Size of a page, in bytes.
pub const PAGE: u64 = 4096;

/// A program that runs.
#[derive(Debug)]
pub struct Process {
    pages: ProcessPages,
    space: spin::Mutex<Space>,
    /// Its threads that there still are.
    threads: AtomicU32,
    /// Its threads are to end: by themselves, or since the proxy is gone.
    ending: AtomicBool,
    /// Ticket of its last release.
    ticket: AtomicU64,
    /// The signal that ends it; 0 as long as there is none.
    fatal: AtomicU64,
}

/// Signals that by themselves end no program: SIGCHLD, SIGCONT, those that stop it (which is not
/// done yet), SIGURG, SIGWINCH.
const HARMLESS: u64 = signal_set(&[17, 18, 19, 20, 21, 22, 23, 28]);

const fn signal_set(signals: &[u32]) -> u64 {
    let (mut set, mut at) = (0, 0);
    while at < signals.len() {
        set |= 1 << (signals[at] - 1);
        at += 1;
    }
    set
}

impl Process {
    fn new(pages: ProcessPages, space: Space) -> Arc<Self> {
        Arc::new(Self {
            pages,
            space: spin::Mutex::new(space),
            threads: AtomicU32::new(0),
            ending: AtomicBool::new(false),
            ticket: AtomicU64::new(0),
            fatal: AtomicU64::new(0),
        })
    }

    /// Its pages in the delegation area.
    pub fn pages(&self) -> &ProcessPages {
        &self.pages
    }

    /// Its memory. Whoever has it may wait for this core to take an interrupt.
    pub fn space(&self) -> spin::MutexGuard<'_, Space> {
        loop {
            if let Some(space) = self.space.try_lock() {
                return space;
            }
            cpu::take_interrupts();
            cpu::relax();
        }
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
            futex::wake_process(self.pages.number());
            crate::cores::wake_all();
        }
        first
    }

    /// Takes the signals that the base has for it. No program can catch one yet, so one of them ends
    /// it, unless all are harmless.
    fn take_signals(&self) {
        let fatal = self.pages.take_signals() & !HARMLESS;
        if fatal == 0 {
            return;
        }
        let signal = u64::from(fatal.trailing_zeros()) + 1;
        self.fatal.store(signal, Ordering::Release);
        futex::wake_process(self.pages.number());
        crate::cores::wake_all();
    }

    /// The signal that is to end it.
    #[must_use]
    pub fn fatal_signal(&self) -> Option<u64> {
        Some(self.fatal.load(Ordering::Acquire)).filter(|&signal| signal != 0)
    }

    fn next_ticket(&self) -> u64 {
        self.ticket.fetch_add(1, Ordering::Relaxed) + 1
    }
}
