//! A process.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::base::process_pages::ProcessPages;
use crate::model::core_file::ThreadDump;
use crate::model::futex::{self, Key};
use crate::model::limits::Limit;
use crate::model::signals::Signals;
use crate::model::signals::set::{NOT_OF_FDS, Set};
use crate::task::mm::{AddressSpaceGuard, Mm};
use crate::task::nascent_child::NascentChild;
use crate::task::spin_guard::SpinGuard;

/// A process.
#[derive(Debug)]
pub struct Process {
    pub(super) pages: ProcessPages,
    pub(super) mm: spin::Mutex<Arc<Mm>>,
    /// Threads that still exist.
    pub(super) threads: AtomicU32,
    /// Threads among them that have not begun to exit.
    pub(super) live_threads: AtomicU32,
    /// All threads shall exit: exit_group(2), a fatal signal, or the proxy has exited.
    pub(super) exiting: AtomicBool,
    /// Stopped by this kernel: no thread runs until SIGCONT.
    pub(super) stopped: AtomicBool,
    /// The base's stop state as the threads know it.
    pub(super) base_stopped: AtomicBool,
    /// Thread that executes another program, for which all others exit; 0 for none.
    pub(super) exec_thread: AtomicU64,
    /// Ticket of the last invalidation.
    pub(super) invalidation_ticket: AtomicU64,
    pub(super) signals: spin::Mutex<Signals>,
    /// Thread that writes the core file when all others have exited; 0 for none.
    pub(super) dumper: AtomicU64,
    /// State of the exited threads, for the core file.
    pub(super) thread_dumps: spin::Mutex<Vec<ThreadDump>>,
    /// Name and auxiliary vector, for the core file.
    pub(super) program_info: spin::Mutex<ProgramInfo>,
    /// CPU time of its threads, in ticks of the time stamp counter.
    pub cpu_ticks: AtomicU64,
    /// Resource limits kept by this kernel, by resource.
    pub(super) limits: spin::Mutex<BTreeMap<u64, Limit>>,
    /// Signals that some signalfd(2) reads: if they are blocked, they are pending for the proxy.
    signals_of_fds: AtomicU64,
    /// Persona of personality(2).
    personality: AtomicU64,
    /// It has no threads any more and is being reaped.
    pub(super) is_being_reaped: AtomicBool,
    /// Number of its threads that are in fork(2).
    pub(super) forks_in_progress: AtomicU32,
    /// First thread of a forked child whose proxy is not ready yet.
    pub(super) nascent_child: spin::Mutex<Option<Box<NascentChild>>>,
    /// The parent is blocked in vfork(2) until this child executes a program or exits.
    pub(super) blocks_parent: AtomicBool,
    /// Part of its addresses that is the proxy's own: see [`Process::region`].
    region: [AtomicU64; 2],
    /// Servers are mounted in it.
    has_mounts: AtomicBool,
    /// The state of the process that it was on the base is not known yet: signals have to wait.
    pub(super) is_taking_over: AtomicBool,
    /// The program leaves the node: its threads wait.
    pub(super) is_leaving: AtomicBool,
    /// State of the threads that wait for that.
    pub(super) left_threads: spin::Mutex<Vec<LeftThread>>,
}

/// A thread that waits until its program has left the node: its state, and its extended state.
pub(super) type LeftThread = (insula_abi::running::Thread, Vec<u8>);

/// What a program was loaded from.
#[derive(Clone, Debug, Default)]
pub(super) struct ProgramInfo {
    /// The path that it was executed by.
    pub(super) name: Vec<u8>,
    /// The absolute path of its file; none if only the base knows it.
    pub(super) executable: Option<Vec<u8>>,
    /// Its auxiliary vector.
    pub(super) auxiliary: Vec<u8>,
}

impl Process {
    /// The absolute path of the program's file, if this kernel knows it.
    pub(crate) fn executable(&self) -> Option<Vec<u8>> {
        self.program_info.lock().executable.clone()
    }

    pub(super) fn new(pages: ProcessPages, mm: Arc<Mm>) -> Arc<Self> {
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
            signals_of_fds: AtomicU64::new(0),
            personality: AtomicU64::new(0),
            is_being_reaped: AtomicBool::new(false),
            forks_in_progress: AtomicU32::new(0),
            nascent_child: spin::Mutex::new(None),
            blocks_parent: AtomicBool::new(false),
            region: [const { AtomicU64::new(0) }; 2],
            has_mounts: AtomicBool::new(false),
            is_taking_over: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            left_threads: spin::Mutex::new(Vec::new()),
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

    /// Whether a thread is in fork(2): the base may have a child that this kernel does not know
    /// yet.
    pub(super) fn is_forking(&self) -> bool {
        self.forks_in_progress.load(Ordering::Acquire) > 0
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

    /// Returns the signals that are to be pending for the proxy while they are blocked.
    #[must_use]
    pub fn signals_of_fds(&self) -> Set {
        self.signals_of_fds.load(Ordering::Relaxed)
    }

    /// Adds to them.
    pub fn add_signals_of_fds(&self, set: Set) {
        self.signals_of_fds
            .fetch_or(set & !NOT_OF_FDS, Ordering::Relaxed);
    }

    /// Returns the part of its addresses that is the proxy's own, in a process that has been one of the
    /// base; else an empty one.
    #[must_use]
    pub fn region(&self) -> (u64, u64) {
        let [start, end] = &self.region;
        (start.load(Ordering::Relaxed), end.load(Ordering::Relaxed))
    }

    /// Sets that part.
    pub(super) fn set_region(&self, (start, end): (u64, u64)) {
        for (word, value) in self.region.iter().zip([start, end]) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Whether file servers are mounted in it.
    #[must_use]
    pub fn has_mounts(&self) -> bool {
        self.has_mounts.load(Ordering::Relaxed)
    }

    /// Notes that file servers are mounted in it.
    pub(super) fn set_mounts(&self) {
        self.has_mounts.store(true, Ordering::Relaxed);
    }

    /// Returns the persona: `ADDR_NO_RANDOMIZE` or 0.
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
}
