//! Signals of a program: what becomes of each, which have come, and which thread they are for.
//!
//! Pure: who has to be woken is answered, and the caller does it. [`frame`] is what a handler finds on
//! its stack.
//!
//! Source: signal(7) of Linux, and its include/uapi/asm-generic/signal.h and siginfo.h.

pub mod frame;
mod sent;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::scheduling::{CoreSet, Priority};
use crate::memory::reserve_in;
pub use sent::Timer;

/// How many signals there are, numbered from 1.
pub const SIGNALS: u32 = 64;
/// Signals from this one on are queued: as often as they are sent, they come.
const FIRST_QUEUED: u32 = 32;
/// Most that are queued for one thread or process: Linux has a limit for each user.
const QUEUE_MAX: usize = 1024;

/// Numbers of signals that the kernel has something to do with.
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

/// A set of signals: bit number - 1 for each.
pub type Set = u64;

/// The set of one signal.
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

/// Those that cannot be caught, blocked or ignored.
pub const UNBLOCKABLE: Set = set(&[number::KILL, number::STOP]);
/// Those that tell of an instruction, and go before all others.
const OF_INSTRUCTIONS: Set = set(&[
    number::ILL,
    number::TRAP,
    number::BUS,
    number::FPE,
    number::SEGV,
    number::SYS,
]);
const IGNORED: Set = set(&[number::CHLD, number::CONT, number::URG, number::WINCH]);
/// Those by which a program is stopped.
pub const STOPPING: Set = set(&[number::STOP, number::TSTP, number::TTIN, number::TTOU]);
/// Those by which a terminal stops who uses it from the background: it looks itself who blocks or
/// ignores them.
pub const OF_BACKGROUND: Set = set(&[number::TTIN, number::TTOU]);
const DUMPING: Set =
    OF_INSTRUCTIONS | set(&[number::QUIT, number::ABRT, number::XCPU, number::XFSZ]);

/// What a program wants done about a signal: `struct sigaction` of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// Address of the handler, [`Action::DEFAULT`] or [`Action::IGNORE`].
    pub handler: u64,
    /// Flags: see below.
    pub flags: u64,
    /// Where a handler returns to.
    pub restorer: u64,
    /// What is blocked while it runs.
    pub mask: Set,
}

impl Action {
    /// The signal's own action.
    pub const DEFAULT: u64 = 0;
    /// None.
    pub const IGNORE: u64 = 1;
    /// `SA_RESTORER`: there is one; programs of this processor must have it.
    pub const RESTORER: u64 = 0x0400_0000;
    /// `SA_ONSTACK`: on the alternate stack.
    pub const ON_STACK: u64 = 0x0800_0000;
    /// `SA_RESTART`: a call that was broken off is made anew.
    pub const RESTART: u64 = 0x1000_0000;
    /// `SA_NODEFER`: the signal itself is not blocked.
    pub const NO_DEFER: u64 = 0x4000_0000;
    /// `SA_RESETHAND`: once.
    pub const RESET: u64 = 0x8000_0000;
    /// Bytes in the program's memory.
    pub const SIZE: usize = 32;

    /// From the program's memory.
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

    /// As it lies in the program's memory.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let words = [self.handler, self.flags, self.restorer, self.mask].map(u64::to_le_bytes);
        core::array::from_fn(|at| words[at / 8][at % 8])
    }
}

/// What a program is told of a signal: the part of `siginfo_t` that is ever used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Which.
    pub signal: u32,
    /// `si_errno`.
    pub errno: i32,
    /// `si_code`: whose it is, or what the matter was.
    pub code: i32,
    /// What follows: sender and value, or an address.
    pub fields: [u64; 4],
}

impl Info {
    /// `SI_USER`: of kill(2).
    pub const USER: i32 = 0;
    /// `SI_KERNEL`.
    pub const KERNEL: i32 = 0x80;
    /// `SI_TIMER`: of a timer.
    pub const TIMER: i32 = -2;
    /// `SI_TKILL`: of tgkill(2).
    pub const TKILL: i32 = -6;
    /// Bytes in the program's memory that are looked at.
    pub const SIZE: usize = 48;

    /// One that a process of a user has sent.
    #[must_use]
    pub fn sent(signal: u32, code: i32, pid: u64, uid: u64) -> Self {
        Self {
            signal,
            errno: 0,
            code,
            fields: [pid & 0xffff_ffff | uid << 32, 0, 0, 0],
        }
    }

    /// One of an instruction.
    #[must_use]
    pub fn fault(signal: u32, code: i32, address: u64) -> Self {
        Self {
            signal,
            errno: 0,
            code,
            fields: [address, 0, 0, 0],
        }
    }

    /// From the program's memory.
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

    /// As it lies in the program's memory.
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

/// What others tell a thread: that there may be a signal for it, how urgent it is, and where it may
/// run. Whoever runs it, or waits for it, looks here.
#[derive(Debug)]
pub struct Notice {
    told: AtomicBool,
    /// What the thread blocks: a copy, for who has not the signals.
    blocked: AtomicU64,
    /// The core that the thread is on.
    pub core: AtomicU32,
    priority: AtomicU32,
    /// The real-time priority of the most urgent who waits for what the thread holds; or 0.
    lent: AtomicU32,
    cores: spin::Mutex<CoreSet>,
}

impl Notice {
    fn new(blocked: Set, core: u32, (priority, cores): (Priority, CoreSet)) -> Arc<Self> {
        Arc::new(Self {
            told: AtomicBool::new(false),
            blocked: AtomicU64::new(blocked),
            core: AtomicU32::new(core),
            priority: AtomicU32::new(priority.to_word()),
            lent: AtomicU32::new(0),
            cores: spin::Mutex::new(cores),
        })
    }

    /// When it runs.
    #[must_use]
    pub fn priority(&self) -> Priority {
        let lent = self.lent.load(Ordering::Relaxed);
        self.own_priority().lifted_to(lent)
    }

    /// When it runs if nobody waits for it: what it is told that its priority is.
    #[must_use]
    pub fn own_priority(&self) -> Priority {
        Priority::from_word(self.priority.load(Ordering::Relaxed))
    }

    /// Somebody of that real-time priority waits for it, or with 0 nobody; whether that is new.
    pub fn lend(&self, realtime: u32) -> bool {
        self.lent.swap(realtime, Ordering::Relaxed) != realtime
    }

    /// Changes that.
    pub fn set_priority(&self, priority: Priority) {
        self.priority.store(priority.to_word(), Ordering::Relaxed);
    }

    /// The cores that it may run on.
    #[must_use]
    pub fn cores(&self) -> CoreSet {
        *self.cores.lock()
    }

    /// Changes that: the thread moves as soon as its core looks.
    pub fn set_cores(&self, cores: CoreSet) {
        *self.cores.lock() = cores;
    }

    /// What the thread blocks.
    #[must_use]
    pub fn blocked(&self) -> Set {
        self.blocked.load(Ordering::Relaxed)
    }

    /// Whether there may be a signal.
    #[must_use]
    pub fn is_told(&self) -> bool {
        self.told.load(Ordering::SeqCst)
    }

    fn tell(&self, whether: bool) {
        self.told.store(whether, Ordering::SeqCst);
    }
}

/// Signals that have come and are still to be dealt with.
#[derive(Debug, Default)]
struct Queue {
    infos: Vec<Info>,
}

impl Queue {
    fn set(&self) -> Set {
        self.infos
            .iter()
            .fold(0, |set, info| set | bit(info.signal))
    }

    /// Whether there was room; a signal that is not queued comes once.
    fn push(&mut self, info: Info) -> bool {
        if info.signal < FIRST_QUEUED && self.set() & bit(info.signal) != 0 {
            return true;
        }
        if self.overruns(&info) {
            return true;
        }
        // Of those that come once there is each for which there is a reason: there is always room.
        let others = FIRST_QUEUED as usize;
        let room = info.signal < FIRST_QUEUED
            || self.infos.len() < QUEUE_MAX && reserve_in(&mut self.infos, others).is_ok();
        if room {
            self.infos.push(info);
        }
        room
    }

    /// Whether it is of a timer whose last signal waits here still, which then tells how often it has
    /// gone off since.
    fn overruns(&mut self, info: &Info) -> bool {
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
            let told = count.min(i32::MAX as u64);
            waiting.fields[0] = waiting.fields[0] & 0xffff_ffff | told << 32;
            true
        })
    }

    /// The next of a set: those of instructions first, then the lowest.
    fn take(&mut self, wanted: Set) -> Option<Info> {
        let order = |info: &Info| (OF_INSTRUCTIONS & bit(info.signal) == 0, info.signal);
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
struct Member {
    id: u64,
    blocked: Set,
    /// What it waits for by sigtimedwait(2).
    awaited: Set,
    queue: Queue,
    notice: Arc<Notice>,
}

impl Member {
    fn wants(&self, signal: u32) -> bool {
        (!self.blocked | self.awaited) & bit(signal) != 0
    }
}

/// What a thread is to do about a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Run its handler.
    Handle(Info, Action),
    /// End the program; with a core file, if such are wanted.
    End {
        /// By which signal.
        signal: u32,
        /// Whether it is one that leaves a core file.
        dumps: bool,
    },
    /// Have the program stopped.
    Stop {
        /// By which signal.
        signal: u32,
    },
}

/// The signals of a program.
#[derive(Debug)]
pub struct Signals {
    actions: [Action; SIGNALS as usize],
    shared: Queue,
    members: Vec<Member>,
    /// Timers that the base keeps for the program.
    timers: Vec<Timer>,
}

impl Default for Signals {
    fn default() -> Self {
        Self {
            actions: [Action::default(); SIGNALS as usize],
            shared: Queue::default(),
            members: Vec::new(),
            timers: Vec::new(),
        }
    }
}

impl Signals {
    /// A thread joins, on a core, with these signals blocked. By what it is told.
    pub fn join(
        &mut self,
        id: u64,
        blocked: Set,
        core: u32,
        scheduling: (Priority, CoreSet),
    ) -> Arc<Notice> {
        let notice = Notice::new(blocked, core, scheduling);
        self.members.push(Member {
            id,
            blocked,
            awaited: 0,
            queue: Queue::default(),
            notice: Arc::clone(&notice),
        });
        notice
    }

    /// A thread is no more; the others are told what it has left.
    pub fn leave(&mut self, id: u64) {
        self.members.retain(|member| member.id != id);
        self.tell_of_shared();
    }

    /// A thread has another id from now on.
    pub fn rename(&mut self, from: u64, to: u64) {
        if let Some(member) = self.member(from) {
            member.id = to;
        }
    }

    /// Whether there is such a thread.
    #[must_use]
    pub fn has(&self, id: u64) -> bool {
        self.members.iter().any(|member| member.id == id)
    }

    /// By what a thread is told.
    #[must_use]
    pub fn notice(&self, id: u64) -> Option<Arc<Notice>> {
        let member = self.members.iter().find(|member| member.id == id);
        member.map(|member| Arc::clone(&member.notice))
    }

    fn member(&mut self, id: u64) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.id == id)
    }

    /// What is to be done about a signal, of 1 to [`SIGNALS`].
    #[must_use]
    pub fn action(&self, signal: u32) -> Action {
        self.actions[signal as usize - 1]
    }

    /// Changes that. Signals that are now ignored are forgotten.
    pub fn set_action(&mut self, signal: u32, action: Action) {
        self.actions[signal as usize - 1] = action;
        if self.is_ignored(signal) {
            self.drop_all(bit(signal));
        }
    }

    /// Has no signal a handler any more; what is ignored stays so.
    pub fn clear_handlers(&mut self) {
        for action in &mut self.actions {
            if action.handler != Action::IGNORE {
                *action = Action::default();
            }
        }
    }

    /// Has all signals of a set ignored.
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
            Action::DEFAULT => IGNORED & bit(signal) != 0,
            _ => false,
        }
    }

    /// A signal has come, for one thread or for whichever wants it. Who was told of it, if anybody.
    ///
    /// # Errors
    /// [`Full`].
    pub fn post(&mut self, to: Option<u64>, info: Info) -> Result<Option<Arc<Notice>>, Full> {
        // Who is to go on is not stopped by what came before, nor the other way round.
        if info.signal == number::CONT {
            self.drop_all(STOPPING);
        } else if STOPPING & bit(info.signal) != 0 {
            self.drop_all(bit(number::CONT));
        }
        let meant = |member: &&Member| to.is_none_or(|id| member.id == id);
        let members = || self.members.iter().filter(meant);
        if self.is_ignored(info.signal)
            && members().all(|member| member.awaited == 0 && member.wants(info.signal))
        {
            return Ok(None);
        }
        let told = members().find(|member| member.wants(info.signal));
        let told = told.map(|member| Arc::clone(&member.notice));
        let queue = match to {
            Some(id) => self.member(id).map(|member| &mut member.queue),
            None => Some(&mut self.shared),
        };
        if queue.is_some_and(|queue| !queue.push(info)) {
            return Err(Full);
        }
        if let Some(notice) = &told {
            notice.tell(true);
        }
        Ok(told)
    }

    fn drop_all(&mut self, dropped: Set) {
        for signal in (1..=SIGNALS).filter(|&signal| dropped & bit(signal) != 0) {
            self.shared.drop_all(signal);
            let members = self.members.iter_mut();
            members.for_each(|member| member.queue.drop_all(signal));
        }
    }

    fn tell_of_shared(&self) {
        for info in &self.shared.infos {
            if let Some(member) = self.members.iter().find(|member| member.wants(info.signal)) {
                member.notice.tell(true);
            }
        }
    }

    /// What a thread has blocked.
    #[must_use]
    pub fn blocked(&self, id: u64) -> Set {
        let member = self.members.iter().find(|member| member.id == id);
        member.map_or(0, |member| member.blocked)
    }

    /// Changes that; what it had blocked before.
    pub fn block(&mut self, id: u64, blocked: Set) -> Set {
        let Some(member) = self.member(id) else {
            return 0;
        };
        let before = core::mem::replace(&mut member.blocked, blocked & !UNBLOCKABLE);
        member
            .notice
            .blocked
            .store(member.blocked, Ordering::Relaxed);
        self.look(id);
        self.tell_of_shared();
        before
    }

    /// Tells a thread if there is something for it already.
    fn look(&mut self, id: u64) {
        let shared = self.shared.set();
        if let Some(member) = self.member(id)
            && (member.queue.set() | shared) & (!member.blocked | member.awaited) != 0
        {
            member.notice.tell(true);
        }
    }

    /// Has a thread wait for signals, blocked or not; none for an end of that. It is told of what has
    /// come before.
    pub fn await_signals(&mut self, id: u64, awaited: Set) {
        if let Some(member) = self.member(id) {
            member.awaited = awaited;
        }
        self.look(id);
    }

    /// What has come and is blocked.
    #[must_use]
    pub fn pending(&self, id: u64) -> Set {
        let own = self.members.iter().find(|member| member.id == id);
        own.map_or(0, |own| (own.queue.set() | self.shared.set()) & own.blocked)
    }

    /// Takes a signal of a set, of the thread's own or of the process's.
    pub fn take(&mut self, id: u64, wanted: Set) -> Option<Info> {
        let own = self.member(id).and_then(|member| member.queue.take(wanted));
        own.or_else(|| self.shared.take(wanted))
    }

    /// What a thread that was told is to do next; none if there is nothing more, until it is told
    /// again.
    pub fn next(&mut self, id: u64) -> Option<Deed> {
        let member = self.member(id)?;
        member.notice.tell(false);
        let wanted = !member.blocked;
        while let Some(info) = self.take(id, wanted) {
            let deed = self.deed(info);
            if deed.is_some() {
                self.member(id)?.notice.tell(true);
                return deed;
            }
        }
        None
    }

    fn deed(&mut self, info: Info) -> Option<Deed> {
        let signal = info.signal;
        let action = self.action(signal);
        match action.handler {
            Action::IGNORE => None,
            Action::DEFAULT if IGNORED & bit(signal) != 0 => None,
            Action::DEFAULT if STOPPING & bit(signal) != 0 => Some(Deed::Stop { signal }),
            Action::DEFAULT => Some(ending(signal)),
            _ => {
                if action.flags & Action::RESET != 0 {
                    self.actions[signal as usize - 1].handler = Action::DEFAULT;
                }
                Some(Deed::Handle(info, action))
            }
        }
    }

    /// Has a signal of an instruction come to the thread that made it. It cannot be put off: if it
    /// is blocked or ignored, it ends the program.
    pub fn force(&mut self, id: u64, info: Info) {
        let signal = info.signal;
        let blocked = self.blocked(id) & bit(signal) != 0;
        if blocked || self.action(signal).handler == Action::IGNORE {
            self.actions[signal as usize - 1].handler = Action::DEFAULT;
            let unblocked = self.blocked(id) & !bit(signal);
            self.block(id, unblocked);
        }
        // One that is there already tells no less.
        let _ = self.post(Some(id), info);
    }
}

/// The end of a program by a signal.
#[must_use]
pub fn ending(signal: u32) -> Deed {
    Deed::End {
        signal,
        dumps: DUMPING & bit(signal) != 0,
    }
}

/// There are too many signals waiting already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

#[cfg(test)]
mod tests;
