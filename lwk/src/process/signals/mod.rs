//! Signals of a process: actions, masks, pending signals, and which thread handles a signal.
//!
//! Pure: functions return the thread to wake, and the caller does so. [`frame`] is the layout of
//! signal frames.
//!
//! Source: signal(7) of Linux, and its include/uapi/asm-generic/signal.h and siginfo.h.

pub mod frame;
mod from_base;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::scheduling::{CoreSet, Priority};
use crate::memory::reserve_in;
pub use from_base::Timer;

/// Number of signals, numbered from 1.
pub const SIGNALS: u32 = 64;
/// First real-time signal: these are queued as often as they are sent.
const REALTIME_MIN: u32 = 32;
/// Maximum number of signals in a queue; on Linux the limit is per user.
const QUEUE_MAX: usize = 1024;

/// Numbers of signals that the kernel handles specially.
#[expect(missing_docs, reason = "they are the usual names")]
pub mod number {
    pub const QUIT: u32 = 3;
    pub const ILL: u32 = 4;
    pub const TRAP: u32 = 5;
    pub const ABRT: u32 = 6;
    pub const BUS: u32 = 7;
    pub const FPE: u32 = 8;
    pub const KILL: u32 = 9;
    pub const SEGV: u32 = 11;
    pub const PIPE: u32 = 13;
    pub const CHLD: u32 = 17;
    pub const CONT: u32 = 18;
    pub const STOP: u32 = 19;
    pub const TSTP: u32 = 20;
    pub const TTIN: u32 = 21;
    pub const TTOU: u32 = 22;
    pub const URG: u32 = 23;
    pub const XCPU: u32 = 24;
    pub const XFSZ: u32 = 25;
    pub const WINCH: u32 = 28;
    pub const SYS: u32 = 31;
}

/// Set of signals: bit number - 1 for each.
pub type Set = u64;

/// Returns the set with one signal.
#[must_use]
pub const fn bit(signal: u32) -> Set {
    1 << (signal - 1)
}

const fn set(signals: &[u32]) -> Set {
    let (mut all, mut at) = (0, 0);
    while at < signals.len() {
        all |= bit(signals[at]);
        at += 1;
    }
    all
}

/// Signals that cannot be caught, blocked or ignored.
pub const UNBLOCKABLE: Set = set(&[number::KILL, number::STOP]);
/// Signals raised by an instruction, which are handled before all others.
const SYNCHRONOUS: Set = set(&[
    number::ILL,
    number::TRAP,
    number::BUS,
    number::FPE,
    number::SEGV,
    number::SYS,
]);
const DEFAULT_IGNORED: Set = set(&[number::CHLD, number::CONT, number::URG, number::WINCH]);
/// Signals that stop a process.
pub const STOP_SIGNALS: Set = set(&[number::STOP, number::TSTP, number::TTIN, number::TTOU]);
/// Signals by which a terminal stops background processes. The base's terminal checks itself
/// whether they are blocked or ignored.
pub const TTY_STOP: Set = set(&[number::TTIN, number::TTOU]);
const DEFAULT_CORE_DUMP: Set =
    SYNCHRONOUS | set(&[number::QUIT, number::ABRT, number::XCPU, number::XFSZ]);

/// Action for a signal: the kernel's `struct sigaction`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// Address of the handler, [`Action::DEFAULT`] or [`Action::IGNORE`].
    pub handler: u64,
    /// Flags, see below.
    pub flags: u64,
    /// Return address of the handler.
    pub restorer: u64,
    /// Signals blocked while the handler runs.
    pub mask: Set,
}

impl Action {
    /// `SIG_DFL`.
    pub const DEFAULT: u64 = 0;
    /// `SIG_IGN`.
    pub const IGNORE: u64 = 1;
    /// `SA_RESTORER`: a restorer is given, as required on x86-64.
    pub const RESTORER: u64 = 0x0400_0000;
    /// `SA_ONSTACK`: run on the alternate stack.
    pub const ON_STACK: u64 = 0x0800_0000;
    /// `SA_RESTART`: restart the interrupted call.
    pub const RESTART: u64 = 0x1000_0000;
    /// `SA_NODEFER`: do not block the signal itself.
    pub const NO_DEFER: u64 = 0x4000_0000;
    /// `SA_RESETHAND`: reset to the default before the handler runs.
    pub const RESET: u64 = 0x8000_0000;
    /// Size in the program's memory, in bytes.
    pub const SIZE: usize = 32;

    /// Decodes it from the program's memory.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let word =
            |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[8 * at + index]));
        Self {
            handler: word(0),
            flags: word(1),
            restorer: word(2),
            mask: word(3) & !UNBLOCKABLE,
        }
    }

    /// Encodes it for the program's memory.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let words = [self.handler, self.flags, self.restorer, self.mask].map(u64::to_le_bytes);
        core::array::from_fn(|at| words[at / 8][at % 8])
    }
}

/// Information about a signal: the used part of `siginfo_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// `si_signo`.
    pub signal: u32,
    /// `si_errno`.
    pub errno: i32,
    /// `si_code`: origin or reason.
    pub code: i32,
    /// Sender and value, or an address.
    pub fields: [u64; 4],
}

impl Info {
    /// `SI_USER`: by kill(2).
    pub const USER: i32 = 0;
    /// `SI_KERNEL`.
    pub const KERNEL: i32 = 0x80;
    /// `SI_TIMER`: by a POSIX timer.
    pub const TIMER: i32 = -2;
    /// `SI_TKILL`: by tgkill(2).
    pub const TKILL: i32 = -6;
    /// Size in the program's memory, in bytes.
    pub const SIZE: usize = 48;

    /// Describes a signal sent by a process.
    #[must_use]
    pub fn sent(signal: u32, code: i32, pid: u64, uid: u64) -> Self {
        Self {
            signal,
            errno: 0,
            code,
            fields: [pid & 0xffff_ffff | uid << 32, 0, 0, 0],
        }
    }

    /// Describes a signal raised by an instruction.
    #[must_use]
    pub fn fault(signal: u32, code: i32, address: u64) -> Self {
        Self {
            signal,
            errno: 0,
            code,
            fields: [address, 0, 0, 0],
        }
    }

    /// Decodes it from the program's memory.
    #[must_use]
    pub fn from_bytes(signal: u32, bytes: &[u8; Self::SIZE]) -> Self {
        let half = |at: usize| i32::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        Self {
            signal,
            errno: half(4),
            code: half(8),
            fields: [16, 24, 32, 40].map(word),
        }
    }

    /// Encodes it for the program's memory.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let signal = (self.signal as i32).to_le_bytes();
        for (at, half) in [
            (0, signal),
            (4, self.errno.to_le_bytes()),
            (8, self.code.to_le_bytes()),
        ] {
            bytes[at..at + 4].copy_from_slice(&half);
        }
        for (place, word) in bytes[16..].chunks_exact_mut(8).zip(self.fields) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// State of a thread that others read and write while it runs or sleeps: pending signal, core,
/// priority, affinity.
#[derive(Debug)]
pub struct ThreadHandle {
    signal_pending: AtomicBool,
    /// Copy of the thread's signal mask, readable without locking the signals.
    blocked: AtomicU64,
    /// Core that the thread belongs to.
    pub core: AtomicU32,
    priority: AtomicU32,
    /// Highest real-time priority among waiters for locks that the thread owns; 0 for none.
    boost: AtomicU32,
    cores: spin::Mutex<CoreSet>,
}

impl ThreadHandle {
    fn new(blocked: Set, core: u32, (priority, cores): (Priority, CoreSet)) -> Arc<Self> {
        Arc::new(Self {
            signal_pending: AtomicBool::new(false),
            blocked: AtomicU64::new(blocked),
            core: AtomicU32::new(core),
            priority: AtomicU32::new(priority.to_word()),
            boost: AtomicU32::new(0),
            cores: spin::Mutex::new(cores),
        })
    }

    /// Returns the effective priority, boosted by waiters.
    #[must_use]
    pub fn priority(&self) -> Priority {
        let boost = self.boost.load(Ordering::Relaxed);
        self.base_priority().boosted_to(boost)
    }

    /// Returns the priority without a boost, which is what programs see.
    #[must_use]
    pub fn base_priority(&self) -> Priority {
        Priority::from_word(self.priority.load(Ordering::Relaxed))
    }

    /// Sets the boost; 0 for none. Returns whether it has changed.
    pub fn set_boost(&self, realtime: u32) -> bool {
        self.boost.swap(realtime, Ordering::Relaxed) != realtime
    }

    /// Sets the priority without a boost.
    pub fn set_priority(&self, priority: Priority) {
        self.priority.store(priority.to_word(), Ordering::Relaxed);
    }

    /// Returns the core affinity.
    #[must_use]
    pub fn cores(&self) -> CoreSet {
        *self.cores.lock()
    }

    /// Sets the core affinity. The thread migrates as soon as its core schedules.
    pub fn set_cores(&self, cores: CoreSet) {
        *self.cores.lock() = cores;
    }

    /// Returns the signal mask.
    #[must_use]
    pub fn blocked(&self) -> Set {
        self.blocked.load(Ordering::Relaxed)
    }

    /// Whether a signal may be pending for the thread.
    #[must_use]
    pub fn is_signal_pending(&self) -> bool {
        self.signal_pending.load(Ordering::SeqCst)
    }

    fn set_signal_pending(&self, whether: bool) {
        self.signal_pending.store(whether, Ordering::SeqCst);
    }
}

/// Queue of pending signals.
#[derive(Debug, Default)]
struct PendingQueue {
    infos: Vec<Info>,
}

impl PendingQueue {
    fn set(&self) -> Set {
        self.infos
            .iter()
            .fold(0, |set, info| set | bit(info.signal))
    }

    /// Queues a signal; a standard signal is queued at most once. Returns whether there was room.
    fn push(&mut self, info: Info) -> bool {
        if info.signal < REALTIME_MIN && self.set() & bit(info.signal) != 0 {
            return true;
        }
        if self.merge_timer_overrun(&info) {
            return true;
        }
        // Standard signals always fit: there is reserved room for one of each.
        let unqueued = REALTIME_MIN as usize;
        let room = info.signal < REALTIME_MIN
            || self.infos.len() < QUEUE_MAX && reserve_in(&mut self.infos, unqueued).is_ok();
        if room {
            self.infos.push(info);
        }
        room
    }

    /// Merges the signal of a timer whose last signal is still queued: adds to its overrun count.
    /// Returns whether it did.
    fn merge_timer_overrun(&mut self, info: &Info) -> bool {
        let is_same = |other: &&mut Info| {
            let timer = |info: &Info| (info.signal, info.code, info.fields[0] as u32);
            timer(other) == timer(info)
        };
        if info.code != Info::TIMER {
            return false;
        }
        let waiting = self.infos.iter_mut().find(is_same);
        waiting.is_some_and(|waiting| {
            let more = (info.fields[0] >> 32) + 1;
            let count = (waiting.fields[0] >> 32).saturating_add(more);
            let overruns = count.min(i32::MAX as u64);
            waiting.fields[0] = waiting.fields[0] & 0xffff_ffff | overruns << 32;
            true
        })
    }

    /// Dequeues a signal of a set: synchronous ones first, then the lowest number.
    fn take(&mut self, wanted: Set) -> Option<Info> {
        let order = |info: &Info| (SYNCHRONOUS & bit(info.signal) == 0, info.signal);
        let infos = self.infos.iter().enumerate();
        let first = infos
            .filter(|(_, info)| wanted & bit(info.signal) != 0)
            .min_by_key(|(_, info)| order(info));
        let at = first.map(|(at, _)| at)?;
        Some(self.infos.remove(at))
    }

    fn drop_all(&mut self, signal: u32) {
        self.infos.retain(|info| info.signal != signal);
    }
}

#[derive(Debug)]
struct ThreadSignals {
    id: u64,
    blocked: Set,
    /// Signals that it waits for in sigtimedwait(2).
    awaited: Set,
    queue: PendingQueue,
    handle: Arc<ThreadHandle>,
}

impl ThreadSignals {
    fn accepts(&self, signal: u32) -> bool {
        (!self.blocked | self.awaited) & bit(signal) != 0
    }
}

/// What a thread does about a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Run the handler.
    Handle(Info, Action),
    /// Terminate the process.
    Terminate {
        /// The signal.
        signal: u32,
        /// Whether the default action is to dump core.
        dumps_core: bool,
    },
    /// Stop the process.
    Stop {
        /// The signal.
        signal: u32,
    },
}

/// Signals of a process.
#[derive(Debug)]
pub struct Signals {
    actions: [Action; SIGNALS as usize],
    process_pending: PendingQueue,
    threads: Vec<ThreadSignals>,
    /// POSIX timers, which the base runs for the program.
    timers: Vec<Timer>,
}

impl Default for Signals {
    fn default() -> Self {
        Self {
            actions: [Action::default(); SIGNALS as usize],
            process_pending: PendingQueue::default(),
            threads: Vec::new(),
            timers: Vec::new(),
        }
    }
}

impl Signals {
    /// Adds a thread on a core, with an initial signal mask. Returns its handle.
    pub fn add_thread(
        &mut self,
        id: u64,
        blocked: Set,
        core: u32,
        scheduling: (Priority, CoreSet),
    ) -> Arc<ThreadHandle> {
        let handle = ThreadHandle::new(blocked, core, scheduling);
        self.threads.push(ThreadSignals {
            id,
            blocked,
            awaited: 0,
            queue: PendingQueue::default(),
            handle: Arc::clone(&handle),
        });
        handle
    }

    /// Removes a thread. Signals pending for the process go to other threads.
    pub fn remove_thread(&mut self, id: u64) {
        self.threads.retain(|thread| thread.id != id);
        self.notify_process_pending();
    }

    /// Changes a thread's id.
    pub fn rename(&mut self, from: u64, to: u64) {
        if let Some(thread) = self.thread(from) {
            thread.id = to;
        }
    }

    /// Whether the process has a thread with that id.
    #[must_use]
    pub fn has(&self, id: u64) -> bool {
        self.threads.iter().any(|thread| thread.id == id)
    }

    /// Returns a thread's handle.
    #[must_use]
    pub fn handle(&self, id: u64) -> Option<Arc<ThreadHandle>> {
        let thread = self.threads.iter().find(|thread| thread.id == id);
        thread.map(|thread| Arc::clone(&thread.handle))
    }

    fn thread(&mut self, id: u64) -> Option<&mut ThreadSignals> {
        self.threads.iter_mut().find(|thread| thread.id == id)
    }

    /// Returns the action for a signal, 1 to [`SIGNALS`].
    #[must_use]
    pub fn action(&self, signal: u32) -> Action {
        self.actions[signal as usize - 1]
    }

    /// Sets the action for a signal. If it is now ignored, pending instances are discarded.
    pub fn set_action(&mut self, signal: u32, action: Action) {
        self.actions[signal as usize - 1] = action;
        if self.is_ignored(signal) {
            self.drop_all(bit(signal));
        }
    }

    /// Resets handlers to the default, as execve(2) does; ignored signals stay ignored.
    pub fn clear_handlers(&mut self) {
        for action in &mut self.actions {
            if action.handler != Action::IGNORE {
                *action = Action::default();
            }
        }
    }

    /// Ignores all signals of a set.
    pub fn ignore(&mut self, ignored: Set) {
        for signal in (1..=SIGNALS).filter(|&signal| ignored & !UNBLOCKABLE & bit(signal) != 0) {
            let handler = Action::IGNORE;
            self.set_action(
                signal,
                Action {
                    handler,
                    ..Action::default()
                },
            );
        }
    }

    fn is_ignored(&self, signal: u32) -> bool {
        match self.action(signal).handler {
            Action::IGNORE => true,
            Action::DEFAULT => DEFAULT_IGNORED & bit(signal) != 0,
            _ => false,
        }
    }

    /// Sends a signal to a thread, or to any thread that accepts it. Returns the thread to wake, if
    /// any.
    ///
    /// # Errors
    /// [`QueueFull`].
    pub fn send(
        &mut self,
        to: Option<u64>,
        info: Info,
    ) -> Result<Option<Arc<ThreadHandle>>, QueueFull> {
        // SIGCONT discards pending stop signals, and these discard a pending SIGCONT.
        if info.signal == number::CONT {
            self.drop_all(STOP_SIGNALS);
        } else if STOP_SIGNALS & bit(info.signal) != 0 {
            self.drop_all(bit(number::CONT));
        }
        let is_target = |thread: &&ThreadSignals| to.is_none_or(|id| thread.id == id);
        let threads = || self.threads.iter().filter(is_target);
        if self.is_ignored(info.signal)
            && threads().all(|thread| thread.awaited == 0 && thread.accepts(info.signal))
        {
            return Ok(None);
        }
        let target = threads().find(|thread| thread.accepts(info.signal));
        let target = target.map(|thread| Arc::clone(&thread.handle));
        let queue = match to {
            Some(id) => self.thread(id).map(|thread| &mut thread.queue),
            None => Some(&mut self.process_pending),
        };
        if queue.is_some_and(|queue| !queue.push(info)) {
            return Err(QueueFull);
        }
        if let Some(handle) = &target {
            handle.set_signal_pending(true);
        }
        Ok(target)
    }

    fn drop_all(&mut self, dropped: Set) {
        for signal in (1..=SIGNALS).filter(|&signal| dropped & bit(signal) != 0) {
            self.process_pending.drop_all(signal);
            let threads = self.threads.iter_mut();
            threads.for_each(|thread| thread.queue.drop_all(signal));
        }
    }

    fn notify_process_pending(&self) {
        for info in &self.process_pending.infos {
            if let Some(thread) = self
                .threads
                .iter()
                .find(|thread| thread.accepts(info.signal))
            {
                thread.handle.set_signal_pending(true);
            }
        }
    }

    /// Returns a thread's signal mask.
    #[must_use]
    pub fn blocked(&self, id: u64) -> Set {
        let thread = self.threads.iter().find(|thread| thread.id == id);
        thread.map_or(0, |thread| thread.blocked)
    }

    /// Sets a thread's signal mask. Returns the old one.
    pub fn block(&mut self, id: u64, blocked: Set) -> Set {
        let Some(thread) = self.thread(id) else {
            return 0;
        };
        let before = core::mem::replace(&mut thread.blocked, blocked & !UNBLOCKABLE);
        thread
            .handle
            .blocked
            .store(thread.blocked, Ordering::Relaxed);
        self.recalc_signal_pending(id);
        self.notify_process_pending();
        before
    }

    /// Marks a thread if a signal is pending for it.
    fn recalc_signal_pending(&mut self, id: u64) {
        let process_pending = self.process_pending.set();
        if let Some(thread) = self.thread(id)
            && (thread.queue.set() | process_pending) & (!thread.blocked | thread.awaited) != 0
        {
            thread.handle.set_signal_pending(true);
        }
    }

    /// Makes a thread accept signals for sigtimedwait(2), blocked or not; an empty set ends that.
    /// Marks the thread if one is pending already.
    pub fn await_signals(&mut self, id: u64, awaited: Set) {
        if let Some(thread) = self.thread(id) {
            thread.awaited = awaited;
        }
        self.recalc_signal_pending(id);
    }

    /// Returns the pending signals that a thread blocks.
    #[must_use]
    pub fn pending(&self, id: u64) -> Set {
        let own = self.threads.iter().find(|thread| thread.id == id);
        own.map_or(0, |own| {
            (own.queue.set() | self.process_pending.set()) & own.blocked
        })
    }

    /// Dequeues a signal of a set that is pending for the thread or the process.
    pub fn take(&mut self, id: u64, wanted: Set) -> Option<Info> {
        let own = self.thread(id).and_then(|thread| thread.queue.take(wanted));
        own.or_else(|| self.process_pending.take(wanted))
    }

    /// Returns what a marked thread shall do next; `None` if no signal is pending for it.
    pub fn next(&mut self, id: u64) -> Option<Disposition> {
        let thread = self.thread(id)?;
        thread.handle.set_signal_pending(false);
        let wanted = !thread.blocked;
        while let Some(info) = self.take(id, wanted) {
            let disposition = self.disposition(info);
            if disposition.is_some() {
                self.thread(id)?.handle.set_signal_pending(true);
                return disposition;
            }
        }
        None
    }

    fn disposition(&mut self, info: Info) -> Option<Disposition> {
        let signal = info.signal;
        let action = self.action(signal);
        match action.handler {
            Action::IGNORE => None,
            Action::DEFAULT if DEFAULT_IGNORED & bit(signal) != 0 => None,
            Action::DEFAULT if STOP_SIGNALS & bit(signal) != 0 => {
                Some(Disposition::Stop { signal })
            }
            Action::DEFAULT => Some(termination(signal)),
            _ => {
                if action.flags & Action::RESET != 0 {
                    self.actions[signal as usize - 1].handler = Action::DEFAULT;
                }
                Some(Disposition::Handle(info, action))
            }
        }
    }

    /// Sends a synchronous signal to the thread that caused it. If it is blocked or ignored, it
    /// terminates the program.
    pub fn force(&mut self, id: u64, info: Info) {
        let signal = info.signal;
        let blocked = self.blocked(id) & bit(signal) != 0;
        if blocked || self.action(signal).handler == Action::IGNORE {
            self.actions[signal as usize - 1].handler = Action::DEFAULT;
            let unblocked = self.blocked(id) & !bit(signal);
            self.block(id, unblocked);
        }
        // A signal already queued has the same effect.
        let _ = self.send(Some(id), info);
    }
}

/// Returns the termination of a process by a signal.
#[must_use]
pub fn termination(signal: u32) -> Disposition {
    Disposition::Terminate {
        signal,
        dumps_core: DEFAULT_CORE_DUMP & bit(signal) != 0,
    }
}

/// Too many signals are pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

#[cfg(test)]
mod tests;
