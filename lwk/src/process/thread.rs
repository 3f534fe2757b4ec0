//! A thread of a program.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use insula_abi::lwk::{INVALIDATE_NO_QUIESCE, base_state, request};
use insula_bare::{ExtendedState, UserContext, cpu};

use super::Process;
use super::address_space::{AddressSpace, Invalidation, Pinned, Placement};
use super::errno::{Errno, of_result};
use super::exec::PendingExec;
use super::mm::{AddressSpaceGuard, Mm};
use super::rseq::Registration;
use super::scheduling::{CoreSet, Priority};
use super::signals::frame::AltStack;
use super::signals::{Info, Set, ThreadHandle};
use super::vma::Protection;
use crate::cores::{self, Counter};
use crate::delegation::{Reply, Slot};
use crate::memory::has_room;
use crate::{clock, info};

/// Size of fault-around: a remote fault also populates the rest of this aligned range, because the
/// base mostly accesses buffers.
const FAULT_AROUND: u64 = 64 << 10;

/// Kernel memory needed for a thread.
pub const THREAD_BYTES: u64 = 16 << 10;

/// The proxy has exited, so there will be no reply; the process exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyExited;

/// A thread of a program.
#[derive(Debug)]
pub struct Thread {
    /// Registers.
    pub context: UserContext,
    /// The program is not loaded yet.
    pub needs_load: bool,
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
    /// Number of the call that will be restarted because no handler ran for the signal.
    pub restarted_call: Option<u64>,
    /// Deadline of the current or restarted call, in ns since boot.
    pub call_deadline_ns: Option<u64>,
    /// User id, if the base has been asked.
    pub uid: Option<u64>,
    /// Signal mask to restore after a call that set another one.
    pub saved_blocked: Option<Set>,
    /// It has the base stop the program, and keeps its registers when that completes.
    pub is_stopping: bool,
    /// Signal that the proxy has at its default action, to stop, and shall catch again.
    pub(super) uncaught_in_proxy: Option<u32>,
    /// Tty stop signals that its thread of the proxy blocks.
    pub blocked_in_proxy: Set,
    /// Signals awaited by sigtimedwait(2), and the address for the siginfo.
    pub sigwait: Option<(Set, u64)>,
    /// In vfork(2), or while the program is stopped: the result with which it will be woken.
    pub wake_result: Option<u64>,
    /// It has begun to exit.
    has_exited: bool,
    /// Prepared execve(2), to be completed when all other threads have exited.
    pub(super) pending_exec: Option<Box<PendingExec>>,
    /// Signal for which it writes the core file.
    pub dumping_core: Option<u32>,
    /// Last exception: vector, error, address.
    pub last_exception: [u64; 3],
    /// CPU time, in ticks of the time stamp counter.
    pub cpu_ticks: u64,
    /// Time since which it waits for memory, in ns since boot.
    pub memory_wait_since_ns: Option<u64>,
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
        let core = cores::least_loaded(&scheduling.1);
        process.threads.fetch_add(1, Ordering::AcqRel);
        process.live_threads.fetch_add(1, Ordering::AcqRel);
        let handle = process.signals().add_thread(id, blocked, core, scheduling);
        Ok(Box::new(Self {
            context: UserContext::default(),
            needs_load: false,
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
            call_deadline_ns: None,
            uid: None,
            saved_blocked: None,
            is_stopping: false,
            uncaught_in_proxy: None,
            blocked_in_proxy: 0,
            sigwait: None,
            wake_result: None,
            has_exited: false,
            pending_exec: None,
            dumping_core: None,
            last_exception: [0; 3],
            cpu_ticks: 0,
            memory_wait_since_ns: None,
        }))
    }

    /// Returns the priority and affinity that new threads inherit.
    #[must_use]
    pub fn inherited(&self) -> (Priority, CoreSet) {
        (self.handle.base_priority().inherited(), self.handle.cores())
    }

    /// Polls for the slot's reply; resolves a remote fault.
    ///
    /// # Errors
    /// [`ProxyExited`].
    pub fn poll(&mut self) -> Result<Option<(u64, u64)>, ProxyExited> {
        match self.slot.poll() {
            Some(Reply::Result { result, value }) => Ok(Some((result, value))),
            Some(Reply::Fault { address, write }) => {
                let space = self.process.space();
                self.resolve_remote_fault(space, address, write);
                Ok(None)
            }
            None if self.must_exit() => Err(ProxyExited),
            None => Ok(None),
        }
    }

    /// Has the base cancel the current call if a signal is pending, or if the thread shall exit.
    /// Not close(2): nobody could tell afterwards whether the file is closed.
    pub fn interrupt_for_signal(&mut self) {
        let is_wanted = self.handle.is_signal_pending() || self.is_killed_by_exec();
        if is_wanted
            && !self.is_stopping
            && self.interruptible_call != Some(crate::syscall::number::CLOSE)
        {
            self.slot.interrupt();
        }
    }

    /// Adds CPU time.
    pub fn account_run_time(&mut self, ticks: u64) {
        self.cpu_ticks += ticks;
        self.process.cpu_ticks.fetch_add(ticks, Ordering::Relaxed);
    }

    /// Resolves a remote fault of this thread's call, unless the address space is locked.
    pub fn try_resolve_remote_fault(&mut self) {
        if let Some(Reply::Fault { address, write }) = self.slot.poll()
            && let Some(space) = self.process.mm().try_space()
        {
            self.resolve_remote_fault(space, address, write);
        }
    }

    /// Resolves a remote fault, or replies with an error.
    fn resolve_remote_fault(&mut self, mut space: AddressSpaceGuard, address: u64, write: bool) {
        cores::count(Counter::RemoteFaults);
        let access = if write {
            Protection::WRITE
        } else {
            Protection::READ
        };
        let resolved = space.fault(address, access);
        if resolved.is_ok() {
            // Fault-around may fail.
            let _ = space.populate(address, (address | (FAULT_AROUND - 1)) + 1, access);
            self.memory_wait_since_ns = None;
        }
        drop(space);
        if resolved == Err(Errno::ENOMEM) && !self.must_not_block() {
            if self.may_wait_for_memory() {
                // The fault stays in the slot, and is retried.
                return;
            }
            self.kill_out_of_memory();
        }
        let error = resolved.err().map_or(0, |error| match error {
            // Where a program would get SIGBUS, a call fails with EFAULT.
            Errno::EIO => Errno::EFAULT.as_result(),
            error => error.as_result(),
        });
        self.slot.submit(request::RESOLVED, [error, 0, 0, 0, 0, 0]);
    }

    /// Whether a thread may wait for memory: for a while, and only as long as a process is exiting.
    pub fn may_wait_for_memory(&mut self) -> bool {
        /// Timeout: the base may pin the exited program's pages for any time.
        const TIMEOUT_NS: u64 = 10_000_000_000;
        let now_ns = clock::now_ns();
        let since_ns = *self.memory_wait_since_ns.get_or_insert(now_ns);
        now_ns - since_ns < TIMEOUT_NS && super::is_any_exiting()
    }

    /// Whether it waits for memory.
    pub fn is_waiting_for_memory(&self) -> bool {
        self.memory_wait_since_ns.is_some()
    }

    /// Kills the program in the middle of a call, as Linux does without free memory.
    fn kill_out_of_memory(&mut self) {
        const KILL: u32 = 9;
        info!("process {} is killed: out of memory", self.id);
        // SIGKILL always fits into the queue.
        let _ = self
            .process
            .send_signal(None, Info::sent(KILL, Info::KERNEL, 0, 0));
    }

    /// Makes a remote call: submits it and spins for the reply on this core, which runs no thread
    /// meanwhile. It still resolves remote faults of threads that wait here, as the base may need
    /// them first: to fork, for example, it locks the proxy's mm once no call waits for a page. If
    /// the reply is late, perhaps because the proxy is stopped, other cores get this one's ready
    /// threads.
    ///
    /// # Errors
    /// [`ProxyExited`].
    pub fn remote_call(
        &mut self,
        number: u64,
        arguments: [u64; 6],
    ) -> Result<(u64, u64), ProxyExited> {
        cores::count(Counter::Requests);
        self.slot.submit(number, arguments);
        let mut spin_wait = cores::SpinWait::begin();
        loop {
            if let Some(reply) = self.poll()? {
                return Ok(reply);
            }
            if self.process.pages().base_state() >= base_state::EXITED {
                return Err(ProxyExited);
            }
            cores::resolve_remote_faults();
            spin_wait.hand_off_ready();
            cpu::poll_interrupts();
            cpu::relax();
        }
    }

    /// Writes words for the thread's next call. Returns their address, if it is known.
    #[must_use]
    pub fn put_scratch(&self, words: &[u64]) -> Option<u64> {
        self.slot.put_scratch(self.process.pages(), words)
    }

    /// Makes a system call on the base, with arguments that the program may have chosen.
    ///
    /// # Errors
    /// The call's errors; [`Errno::EINTR`] if the proxy has exited: the process is about to exit.
    pub fn remote_syscall(&mut self, number: u64, arguments: [u64; 6]) -> Result<u64, Errno> {
        let bounds = self.process.pages().bounds();
        self.remote_syscall_as_kernel(
            number,
            crate::syscall::mask_proxy_pointers(arguments, bounds),
        )
    }

    /// Like [`Thread::remote_syscall`], with the kernel's own arguments, which may point to the
    /// scratch words.
    ///
    /// # Errors
    /// As above.
    pub fn remote_syscall_as_kernel(
        &mut self,
        number: u64,
        arguments: [u64; 6],
    ) -> Result<u64, Errno> {
        loop {
            match self
                .remote_call(number, arguments)
                .map(|(result, _)| of_result(result))
            {
                // A cancellation meant for an earlier call of the program.
                Ok(Err(Errno::EINTR)) => {}
                Ok(result) => return result,
                Err(ProxyExited) => return Err(Errno::EINTR),
            }
        }
    }

    /// Completes its call if the reply has arrived.
    pub fn take_reply(&mut self) -> bool {
        match self.slot.poll() {
            Some(Reply::Result { result, .. }) => {
                self.complete_call(result);
                true
            }
            _ => false,
        }
    }

    /// Completes the call of the program, or a stop of the program.
    pub fn complete_call(&mut self, result: u64) {
        match core::mem::take(&mut self.is_stopping) {
            true => self.process.resume(),
            false => self.context.registers.rax = result,
        }
    }

    /// Calls a function with fresh memory of the program, as a buffer for remote calls.
    ///
    /// # Errors
    /// Errors of `operation`; [`Errno::ENOMEM`].
    pub fn with_buffer<T>(
        &mut self,
        size: u64,
        operation: impl FnOnce(&mut Self, u64) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let protection = Protection::READ | Protection::WRITE;
        let start = self.with_space(|space, invalidate| {
            space.map(Placement::Hint(0), size, protection, invalidate)
        })?;
        let result = operation(self, start);
        self.with_space(|space, invalidate| space.unmap(start, start + size, invalidate))?;
        result
    }

    /// Calls a function with the locked address space and an invalidation callback. Waits while the
    /// process is being forked: the base would complete no invalidation before the fork, and no
    /// fork before its remote faults are resolved, for which the address space is needed.
    pub fn with_space<T>(
        &mut self,
        operation: impl FnOnce(&mut AddressSpace, &mut super::address_space::Invalidate) -> T,
    ) -> T {
        let mm = self.process.mm();
        let mut space = self.space_outside_fork(&mm);
        operation(&mut space, &mut |range: Invalidation| {
            let flags = if range.keeps_pages {
                INVALIDATE_NO_QUIESCE
            } else {
                0
            };
            match range.force || mm.may_be_mapped(range.start, range.end) {
                true => self.invalidate(range.start, range.end, flags),
                false => Pinned::NONE,
            }
        })
    }

    fn space_outside_fork(&self, mm: &Mm) -> AddressSpaceGuard {
        cores::wait_for(|| {
            let space = mm.space();
            if !self.process.is_forking() {
                return Some(space);
            }
            drop(space);
            cores::resolve_remote_faults();
            None
        })
    }

    /// Has the base invalidate a range. Returns the program's pinned frames.
    pub(super) fn invalidate(&mut self, start: u64, end: u64, flags: u64) -> Pinned {
        let ticket = self.process.next_invalidation();
        let invalidated = self.remote_call(
            request::INVALIDATE,
            [start, end - start, ticket, flags, 0, 0],
        );
        let pages = self.process.pages();
        let is_done =
            invalidated.is_ok_and(|(result, _)| result == 0) && pages.invalidated() == ticket;
        match (is_done, pages.pinned()) {
            (false, _) => Pinned::NotInvalidated,
            (true, None) => Pinned::Unknown,
            (true, Some(frames)) => Pinned::Frames(frames),
        }
    }

    /// Makes the process and its proxy exit, with a status as of wait(2).
    pub fn exit_process(&mut self, status: u64) {
        if self.process.begin_exit() {
            self.exit_proxy(status);
        }
    }

    /// Makes the proxy exit with a status.
    pub fn exit_proxy(&mut self, status: u64) {
        self.slot.submit(request::EXIT, [status, 0, 0, 0, 0, 0]);
    }

    /// Terminates the process by a signal that dumps core. This thread writes the core file when
    /// all others have exited.
    pub fn begin_core_dump(&mut self, signal: u32) {
        let first =
            self.process
                .dumper
                .compare_exchange(0, self.id, Ordering::AcqRel, Ordering::Relaxed);
        if first.is_ok() {
            if self.process.begin_exit() {
                self.dumping_core = Some(signal);
            } else {
                self.process.dumper.store(0, Ordering::Release);
            }
        }
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

    /// Exits the thread; the last one makes the process exit.
    pub fn exit(&mut self, status: u64) {
        match self.mark_exited() {
            true => self.exit_process(status),
            false => self.exit_thread(),
        }
    }

    /// Exits the thread because another one executes a program.
    pub fn exit_for_exec(&mut self) {
        self.mark_exited();
        self.exit_thread();
    }

    /// Marks the thread as exiting. Returns whether it is the last one.
    fn mark_exited(&mut self) -> bool {
        let has_exited = core::mem::replace(&mut self.has_exited, true);
        !has_exited && self.process.live_threads.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Releases its robust futexes, and wakes waiters in shared memory.
    pub fn release_locks(&mut self) {
        super::robust_list::release(self);
        if self.process.mm().is_shared() {
            self.clear_tid_word();
        }
    }

    fn exit_thread(&mut self) {
        super::robust_list::release(self);
        self.clear_tid_word();
        // The leader's thread on the base is the process, as which another thread may go on.
        if self.id != self.process.pages().pid() {
            self.slot.submit(request::THREAD_END, [0; 6]);
        }
    }

    /// Clears its `clear_child_tid` word and wakes a waiter.
    pub(super) fn clear_tid_word(&mut self) {
        let word = core::mem::take(&mut self.clear_child_tid);
        if word != 0 && self.process.space().write(word, &[0; 4]).is_ok() {
            super::futex::wake(self.process.futex_at(word), 1, u32::MAX);
        }
    }

    /// Becomes the thread group leader, after all other threads have exited.
    pub(super) fn become_leader(&mut self) {
        let pages = *self.process.pages();
        if self.id == pages.pid() {
            return;
        }
        self.slot.submit(request::THREAD_END, [0; 6]);
        self.slot = Slot::attach(pages.area(), pages.slot());
        self.process.signals().rename(self.id, pages.pid());
        self.id = pages.pid();
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.mark_exited();
        self.process.signals().remove_thread(self.id);
        let before = self.process.threads.fetch_sub(1, Ordering::AcqRel);
        if before == 2 && self.is_killed_by_exec() {
            super::futex::wake(self.process.exec_key(), 1, u32::MAX);
        }
    }
}
