//! fork(2), vfork(2), and clone(2) without CLONE_THREAD.
//!
//! The memory is copied here first. Then the base forks the proxy and gives the child a process.
//! The child runs once its proxy is ready, which may be before or after the base's reply, or never.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use insula_abi::lwk::{process_state, request};
use insula_bare::{ExtendedState, UserContext};

use super::address_space::AddressSpace;
use super::errno::{Errno, of_result};
use super::loader::PROCESS_BYTES;
use super::mm::Mm;
use super::rseq::Registration;
use super::scheduling::{CoreSet, Priority};
use super::signals::frame::AltStack;
use super::signals::{Set, Signals};
use super::{Key, Process, Thread, futex, process_table};
use crate::cores;
use crate::delegation::{ProcessPages, Slot};
use crate::memory::has_room;

/// How a process is forked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForkOptions {
    /// Flags of clone(2) that the base implements.
    pub flags: u64,
    /// Address at which the base stores the pidfd, if requested.
    pub pidfd: u64,
    /// Stack pointer of the child; 0 for that of the caller.
    pub stack: u64,
    /// FS base of the child; `None` for that of the caller.
    pub tls: Option<u64>,
    /// Address in the child's memory at which its thread id is stored; 0 for none.
    pub set_child_tid: u64,
    /// Address of the word that is cleared when the child exits.
    pub clear_child_tid: u64,
    /// The child has no signal handlers.
    pub clear_handlers: bool,
    /// The child shares the parent's memory.
    pub shares_mm: bool,
    /// The caller is blocked until the child executes a program or exits.
    pub blocks_parent: bool,
}

/// First thread of a child that has no id and slot yet.
#[derive(Debug)]
pub(super) struct NascentChild {
    context: UserContext,
    extended: ExtendedState,
    blocked: Set,
    scheduling: (Priority, CoreSet),
    alt_stack: AltStack,
    rseq: Option<Registration>,
    set_child_tid: u64,
    clear_child_tid: u64,
}

/// Returns the key of a thread in vfork(2). It is not an address, so no futex has it.
pub(crate) fn vfork_key(thread: &Thread, child: &Process) -> Key {
    (
        thread.process.pages.number(),
        u64::MAX - child.pages.number(),
    )
}

/// Forks a process with the calling thread alone. Returns the child's id and process.
///
/// # Errors
/// As of fork(2).
pub(crate) async fn fork(
    thread: &mut Thread,
    options: &ForkOptions,
) -> Result<(u64, Arc<Process>), Errno> {
    has_room(PROCESS_BYTES)?;
    let nascent_child = NascentChild::of(thread, options)?;
    let parent = Arc::clone(&thread.process);
    parent.forks_in_progress.fetch_add(1, Ordering::AcqRel);
    let child = fork_process(thread, options, nascent_child).await;
    parent.forks_in_progress.fetch_sub(1, Ordering::AcqRel);
    process_table::service_children(&parent);
    child
}

/// Forks with the change lock held: the base would complete no invalidation before the fork, and
/// the child's memory is that of the moment at which the proxy is forked.
async fn fork_process(
    thread: &mut Thread,
    options: &ForkOptions,
    nascent_child: NascentChild,
) -> Result<(u64, Arc<Process>), Errno> {
    let parent = Arc::clone(&thread.process);
    let _guard = parent.mm().change().await;
    let space = match options.shares_mm {
        true => None,
        false => Some(parent.clone_space()?),
    };
    match request_fork(thread, options).await {
        Ok((id, pages)) => {
            let mm = parent.child_mm(space, pages);
            let child = parent.new_child(pages, mm, options);
            *child.nascent_child.lock() = Some(Box::new(nascent_child));
            process_table::add(Arc::clone(&child));
            Ok((id, child))
        }
        Err(error) => {
            space.into_iter().for_each(|mut space| space.free());
            Err(error)
        }
    }
}

/// Has the base fork the proxy. Returns the child's id and pages.
async fn request_fork(
    thread: &mut Thread,
    options: &ForkOptions,
) -> Result<(u64, ProcessPages), Errno> {
    let created = thread
        .remote_call(request::FORK, [options.flags, options.pidfd, 0, 0, 0, 0])
        .await;
    // The proxy unblocks all signals afterwards.
    thread.blocked_in_proxy = 0;
    let (id, number) = created.map_err(|_| Errno::EINTR)?;
    let id = of_result(id).map_err(|error| match error {
        // The base has no room for more processes.
        Errno::ENOSPC => Errno::EAGAIN,
        error => error,
    })?;
    let own = thread.process.pages;
    let pages = ProcessPages::at(own.area(), number);
    let is_child = own.area().can_hold_process(number)
        && own.area().slot_belongs_to(pages.slot(), number)
        && pages.parent() == own.number()
        && pages.state() == process_state::UNKNOWN;
    is_child.then_some((id, pages)).ok_or(Errno::EAGAIN)
}

impl NascentChild {
    fn of(thread: &mut Thread, options: &ForkOptions) -> Result<Self, Errno> {
        let mut context = thread.context;
        context.registers.rax = 0;
        if options.stack != 0 {
            context.registers.rsp = options.stack;
        }
        if options.tls.is_some_and(|tls| !context.set_base(false, tls)) {
            return Err(Errno::EPERM);
        }
        Ok(Self {
            context,
            extended: thread.extended.duplicate().ok_or(Errno::ENOMEM)?,
            blocked: thread.process.signals().blocked(thread.id),
            scheduling: thread.inherited(),
            // Threads that run concurrently in the same memory do not share a signal stack.
            alt_stack: match options.shares_mm && !options.blocks_parent {
                false => thread.alt_stack,
                true => AltStack::default(),
            },
            rseq: thread.rseq.filter(|_| !options.shares_mm),
            set_child_tid: options.set_child_tid,
            clear_child_tid: options.clear_child_tid,
        })
    }
}

impl Process {
    /// Clones the address space.
    fn clone_space(&self) -> Result<AddressSpace, Errno> {
        let mut own = self.space();
        let bounds = own.bounds();
        let mut space =
            crate::start::with_kernel_table(|kernel| AddressSpace::new(kernel, bounds))?;
        match own.clone_into(&mut space) {
            Ok(()) => Ok(space),
            Err(error) => {
                space.free();
                Err(error)
            }
        }
    }

    /// Returns the child's memory: the cloned space, or else this process's own.
    fn child_mm(&self, space: Option<AddressSpace>, pages: ProcessPages) -> Arc<Mm> {
        let Some(space) = space else {
            let mm = self.mm();
            mm.add_sharer(pages);
            return mm;
        };
        Mm::new(space, pages)
    }

    /// Creates the child, which inherits from this process.
    fn new_child(&self, pages: ProcessPages, mm: Arc<Mm>, options: &ForkOptions) -> Arc<Self> {
        let mut signals = self.signals().clone_for_child();
        if options.clear_handlers {
            signals.clear_handlers();
        }
        let child = Self::new(pages, mm);
        *child.signals.lock() = signals;
        *child.limits.lock() = self.limits().clone();
        child.set_personality(self.personality());
        *child.program_info.lock() = self.program_info.lock().clone();
        child
            .blocks_parent
            .store(options.blocks_parent, Ordering::Release);
        pages.set_page_table(child.space().root().0);
        pages.set_state(process_state::ALIVE);
        child
    }

    /// Starts a child whose proxy is ready.
    pub(super) fn wake_up_new(self: &Arc<Self>) {
        let Some(nascent_child) = self.nascent_child.lock().take() else {
            return;
        };
        let slot = Slot::attach(self.pages.area(), self.pages.slot());
        let identity = (self.pages.pid(), slot);
        let thread = Thread::new(
            Arc::clone(self),
            identity,
            nascent_child.blocked,
            nascent_child.scheduling,
        );
        let Ok(mut thread) = thread else {
            return kill_proxy(self.pages);
        };
        thread.context = nascent_child.context;
        thread.extended = nascent_child.extended;
        thread.alt_stack = nascent_child.alt_stack;
        thread.rseq = nascent_child.rseq;
        thread.clear_child_tid = nascent_child.clear_child_tid;
        if nascent_child.set_child_tid != 0 {
            let id = (thread.id as u32).to_le_bytes();
            // As on Linux, a bad address is not reported.
            let _ = self.space().write(nascent_child.set_child_tid, &id);
        }
        cores::enqueue(thread);
    }

    /// Whether the parent is blocked in vfork(2) on this process.
    pub(crate) fn blocks_parent(&self) -> bool {
        self.blocks_parent.load(Ordering::Acquire)
    }

    /// Whether a thread is in fork(2): the base may have a child that this kernel does not know
    /// yet.
    pub(super) fn is_forking(&self) -> bool {
        self.forks_in_progress.load(Ordering::Acquire) > 0
    }

    /// Wakes the parent from vfork(2): this process executes a program or exits.
    pub(super) fn complete_vfork(&self) {
        if self.blocks_parent.swap(false, Ordering::AcqRel) {
            let key = (self.pages.parent(), u64::MAX - self.pages.number());
            futex::wake(key, 1, u32::MAX);
        }
    }
}

/// Makes the proxy of a process that will not run exit.
pub(super) fn kill_proxy(pages: ProcessPages) {
    const KILLED: u64 = 9;
    if pages.area().slot_belongs_to(pages.slot(), pages.number()) {
        Slot::attach(pages.area(), pages.slot()).submit(request::EXIT, [KILLED, 0, 0, 0, 0, 0]);
    }
}

impl Signals {
    /// Returns what a child inherits: the actions, but no pending signals.
    fn clone_for_child(&self) -> Self {
        let mut child = Self::default();
        for signal in 1..=super::signals::SIGNALS {
            child.set_action(signal, self.action(signal));
        }
        child
    }
}
