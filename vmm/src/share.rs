//! A lightweight kernel that shares the core with the node's: the words about it in the core's area, and
//! its guest, whatever the processor's kind.
//!
//! Protocol: `insula_monitor.h`, `insula_shared_core.h`.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};

use insula_abi::monitor::{MonitorCore, MonitorShare};
use insula_abi::shared_core::SharedCore;

/// Its words.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// Virtual address of the core's area.
    area: u64,
    /// And of the page that the kernel has, too.
    page: u64,
}

/// Where it is entered first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// First instruction.
    pub address: u64,
    /// CR3.
    pub page_table: u64,
    /// RSI.
    pub argument: u64,
    /// RDX.
    pub page: u64,
}

impl Words {
    /// The words of an area, and of a page in it, at virtual addresses.
    ///
    /// # Safety
    /// The base laid both out there, and they stay.
    pub(crate) unsafe fn at(area: u64, page: u64) -> Self {
        Self { area, page }
    }

    fn word(&self, offset: usize) -> &'static AtomicU64 {
        let address = self.area as usize + offset_of!(MonitorCore, share) + offset;
        // SAFETY: the area stays, and its words are only accessed as atomics.
        unsafe { AtomicU64::from_ptr(address as *mut u64) }
    }

    fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Relaxed)
    }

    fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Relaxed);
    }

    fn shared(&self, offset: usize) -> &'static AtomicU64 {
        // SAFETY: the page stays, and its words are only accessed as atomics.
        unsafe { AtomicU64::from_ptr((self.page as usize + offset) as *mut u64) }
    }

    /// Number of the start that the module wants to run; 0: none.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.word(offset_of!(MonitorShare, open))
            .load(Ordering::SeqCst)
    }

    /// Where it starts.
    #[must_use]
    pub fn entry(&self) -> Entry {
        Entry {
            address: self.load(offset_of!(MonitorShare, entry)),
            page_table: self.load(offset_of!(MonitorShare, page_table)),
            argument: self.load(offset_of!(MonitorShare, argument)),
            page: self.load(offset_of!(MonitorShare, page)),
        }
    }

    /// Period, and how much of it the kernel may have.
    #[must_use]
    pub fn bound(&self) -> (u64, u64) {
        (
            self.load(offset_of!(MonitorShare, period)),
            self.load(offset_of!(MonitorShare, budget)),
        )
    }

    /// The module's doorbell.
    #[must_use]
    pub fn doorbell(&self) -> u64 {
        self.load(offset_of!(MonitorShare, doorbell))
    }

    /// Records whether the kernel may be entered: either the module sees that it is, or [`Self::open`]
    /// that it is not to be.
    pub fn set_runs(&self, runs: bool) {
        self.word(offset_of!(MonitorShare, runs))
            .swap(runs.into(), Ordering::SeqCst);
    }

    /// Records the exit that ended it.
    pub fn set_fault(&self, code: u64) {
        self.store(offset_of!(MonitorShare, fault), code);
    }

    /// Records an entry.
    pub fn count_entry(&self, now: u64) {
        let entries = self.load(offset_of!(MonitorShare, entries));
        self.store(offset_of!(MonitorShare, entries), entries + 1);
        if self.load(offset_of!(MonitorShare, entered)) == 0 {
            self.word(offset_of!(MonitorShare, entered))
                .store(now, Ordering::Release);
        }
    }

    /// Sets when the core wants a request. Returns whether the module has to be rung for it. Either it
    /// sees this time, or this sees what it has armed.
    #[must_use]
    pub fn set_wake_at(&self, at: u64) -> bool {
        self.word(offset_of!(MonitorShare, wake_at))
            .swap(at, Ordering::SeqCst);
        let armed = self.word(offset_of!(MonitorShare, armed));
        let is_late = at < armed.load(Ordering::SeqCst);
        if is_late {
            armed.store(at, Ordering::SeqCst);
        }
        is_late
    }

    /// Vector of the kernel's doorbells.
    #[must_use]
    pub fn vector(&self) -> u8 {
        let word = self.shared(offset_of!(SharedCore, revision));
        (word.load(Ordering::Relaxed) >> 32) as u8
    }

    /// Why the kernel has left.
    #[must_use]
    pub fn reason(&self) -> u64 {
        self.shared(offset_of!(SharedCore, reason))
            .load(Ordering::Relaxed)
    }

    /// When it wants to be entered.
    #[must_use]
    pub fn deadline(&self) -> u64 {
        self.shared(offset_of!(SharedCore, deadline))
            .load(Ordering::Relaxed)
    }
}

/// Why it does not run any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedExit {
    /// It has left, by a call.
    Left,
    /// An interrupt of the node's kernel is pending; or its local APIC has delivered it, by this vector.
    Interrupt(Option<u8>),
    /// NMI.
    Nmi,
    /// It has done what it must not, or has failed: the processor's exit code.
    Fault(u64),
}

/// The guest of such a kernel. It is not confined.
pub trait SharedGuest: Sized {
    /// Runs it until its next exit; `interrupted`: also by interrupts, which are the node's kernel's.
    fn run(&mut self, interrupted: bool) -> SharedExit;

    /// Interrupts it by a vector, as soon as it takes interrupts.
    fn interrupt(&mut self, vector: u8);

    /// Withdraws that. Returns whether it has not taken it yet.
    fn withdraw_interrupt(&mut self) -> bool;
}
