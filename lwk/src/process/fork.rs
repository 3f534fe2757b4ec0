//! A program that becomes two.
//!
//! The base makes a process for the copy, whose proxy is a child of the program's. Its memory is
//! copied here, before that. The copy runs once its proxy says that it is ready: which may be before
//! or after the base's answer, or never.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use insula_abi::lwk::{process_state, request};
use insula_bare::{ExtendedState, UserContext};

use super::begin::PROCESS_BYTES;
use super::errno::{Errno, of_result};
use super::memory::Memory;
use super::rseq::Registration;
use super::scheduling::{CoreSet, Priority};
use super::signals::frame::Alternate;
use super::signals::{Set, Signals};
use super::space::Space;
use super::{Key, Process, Thread, futex, list};
use crate::cores;
use crate::delegation::{Desk, ProcessPages};
use crate::memory::has_room;

/// How a program is copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copying {
    /// What the base has to know: flags of clone(2).
    pub flags: u64,
    /// Where the base writes what they ask for.
    pub told: u64,
    /// The copy's stack pointer; 0: that of the thread.
    pub stack: u64,
    /// The base of FS; none: that of the thread.
    pub tls: Option<u64>,
    /// Where the copy finds its id, in its own memory; 0: nowhere.
    pub set_tid: u64,
    /// Where its end is told.
    pub clear_at_end: u64,
    /// Its signals have no handlers.
    pub clears_handlers: bool,
    /// Its memory is that of the program, not a copy.
    pub shares_memory: bool,
    /// The thread will wait until the copy goes its own way.
    pub holds_parent: bool,
}

/// The thread of a copy, before it has an id.
#[derive(Debug)]
pub(super) struct Embryo {
    context: UserContext,
    extended: ExtendedState,
    blocked: Set,
    scheduling: (Priority, CoreSet),
    alternate: Alternate,
    rseq: Option<Registration>,
    set_tid: u64,
    clear_at_end: u64,
}

/// What a thread waits for that waits until a copy of its program goes its own way: no place of a
/// program.
pub(crate) fn copy_key(thread: &Thread, copy: &Process) -> Key {
    (
        thread.process.pages.number(),
        u64::MAX - copy.pages.number(),
    )
}

/// Makes a copy of a thread's program, with that thread alone. The copy, and its id.
///
/// # Errors
/// As of fork(2).
pub(crate) fn fork(thread: &mut Thread, how: &Copying) -> Result<(u64, Arc<Process>), Errno> {
    has_room(PROCESS_BYTES)?;
    let embryo = Embryo::of(thread, how)?;
    let parent = Arc::clone(&thread.process);
    parent.forking.fetch_add(1, Ordering::AcqRel);
    let copy = fork_alone(thread, how, embryo);
    parent.forking.fetch_sub(1, Ordering::AcqRel);
    list::look_at_copies(&parent);
    copy
}

/// The same, while no other thread has the base let go of memory: see [`Thread::with_space`].
fn fork_alone(
    thread: &mut Thread,
    how: &Copying,
    embryo: Embryo,
) -> Result<(u64, Arc<Process>), Errno> {
    let parent = Arc::clone(&thread.process);
    let space = match how.shares_memory {
        true => {
            drop(parent.space()); // whoever had it before is through
            None
        }
        false => Some(parent.copied_space()?),
    };
    match ask(thread, how) {
        Ok((id, pages)) => {
            let memory = parent.memory_of_copy(space, pages);
            let copy = parent.copy(pages, memory, how);
            *copy.embryo.lock() = Some(Box::new(embryo));
            list::add(Arc::clone(&copy));
            Ok((id, copy))
        }
        Err(error) => {
            space.into_iter().for_each(|mut space| space.free());
            Err(error)
        }
    }
}

/// Has the base make a process for a copy: its id and its pages.
fn ask(thread: &mut Thread, how: &Copying) -> Result<(u64, ProcessPages), Errno> {
    let asked = thread.ask(request::FORK, [how.flags, how.told, 0, 0, 0, 0]);
    // The proxy unblocks all afterwards.
    thread.blocked_in_proxy = 0;
    let (id, number) = asked.map_err(|_| Errno::EINTR)?;
    let id = of_result(id).map_err(|error| match error {
        // As many processes as the base has room for.
        Errno::ENOSPC => Errno::EAGAIN,
        error => error,
    })?;
    let own = thread.process.pages;
    let pages = ProcessPages::at(own.area(), number);
    let is_copy = own.area().can_hold_process(number)
        && own.area().desk_is_of(pages.desk(), number)
        && pages.parent() == own.number()
        && pages.state() == process_state::UNKNOWN;
    is_copy.then_some((id, pages)).ok_or(Errno::EAGAIN)
}

impl Embryo {
    fn of(thread: &mut Thread, how: &Copying) -> Result<Self, Errno> {
        let mut context = thread.context;
        context.registers.rax = 0;
        if how.stack != 0 {
            context.registers.rsp = how.stack;
        }
        if how.tls.is_some_and(|tls| !context.set_base(false, tls)) {
            return Err(Errno::EPERM);
        }
        thread.extended.save();
        Ok(Self {
            context,
            extended: thread.extended.duplicate().ok_or(Errno::ENOMEM)?,
            blocked: thread.process.signals().blocked(thread.id),
            scheduling: thread.inherited(),
            // Two who run in one memory do not share a stack.
            alternate: match how.shares_memory && !how.holds_parent {
                false => thread.alternate,
                true => Alternate::default(),
            },
            rseq: thread.rseq.filter(|_| !how.shares_memory),
            set_tid: how.set_tid,
            clear_at_end: how.clear_at_end,
        })
    }
}

impl Process {
    /// Memory with the same in it as this one's.
    fn copied_space(&self) -> Result<Space, Errno> {
        let mut own = self.space();
        let bounds = own.bounds();
        let mut space = crate::start::with_kernel_table(|kernel| Space::new(kernel, bounds))?;
        match own.copy_to(&mut space) {
            Ok(()) => Ok(space),
            Err(error) => {
                space.free();
                Err(error)
            }
        }
    }

    /// Of a copy that has no space of its own it is this one's.
    fn memory_of_copy(&self, space: Option<Space>, pages: ProcessPages) -> Arc<Memory> {
        let Some(space) = space else {
            let memory = self.memory();
            memory.join(pages);
            return memory;
        };
        Memory::new(space, pages)
    }

    /// A process with that memory and what else a copy has of this one.
    fn copy(&self, pages: ProcessPages, memory: Arc<Memory>, how: &Copying) -> Arc<Self> {
        let mut signals = self.signals().copy();
        if how.clears_handlers {
            signals.clear_handlers();
        }
        let copy = Self::new(pages, memory);
        *copy.signals.lock() = signals;
        *copy.limits.lock() = self.limits().clone();
        copy.set_personality(self.personality());
        *copy.words.lock() = self.words.lock().clone();
        copy.holds_parent.store(how.holds_parent, Ordering::Release);
        pages.set_page_table(copy.space().root().0);
        pages.set_state(process_state::ALIVE);
        copy
    }

    /// Has a copy run, whose proxy is ready.
    pub(super) fn hatch(self: &Arc<Self>) {
        let Some(embryo) = self.embryo.lock().take() else {
            return;
        };
        let desk = Desk::sit(self.pages.area(), self.pages.desk());
        let identity = (self.pages.pid(), desk);
        let thread = Thread::new(
            Arc::clone(self),
            identity,
            embryo.blocked,
            embryo.scheduling,
        );
        let Ok(mut thread) = thread else {
            return abandon(self.pages);
        };
        thread.context = embryo.context;
        thread.extended = embryo.extended;
        thread.alternate = embryo.alternate;
        thread.rseq = embryo.rseq;
        thread.clear_at_end = embryo.clear_at_end;
        if embryo.set_tid != 0 {
            let id = (thread.id as u32).to_le_bytes();
            // As on Linux, nobody is told of a wrong address.
            let _ = self.space().write(embryo.set_tid, &id);
        }
        cores::send(thread);
    }

    /// Whether a thread of the program that this is a copy of is to wait.
    pub(crate) fn holds_parent(&self) -> bool {
        self.holds_parent.load(Ordering::Acquire)
    }

    /// Whether it is being copied: a copy may be there of which the base has not told it yet.
    pub(super) fn is_forking(&self) -> bool {
        self.forking.load(Ordering::Acquire) > 0
    }

    /// It goes its own way: to another program, or to its end.
    pub(super) fn let_parent_go(&self) {
        if self.holds_parent.swap(false, Ordering::AcqRel) {
            let key = (self.pages.parent(), u64::MAX - self.pages.number());
            futex::wake(key, 1, u32::MAX);
        }
    }
}

/// Ends the proxy of a process that will not run.
pub(super) fn abandon(pages: ProcessPages) {
    const KILLED: u64 = 9;
    if pages.area().desk_is_of(pages.desk(), pages.number()) {
        Desk::sit(pages.area(), pages.desk()).post(request::EXIT, [KILLED, 0, 0, 0, 0, 0]);
    }
}

impl Signals {
    /// What a copy of the program has of them: what is to be done, but nothing that has come.
    fn copy(&self) -> Self {
        let mut copy = Self::default();
        for signal in 1..=super::signals::SIGNALS {
            copy.set_action(signal, self.action(signal));
        }
        copy
    }
}
