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
}

impl Process {
    fn new(pages: ProcessPages, space: Space) -> Arc<Self> {
        Arc::new(Self {
            pages,
            space: spin::Mutex::new(space),
            threads: AtomicU32::new(0),
            ending: AtomicBool::new(false),
            ticket: AtomicU64::new(0),
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

    fn next_ticket(&self) -> u64 {
        self.ticket.fetch_add(1, Ordering::Relaxed) + 1
    }
}
