//! A thread of a program.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use insula_abi::lwk::{RELEASE_MAPPED, base_state, request};
use insula_bare::{ExtendedState, UserContext, cpu};

use super::Process;
use super::areas::Rights;
use super::errno::{Errno, of_result};
use super::exec::Next;
use super::memory::{Memory, SpaceGuard};
use super::rseq::Registration;
use super::scheduling::{CoreSet, Priority};
use super::signals::frame::Alternate;
use super::signals::{Info, Notice, Set};
use super::space::{Invalidation, Pinned, Place, Space};
use crate::cores::{self, Counter};
use crate::delegation::{Answer, Desk};
use crate::memory::has_room;
use crate::{clock, info};

/// Memory that the base asks a page of is most often one buffer: the rest of an aligned piece of that
/// size is made present as well.
const AHEAD: u64 = 64 << 10;

/// Bytes of the kernel's that a thread takes: its registers, and what it needs to wait and to be told.
pub const THREAD_BYTES: u64 = 16 << 10;

/// The proxy has gone: there is nobody to ask, and the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// A thread.
#[derive(Debug)]
pub struct Thread {
    /// Its registers.
    pub context: UserContext,
    /// Its program is still to be loaded.
    pub is_new: bool,
    /// Its extended registers, while it does not run.
    pub extended: ExtendedState,
    /// The program that it is of.
    pub process: Arc<Process>,
    /// Its id, for the program and on the base.
    pub id: u64,
    /// Where the base executes its calls.
    pub desk: Desk,
    /// The core that it is to run on.
    pub core: u32,
    /// Where its end is told: a word that becomes 0, and is a futex.
    pub clear_at_end: u64,
    /// Its list of robust futexes: address of the head, and its size.
    pub robust: (u64, u64),
    /// Where it is told which core it is on.
    pub rseq: Option<Registration>,
    /// Tells it that a signal may have come.
    pub notice: Arc<Notice>,
    /// Its alternate stack for handlers.
    pub alternate: Alternate,
    /// The call that it makes and that can be broken off.
    pub calling: Option<u64>,
    /// The call that it makes again as soon as it goes on, since what broke it off came to nothing.
    pub rewound: Option<u64>,
    /// When that call, or the one that it makes, is to be over, in ns of the kernel's clock.
    pub deadline_ns: Option<u64>,
    /// Its user, if the base has been asked.
    pub uid: Option<u64>,
    /// What it had blocked before that call, which has it block something else.
    pub blocked_before: Option<Set>,
    /// It has the base stop the program, and goes on as it is when that lets it.
    pub is_stopping: bool,
    /// The signal by which it has the base stop the program: the proxy is to catch it again.
    pub(super) uncaught: Option<u32>,
    /// Of the signals by which a terminal stops who uses it from the background, those that its thread
    /// of the proxy blocks.
    pub blocked_in_proxy: Set,
    /// The signals that it waits for, and where it wants to be told of the one that came.
    pub awaiting: Option<(Set, u64)>,
    /// It waits for a copy of its program to go its own way, or for its program to go on, and then
    /// finds this as its result.
    pub copy_let_go: Option<u64>,
    /// It has said that it ends.
    has_left: bool,
    /// The program that it will be when all others of its own have ended.
    pub(super) next: Option<Box<Next>>,
    /// It writes a core file, of a program that this signal has ended.
    pub dumping: Option<u32>,
    /// Of its last exception: vector, error, address.
    pub fault: [u64; 3],
    /// How long it has run, in ticks of the time stamp counter.
    pub used_ticks: u64,
    /// Since when there has been no memory for it, in ns of the kernel's clock.
    pub starved_since_ns: Option<u64>,
}

impl Thread {
    /// A thread of `process` with a desk, with these signals blocked, and of that urgency, on one of
    /// those cores; its registers are all zero.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn new(
        process: Arc<Process>,
        (id, mut desk): (u64, Desk),
        blocked: Set,
        scheduling: (Priority, CoreSet),
    ) -> Result<Box<Self>, Errno> {
        let room = has_room(THREAD_BYTES).ok();
        let Some(extended) = room.and_then(|()| ExtendedState::new()) else {
            // Else the base's thread would wait as long as the process lives.
            if id != process.pages().pid() {
                desk.post(request::THREAD_END, [0; 6]);
            }
            return Err(Errno::ENOMEM);
        };
        let core = cores::least_loaded(&scheduling.1);
        process.threads.fetch_add(1, Ordering::AcqRel);
        process.staying.fetch_add(1, Ordering::AcqRel);
        let notice = process.signals().join(id, blocked, core, scheduling);
        Ok(Box::new(Self {
            context: UserContext::default(),
            is_new: false,
            extended,
            process,
            id,
            desk,
            core,
            clear_at_end: 0,
            robust: (0, 0),
            rseq: None,
            notice,
            alternate: Alternate::default(),
            calling: None,
            rewound: None,
            deadline_ns: None,
            uid: None,
            blocked_before: None,
            is_stopping: false,
            uncaught: None,
            blocked_in_proxy: 0,
            awaiting: None,
            copy_let_go: None,
            has_left: false,
            next: None,
            dumping: None,
            fault: [0; 3],
            used_ticks: 0,
            starved_since_ns: None,
        }))
    }

    /// What a thread begins with that this one makes.
    #[must_use]
    pub fn inherited(&self) -> (Priority, CoreSet) {
        (self.notice.own_priority().inherited(), self.notice.cores())
    }

    /// Looks for the answer to what its desk was asked; deals with a question in between.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn poll(&mut self) -> Result<Option<(u64, u64)>, Gone> {
        match self.desk.poll() {
            Some(Answer::Result { result, value }) => Ok(Some((result, value))),
            Some(Answer::Fault { address, write }) => {
                let space = self.process.space();
                self.resolve(space, address, write);
                Ok(None)
            }
            None if self.is_to_end() => Err(Gone),
            None => Ok(None),
        }
    }

    /// Has the base break off a call of the program's if there may be a signal for it, or nobody to go
    /// on with the answer. Of a file that is being closed nobody could tell afterwards whether it is.
    pub fn heed_signals(&mut self) {
        let is_wanted = self.notice.is_told() || self.is_superseded();
        if is_wanted && !self.is_stopping && self.calling != Some(crate::calls::number::CLOSE) {
            self.desk.interrupt();
        }
    }

    /// It has run for so long.
    pub fn has_run(&mut self, ticks: u64) {
        self.used_ticks += ticks;
        self.process.used_ticks.fetch_add(ticks, Ordering::Relaxed);
    }

    /// Answers a question that the base has in the middle of a call of this thread's, unless somebody
    /// has the program's memory at the moment.
    pub fn answer_question(&mut self) {
        if let Some(Answer::Fault { address, write }) = self.desk.poll()
            && let Some(space) = self.process.memory().try_space()
        {
            self.resolve(space, address, write);
        }
    }

    /// Makes a page present, or says that it cannot be.
    fn resolve(&mut self, mut space: SpaceGuard, address: u64, write: bool) {
        cores::count(Counter::Questions);
        let access = if write { Rights::WRITE } else { Rights::READ };
        let resolved = space.fault(address, access);
        if resolved.is_ok() {
            // What cannot be there need not be.
            let _ = space.populate(address, (address | (AHEAD - 1)) + 1, access);
            self.starved_since_ns = None;
        }
        drop(space);
        if resolved == Err(Errno::ENOMEM) && !self.cannot_wait() {
            if self.can_wait_for_memory() {
                // The question stays, and is looked at again.
                return;
            }
            self.end_for_memory();
        }
        let error = resolved.err().map_or(0, |error| match error {
            // Where the program itself would get SIGBUS its calls find a wrong address.
            Errno::EIO => Errno::EFAULT.as_result(),
            error => error.as_result(),
        });
        self.desk.post(request::RESOLVED, [error, 0, 0, 0, 0, 0]);
    }

    /// Whether a thread for which there is no memory may get some: for a while, and only as long as a
    /// program that has ended is still to be freed.
    pub fn can_wait_for_memory(&mut self) -> bool {
        /// How long that may take: the base may have pages of it pinned for as long as it pleases.
        const PATIENCE_NS: u64 = 10_000_000_000;
        let now_ns = clock::now_ns();
        let since_ns = *self.starved_since_ns.get_or_insert(now_ns);
        now_ns - since_ns < PATIENCE_NS && super::is_any_ending()
    }

    /// Whether it waits for memory.
    pub fn is_starving(&self) -> bool {
        self.starved_since_ns.is_some()
    }

    /// Has the program end in the middle of a call, as Linux has one end for which there is no memory.
    fn end_for_memory(&mut self) {
        const KILL: u32 = 9;
        info!("process {} is ended: no memory is left", self.id);
        // There is always room for it.
        let _ = self
            .process
            .post(None, Info::sent(KILL, Info::KERNEL, 0, 0));
    }

    /// Asks the base and waits for the answer, on this core, which runs nothing else meanwhile. It does
    /// answer questions about others that wait here: the base has a program's memory to itself to copy
    /// the process, say, which it gets only when calls of other threads need no more pages. An answer that
    /// is late may not come soon, if somebody has stopped the proxy: then other cores get the rest.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn ask(&mut self, number: u64, arguments: [u64; 6]) -> Result<(u64, u64), Gone> {
        cores::count(Counter::Requests);
        self.desk.post(number, arguments);
        let mut others = cores::Others::now();
        loop {
            if let Some(answer) = self.poll()? {
                return Ok(answer);
            }
            if self.process.pages().base_state() >= base_state::ENDED {
                return Err(Gone);
            }
            cores::answer_questions();
            others.leave_to_other_cores();
            cpu::take_interrupts();
            cpu::relax();
        }
    }

    /// Writes words to where the thread's next call finds them: their address, if there is room.
    #[must_use]
    pub fn put_scratch(&self, words: &[u64]) -> Option<u64> {
        self.desk.put_scratch(self.process.pages(), words)
    }

    /// Has the base make a system call, with arguments that may be the program's.
    ///
    /// # Errors
    /// What it answered; [`Errno::EINTR`] if the proxy is gone: the process is about to end.
    pub fn call(&mut self, number: u64, arguments: [u64; 6]) -> Result<u64, Errno> {
        let bounds = self.process.pages().space();
        self.call_as_kernel(number, crate::calls::lead_nowhere(arguments, bounds))
    }

    /// The same with arguments that are this kernel's own, which may lead to the thread's scratch.
    ///
    /// # Errors
    /// As above.
    pub fn call_as_kernel(&mut self, number: u64, arguments: [u64; 6]) -> Result<u64, Errno> {
        loop {
            match self
                .ask(number, arguments)
                .map(|(result, _)| of_result(result))
            {
                // What was to break off a call of the program's came too late for that.
                Ok(Err(Errno::EINTR)) => {}
                Ok(result) => return result,
                Err(Gone) => return Err(Errno::EINTR),
            }
        }
    }

    /// Takes the result of its call, if the base has answered it.
    pub fn take_answer(&mut self) -> bool {
        match self.desk.poll() {
            Some(Answer::Result { result, .. }) => {
                self.take_result(result);
                true
            }
            _ => false,
        }
    }

    /// The base has answered the call that the program has made, or has let it go on.
    pub fn take_result(&mut self, result: u64) {
        match core::mem::take(&mut self.is_stopping) {
            true => self.process.resume(),
            false => self.context.registers.rax = result,
        }
    }

    /// Does something with fresh memory of the program's, for calls that the kernel makes by itself.
    ///
    /// # Errors
    /// What `deed` answers; [`Errno::ENOMEM`].
    pub fn with_buffer<T>(
        &mut self,
        size: u64,
        deed: impl FnOnce(&mut Self, u64) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let rights = Rights::READ | Rights::WRITE;
        let start =
            self.with_space(|space, release| space.map(Place::Near(0), size, rights, release))?;
        let result = deed(self, start);
        self.with_space(|space, release| space.unmap(start, start + size, release))?;
        result
    }

    /// Does something with the program's memory that may need the base to let go of pages: not while the
    /// base copies the process. It would let go of nothing before the copy is made, and make none before
    /// all its questions are answered, for which the memory is needed.
    pub fn with_space<T>(
        &mut self,
        deed: impl FnOnce(&mut Space, &mut super::space::Release) -> T,
    ) -> T {
        let memory = self.process.memory();
        let mut space = self.space_between_copies(&memory);
        deed(&mut space, &mut |range: Invalidation| {
            let flags = if range.keeps_pages { RELEASE_MAPPED } else { 0 };
            match range.is_needed || memory.is_reached(range.start, range.end) {
                true => self.release(range.start, range.end, flags),
                false => Pinned::NONE,
            }
        })
    }

    fn space_between_copies(&self, memory: &Memory) -> SpaceGuard {
        cores::wait_for(|| {
            let space = memory.space();
            if !self.process.is_forking() {
                return Some(space);
            }
            drop(space);
            cores::answer_questions();
            None
        })
    }

    /// Has the base let go of a range: what of the program's memory is pinned then.
    pub(super) fn release(&mut self, start: u64, end: u64, flags: u64) -> Pinned {
        let ticket = self.process.next_ticket();
        let released = self.ask(request::RELEASE, [start, end - start, ticket, flags, 0, 0]);
        let pages = self.process.pages();
        let is_done = released.is_ok_and(|(result, _)| result == 0) && pages.released() == ticket;
        match (is_done, pages.pinned()) {
            (false, _) => Pinned::Refused,
            (true, None) => Pinned::Unknown,
            (true, Some(frames)) => Pinned::Frames(frames),
        }
    }

    /// Ends the process, with a status as of wait(2). The proxy ends as the program did.
    pub fn exit_process(&mut self, status: u64) {
        if self.process.end() {
            self.tell_end(status);
        }
    }

    /// Has the proxy end, as the program has.
    pub fn tell_end(&mut self, status: u64) {
        self.desk.post(request::EXIT, [status, 0, 0, 0, 0, 0]);
    }

    /// Ends the process by a signal that leaves a core file: this thread writes it when all others
    /// have ended.
    pub fn end_with_core(&mut self, signal: u32) {
        let first =
            self.process
                .dumper
                .compare_exchange(0, self.id, Ordering::AcqRel, Ordering::Relaxed);
        if first.is_ok() {
            if self.process.end() {
                self.dumping = Some(signal);
            } else {
                self.process.dumper.store(0, Ordering::Release);
            }
        }
    }

    /// Whether the thread is to end, since the program does.
    #[must_use]
    pub fn is_to_end(&self) -> bool {
        self.process.is_ending() && self.dumping.is_none()
    }

    /// Whether it is to end, since the program goes on with another thread alone.
    #[must_use]
    pub fn is_superseded(&self) -> bool {
        let survivor = self.process.survivor.load(Ordering::Acquire);
        survivor != 0 && survivor != self.id
    }

    /// Whether its program is about to become another.
    #[must_use]
    pub fn will_be_another(&self) -> bool {
        self.next.is_some()
    }

    /// Whether it is to end for whatever reason, and so has nothing to wait for.
    #[must_use]
    pub fn cannot_wait(&self) -> bool {
        self.process.is_ending() || self.is_superseded()
    }

    /// Whether what it waits for is over when a signal has come for it.
    #[must_use]
    pub(super) fn can_be_told(&self) -> bool {
        self.notice.is_told() && self.copy_let_go.is_none()
    }

    /// Whether it is the only one of its program.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.process.threads.load(Ordering::Acquire) == 1
    }

    /// Ends this thread alone; the last one ends the process.
    pub fn exit(&mut self, status: u64) {
        match self.leave() {
            true => self.exit_process(status),
            false => self.end_alone(),
        }
    }

    /// Ends this thread for that with which its program goes on.
    pub fn give_way(&mut self) {
        self.leave();
        self.end_alone();
    }

    /// It will not run any more; whether it is the last one.
    fn leave(&mut self) -> bool {
        let has_left = core::mem::replace(&mut self.has_left, true);
        !has_left && self.process.staying.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// It will not run any more, for whatever reason: whoever waits for a lock that it holds is told.
    pub fn give_up_locks(&mut self) {
        super::robust::give_up(self);
        if self.process.memory().is_shared() {
            self.tell_end_of_thread();
        }
    }

    fn end_alone(&mut self) {
        super::robust::give_up(self);
        self.tell_end_of_thread();
        // The first one's thread of the base is the process, which another may have to go on as.
        if self.id != self.process.pages().pid() {
            self.desk.post(request::THREAD_END, [0; 6]);
        }
    }

    /// Tells those who look at it that this thread is no more.
    pub(super) fn tell_end_of_thread(&mut self) {
        let word = core::mem::take(&mut self.clear_at_end);
        if word != 0 && self.process.space().write(word, &[0; 4]).is_ok() {
            super::futex::wake(self.process.futex_at(word), 1, u32::MAX);
        }
    }

    /// Goes on as the first thread of its program, as which the base knows the process. No other
    /// thread is left.
    pub(super) fn lead(&mut self) {
        let pages = *self.process.pages();
        if self.id == pages.pid() {
            return;
        }
        self.desk.post(request::THREAD_END, [0; 6]);
        self.desk = Desk::sit(pages.area(), pages.desk());
        self.process.signals().rename(self.id, pages.pid());
        self.id = pages.pid();
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.leave();
        self.process.signals().leave(self.id);
        let before = self.process.threads.fetch_sub(1, Ordering::AcqRel);
        if before == 2 && self.is_superseded() {
            super::futex::wake(self.process.alone_key(), 1, u32::MAX);
        }
    }
}
