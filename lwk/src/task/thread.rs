//! A thread of a program.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use insula_abi::lwk::request;
use insula_bare::ports::PortSet;
use insula_bare::{ExtendedState, UserContext};

use crate::base::slot::Slot;
use crate::hw::memory::room::has_room;
use crate::model::errno::Errno;
use crate::model::rseq::Registration;
use crate::model::scheduling::{CoreSet, Priority};
use crate::model::signals::action::Action;
use crate::model::signals::frame::AltStack;
use crate::model::signals::info::Info;
use crate::model::signals::set::Set;
use crate::model::thread_handle::ThreadHandle;
use crate::task::address_space::base_access::{MissingPage, Retry};
use crate::task::file_call::FileCall;
use crate::task::image::PendingExec;
use crate::task::load;
use crate::task::process::Process;

/// Kernel memory needed for a thread, with the handler that it may be in.
pub const THREAD_BYTES: u64 = 24 << 10;

/// A call that a signal has interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptedCall {
    /// Its number.
    pub number: u64,
    /// Whether it had begun: else it is made in any case.
    pub has_begun: bool,
}

/// A thread of a program.
#[derive(Debug)]
pub struct Thread {
    /// Registers.
    pub context: UserContext,
    /// The program is not loaded yet.
    pub needs_load: bool,
    /// Address at which its id is to be stored before it runs; 0 for none.
    pub set_child_tid: u64,
    /// Page of a base mapping that is to be faulted in before it goes on, and what is done then.
    pub missing_page: Option<(MissingPage, Retry)>,
    /// Extended state, while the thread does not run.
    pub extended: ExtendedState,
    /// Its process.
    pub process: Arc<Process>,
    /// Thread id, the same as on the base.
    pub id: u64,
    /// Syscall slot.
    pub slot: Slot,
    /// Core that it belongs to.
    pub core: u32,
    /// Word that is cleared and woken as a futex when the thread exits; 0 for none.
    pub clear_child_tid: u64,
    /// List of robust futexes: address and size of the head.
    pub robust_list: (u64, u64),
    /// Registered `struct rseq`.
    pub rseq: Option<Registration>,
    /// State that others may access.
    pub handle: Arc<ThreadHandle>,
    /// Alternate signal stack.
    pub alt_stack: AltStack,
    /// Number of the current call, if a signal may interrupt it.
    pub interruptible_call: Option<u64>,
    /// Call that will be restarted because no handler ran for the signal.
    pub restarted_call: Option<InterruptedCall>,
    /// Whether it makes its call again before it returns to its program: a page that the call lacked
    /// has been faulted in.
    pub repeats_call: bool,
    /// Whether the base has cancelled the current call before it began.
    pub is_call_unbegun: bool,
    /// Return address of the last call that was cancelled before it began. When it is made again,
    /// no signal cancels it before `cancel_from_ns`.
    pub unbegun_call: Option<u64>,
    /// Time from which on a signal cancels the current call, in ns since boot.
    pub cancel_from_ns: u64,
    /// Deadline of the current or restarted call, in ns since boot.
    pub call_deadline_ns: Option<u64>,
    /// User id, if the base has been asked.
    pub uid: Option<u64>,
    /// Signal mask to restore after a call that set another one.
    pub saved_blocked: Option<Set>,
    /// Signal by which it has the base stop the program; it keeps its registers when that
    /// completes.
    pub stopping: Option<u32>,
    /// Signal that the proxy has at its default action, to stop, and shall catch again.
    pub(super) uncaught_in_proxy: Option<u32>,
    /// Signals that its thread of the proxy blocks.
    pub blocked_in_proxy: Set,
    /// Signal that was taken for a handler whose frame lacks a page of a base mapping.
    pub undelivered: Option<(Info, Action)>,
    /// Signals awaited by sigtimedwait(2), and the address for the siginfo.
    pub sigwait: Option<(Set, u64)>,
    /// In vfork(2), or while the program is stopped: the result with which it will be woken.
    pub wake_result: Option<u64>,
    /// It has begun to exit.
    pub(super) has_exited: bool,
    /// Prepared execve(2), to be completed when all other threads have exited.
    pub(super) pending_exec: Option<Box<PendingExec>>,
    /// Signal for which it writes the core file.
    pub dumping_core: Option<u32>,
    /// I/O ports that it may use; none for none.
    pub ports: Option<Arc<PortSet>>,
    /// Last exception: vector, error, address.
    pub last_exception: [u64; 3],
    /// Time since which it waits for memory, in ns since boot.
    pub memory_wait_since_ns: Option<u64>,
    /// What follows the reply of a server that it has asked.
    pub file_call: Option<FileCall>,
    /// When the base was last asked for descriptors that it watches beside sockets of a network server, in ns
    /// since boot.
    pub looked_ns: u64,
}

impl Thread {
    /// Creates a thread of `process` with a slot, a signal mask, a priority and an affinity; its
    /// registers are zero.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn new(
        process: Arc<Process>,
        (id, mut slot): (u64, Slot),
        blocked: Set,
        scheduling: (Priority, CoreSet),
    ) -> Result<Box<Self>, Errno> {
        let room = has_room(THREAD_BYTES).ok();
        let Some(extended) = room.and_then(|()| ExtendedState::new()) else {
            // Otherwise the proxy's thread would wait until the process exits.
            if id != process.pages().pid() {
                slot.submit(request::THREAD_END, [0; 6]);
            }
            return Err(Errno::ENOMEM);
        };
        let core = load::least_loaded(&scheduling.1);
        process.threads.fetch_add(1, Ordering::AcqRel);
        process.live_threads.fetch_add(1, Ordering::AcqRel);
        let handle = process.signals().add_thread(id, blocked, core, scheduling);
        Ok(Box::new(Self {
            context: UserContext::default(),
            needs_load: false,
            set_child_tid: 0,
            missing_page: None,
            extended,
            process,
            id,
            slot,
            core,
            clear_child_tid: 0,
            robust_list: (0, 0),
            rseq: None,
            handle,
            alt_stack: AltStack::default(),
            interruptible_call: None,
            restarted_call: None,
            repeats_call: false,
            is_call_unbegun: false,
            unbegun_call: None,
            cancel_from_ns: 0,
            call_deadline_ns: None,
            uid: None,
            saved_blocked: None,
            stopping: None,
            uncaught_in_proxy: None,
            blocked_in_proxy: 0,
            undelivered: None,
            sigwait: None,
            wake_result: None,
            has_exited: false,
            pending_exec: None,
            dumping_core: None,
            ports: None,
            last_exception: [0; 3],
            memory_wait_since_ns: None,
            file_call: None,
            looked_ns: 0,
        }))
    }

    /// Returns the priority and affinity that new threads inherit.
    #[must_use]
    pub fn inherited(&self) -> (Priority, CoreSet) {
        (self.handle.base_priority().inherited(), self.handle.cores())
    }

    /// Returns the arguments of its present system call, or of its last one.
    #[must_use]
    pub fn syscall_arguments(&self) -> [u64; 6] {
        let of = &self.context.registers;
        [of.rdi, of.rsi, of.rdx, of.r10, of.r8, of.r9]
    }

    /// Whether a file server has replied, and more follows.
    #[must_use]
    pub fn has_reply(&self) -> bool {
        self.file_call
            .as_ref()
            .is_some_and(|call| call.reply.is_some())
    }

    /// Has it make its call again before it returns to its program. The call keeps its deadline.
    pub fn repeat_call(&mut self) {
        self.restarted_call = Some(InterruptedCall {
            number: self.context.registers.rax,
            has_begun: false,
        });
        self.repeats_call = true;
    }

    /// Adds CPU time.
    pub fn account_run_time(&mut self, ticks: u64) {
        self.handle.cpu_ticks.fetch_add(ticks, Ordering::Relaxed);
        self.process.cpu_ticks.fetch_add(ticks, Ordering::Relaxed);
    }

    /// Whether the thread shall exit with its process.
    #[must_use]
    pub fn must_exit(&self) -> bool {
        self.process.is_exiting() && self.dumping_core.is_none()
    }

    /// Whether the thread shall exit because another one executes a program.
    #[must_use]
    pub fn is_killed_by_exec(&self) -> bool {
        let exec_thread = self.process.exec_thread.load(Ordering::Acquire);
        exec_thread != 0 && exec_thread != self.id
    }

    /// Whether it has an execve(2) to complete.
    #[must_use]
    pub fn has_pending_exec(&self) -> bool {
        self.pending_exec.is_some()
    }

    /// Whether the proxy shall catch a signal again that stopped the program.
    #[must_use]
    pub fn has_uncaught_signal(&self) -> bool {
        self.uncaught_in_proxy.is_some()
    }

    /// Whether it shall exit for any reason, and so must not block.
    #[must_use]
    pub fn must_not_block(&self) -> bool {
        self.process.is_exiting() || self.is_killed_by_exec()
    }

    /// Whether a pending signal ends its wait.
    #[must_use]
    pub(super) fn is_wakeable_by_signal(&self) -> bool {
        self.handle.is_signal_pending() && self.wake_result.is_none()
    }

    /// Whether it is the only thread of its process.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.process.threads.load(Ordering::Acquire) == 1
    }
}
