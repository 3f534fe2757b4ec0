//! Processes: loading, memory, threads, signals, exit.

pub mod address_space;
mod change_lock;
pub mod core_file;
mod dump;
pub mod elf;
pub mod errno;
mod exec;
mod flow;
mod fork;
mod futex;
pub mod initial_stack;
pub(crate) mod layout;
mod loader;
mod mm;
mod process_table;
mod program_file;
mod remote;
mod robust_list;
pub mod rseq;
pub mod scheduling;
pub mod shared_object;
pub mod shebang;
mod signal_delivery;
pub mod signals;
mod spin_guard;
mod stop;
mod thread;
mod vdso;
pub mod vma;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::delegation::ProcessPages;
use core_file::ThreadDump;
use fork::NascentChild;
use mm::{AddressSpaceGuard, Mm};
use signals::{Info, QueueFull, Signals, ThreadHandle};
use spin_guard::SpinGuard;

pub(crate) use dump::dump;
pub(crate) use exec::{exec, finish_exec};
pub use flow::{Flow, Handler};
pub(crate) use fork::{ForkOptions, fork, vfork_key};
pub use futex::{Futexes, Key, Waiter};
pub(crate) use futex::{
    expire, hand_off, next_deadline, requeue, set_owner, update_priority, wait, wait_for_owner,
    wake,
};
pub(crate) use loader::{ARGUMENTS_MAX, load_program, read_file_into};
pub use mm::Step;
pub(crate) use process_table::{is_any_exiting, power_off_after_last};
pub use process_table::{reap, service_pending};
pub use remote::ProxyExited;
pub(crate) use signal_delivery::deliver_signals;
pub(crate) use stop::{mirror_action, restore_proxy_handler, stop, wait_while_stopped};
pub use thread::{THREAD_BYTES, Thread};

/// Size of a page, in bytes.
pub const PAGE: u64 = 4096;

/// Mask of the owner's thread id in a PI futex; 0 if it is free.
pub const TID_MASK: u32 = 0x3fff_ffff;
/// The owner exited without releasing the futex.
pub const OWNER_DIED: u32 = 0x4000_0000;
/// Threads wait in the kernel.
pub const WAITERS: u32 = 0x8000_0000;

/// A process.
#[derive(Debug)]
pub struct Process {
    pages: ProcessPages,
    mm: spin::Mutex<Arc<Mm>>,
    /// Threads that still exist.
    threads: AtomicU32,
    /// Threads among them that have not begun to exit.
    live_threads: AtomicU32,
    /// All threads shall exit: exit_group(2), a fatal signal, or the proxy has exited.
    exiting: AtomicBool,
    /// Stopped by this kernel: no thread runs until SIGCONT.
    stopped: AtomicBool,
    /// The base's stop state as the threads know it.
    base_stopped: AtomicBool,
    /// Thread that executes another program, for which all others exit; 0 for none.
    exec_thread: AtomicU64,
    /// Ticket of the last invalidation.
    invalidation_ticket: AtomicU64,
    signals: spin::Mutex<Signals>,
    /// Thread that writes the core file when all others have exited; 0 for none.
    dumper: AtomicU64,
    /// State of the exited threads, for the core file.
    thread_dumps: spin::Mutex<Vec<ThreadDump>>,
    /// Name and auxiliary vector, for the core file.
    program_info: spin::Mutex<ProgramInfo>,
    /// CPU time of its threads, in ticks of the time stamp counter.
    pub cpu_ticks: AtomicU64,
    /// Resource limits kept by this kernel, by resource.
    limits: spin::Mutex<BTreeMap<u64, Limit>>,
    /// Persona of personality(2).
    personality: AtomicU64,
    /// It has no threads any more and is being reaped.
    is_being_reaped: AtomicBool,
    /// Number of its threads that are in fork(2).
    forks_in_progress: AtomicU32,
    /// First thread of a forked child whose proxy is not ready yet.
    nascent_child: spin::Mutex<Option<Box<NascentChild>>>,
    /// The parent is blocked in vfork(2) until this child executes a program or exits.
    blocks_parent: AtomicBool,
}

/// Resource limit: `struct rlimit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Current limit.
    pub soft: u64,
    /// Maximum to which the program may raise the former.
    pub hard: u64,
}

impl Limit {
    /// Decodes it from a program's memory.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 16]) -> Self {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        Self {
            soft: word(0),
            hard: word(8),
        }
    }
}

/// Name and auxiliary vector of a program.
#[derive(Clone, Debug, Default)]
struct ProgramInfo {
    name: Vec<u8>,
    auxiliary: Vec<u8>,
}

impl Process {
    fn new(pages: ProcessPages, mm: Arc<Mm>) -> Arc<Self> {
        Arc::new(Self {
            pages,
            mm: spin::Mutex::new(mm),
            threads: AtomicU32::new(0),
            live_threads: AtomicU32::new(0),
            exiting: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            base_stopped: AtomicBool::new(false),
            exec_thread: AtomicU64::new(0),
            invalidation_ticket: AtomicU64::new(0),
            signals: spin::Mutex::new(Signals::default()),
            dumper: AtomicU64::new(0),
            thread_dumps: spin::Mutex::new(Vec::new()),
            program_info: spin::Mutex::new(ProgramInfo::default()),
            cpu_ticks: AtomicU64::new(0),
            limits: spin::Mutex::new(BTreeMap::new()),
            personality: AtomicU64::new(0),
            is_being_reaped: AtomicBool::new(false),
            forks_in_progress: AtomicU32::new(0),
            nascent_child: spin::Mutex::new(None),
            blocks_parent: AtomicBool::new(false),
        })
    }

    /// Returns its pages in the delegation area.
    pub fn pages(&self) -> &ProcessPages {
        &self.pages
    }

    /// Locks its address space. The owner of the lock may wait for this core to handle an IPI.
    pub fn space(&self) -> AddressSpaceGuard {
        self.mm().space()
    }

    /// Returns its memory, which other processes may share.
    pub fn mm(&self) -> Arc<Mm> {
        Arc::clone(&self.mm.lock())
    }

    /// Whether all its threads shall exit.
    #[must_use]
    pub fn is_exiting(&self) -> bool {
        self.exiting.load(Ordering::Acquire)
    }

    /// Makes all its threads exit. Returns whether this is the first call.
    pub fn begin_exit(&self) -> bool {
        let first = !self.exiting.swap(true, Ordering::AcqRel);
        if first {
            self.complete_vfork();
            futex::interrupt_waiters(self.pages.number(), |_| true);
            crate::cores::wake_all();
        }
        first
    }

    /// Makes all its threads but one exit. Returns whether no other thread did so before.
    fn kill_other_threads(&self, thread: u64) -> bool {
        let claimed =
            self.exec_thread
                .compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed);
        if claimed.is_ok() && self.threads.load(Ordering::Acquire) > 1 {
            futex::interrupt_waiters(self.pages.number(), Thread::is_killed_by_exec);
            crate::cores::wake_all();
        }
        claimed.is_ok()
    }

    /// Returns the key of a shared futex, which may be in a shared-memory object.
    #[must_use]
    pub fn futex_at(&self, address: u64) -> Key {
        match self.space().object_at(address) {
            Some((memory, place)) => (futex::SHARED | memory, place),
            None => self.private_futex_at(address),
        }
    }

    /// Returns the key of a private futex.
    #[must_use]
    pub fn private_futex_at(&self, address: u64) -> Key {
        (self.mm().id(), address)
    }

    /// Locks the limits kept here. Never waits while they are locked.
    pub fn limits(&self) -> SpinGuard<spin::MutexGuard<'_, BTreeMap<u64, Limit>>> {
        SpinGuard::new(self.limits.lock())
    }

    /// Returns the persona: [`layout::ADDR_NO_RANDOMIZE`] or 0.
    pub fn personality(&self) -> u64 {
        self.personality.load(Ordering::Relaxed)
    }

    /// Sets the persona. Returns the old one.
    pub fn set_personality(&self, personality: u64) -> u64 {
        self.personality.swap(personality, Ordering::Relaxed)
    }

    /// Locks its signals. Never waits while they are locked.
    pub fn signals(&self) -> SpinGuard<spin::MutexGuard<'_, Signals>> {
        SpinGuard::new(self.signals.lock())
    }

    /// Sends a signal to the process or one of its threads, and wakes the thread that shall handle
    /// it.
    ///
    /// # Errors
    /// [`QueueFull`].
    pub fn send_signal(&self, to: Option<u64>, info: Info) -> Result<(), QueueFull> {
        if info.signal == signals::number::CONT {
            self.resume();
        }
        let notified = self.signals().send(to, info)?;
        if let Some(handle) = notified {
            futex::interrupt_waiters(self.pages.number(), Thread::is_wakeable_by_signal);
            crate::cores::interrupt(handle.core.load(Ordering::Relaxed));
        }
        Ok(())
    }

    /// Takes the signals that the base has queued, in their order. A signal caused by a delegated
    /// call is queued before the call's reply.
    pub(crate) fn take_base_signals(&self) {
        if !self.pages.has_signals() {
            return;
        }
        let (notified, continues) = self.queue_base_signals();
        if continues {
            self.resume();
        }
        if notified.is_empty() {
            return;
        }
        futex::interrupt_waiters(self.pages.number(), Thread::is_wakeable_by_signal);
        for handle in notified {
            crate::cores::interrupt(handle.core.load(Ordering::Relaxed));
        }
    }

    /// Dequeues the base's signals under one lock, so that their order is kept and each is seen
    /// only after its thread is notified. Returns the threads to wake, and whether there was a
    /// SIGCONT.
    fn queue_base_signals(&self) -> (Vec<Arc<ThreadHandle>>, bool) {
        let mut signals = self.signals();
        let (mut notified, mut continues) = (Vec::new(), false);
        while let Some(sent) = self.pages.dequeue_signal() {
            continues |= sent.signal == signals::number::CONT as i32;
            notified.extend(signals.send_from_base(&sent, self.pages.pid()));
        }
        let mut others = self.pages.take_overflowed_signals();
        while others != 0 {
            let info = Info::sent(others.trailing_zeros() + 1, Info::USER, 0, 0);
            others &= others - 1;
            // The queue may be full, as on Linux.
            notified.extend(signals.send(None, info).ok().flatten());
        }
        (notified, continues)
    }
}
