//! What a thread has the base do: system calls and requests of the kernel itself, invalidations;
//! and what the base asks for meanwhile, the program's pages.
//!
//! No core waits for the base: each of these is a future, polled with the thread's handler.

use core::future::poll_fn;
use core::sync::atomic::Ordering;
use core::task::Poll;

use insula_abi::lwk::{INVALIDATE_NO_QUIESCE, INVALIDATE_SHARED, NOT_BEGUN, base_state, request};

use crate::base::counters::{self, Counter};
use crate::base::slot::Reply;
use crate::base::{polling, proxy_pointers};
use crate::hw::clock;
use crate::info;
use crate::model::errno::{Errno, of_result};
use crate::model::number::CLOSE;
use crate::model::signals::info::Info;
use crate::model::vma::Protection;
use crate::task::address_space::quarantine::Pinned;
use crate::task::address_space::stop::{Invalidation, Stop};
use crate::task::address_space::{AddressSpace, Placement};
use crate::task::mm::{ChangeGuard, Mm, Step};
use crate::task::process_table;
use crate::task::thread::Thread;

/// Size of fault-around: a remote fault also populates the rest of this aligned range, because the
/// base mostly accesses buffers.
const FAULT_AROUND: u64 = 64 << 10;
/// Period in which a remote fault is retried that waits for a change of the address space, and a
/// change that waits for a remote fault.
pub(super) const CHANGE_RETRY_NS: u64 = 100_000;
/// Period in which is retried what lacks memory that others will free: no interrupt announces that.
pub(super) const MEMORY_RETRY_NS: u64 = 1_000_000;

/// The proxy has exited, so there will be no reply; the process exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyExited;

/// Populates what follows the page of an address, as far as possible.
pub(super) fn populate_around(space: &mut AddressSpace, address: u64, access: Protection) {
    let _ = space.populate(address, (address | (FAULT_AROUND - 1)) + 1, access);
}

/// Waits a while for memory that others will free.
pub(super) async fn wait_for_memory() {
    polling::sleep_until(clock::now_ns() + MEMORY_RETRY_NS).await;
}

/// Waits a while for another thread's change of the address space.
pub(crate) async fn wait_for_change() {
    polling::sleep_until(clock::now_ns() + CHANGE_RETRY_NS).await;
}

/// Waits until the base has looked up the pages that it awaits in a range.
async fn wait_while_awaited(mm: &Mm, start: u64, end: u64) {
    poll_fn(|_| match mm.space().is_awaited(start, end) {
        true => {
            polling::poll_after(CHANGE_RETRY_NS);
            Poll::Pending
        }
        false => Poll::Ready(()),
    })
    .await;
}

impl Thread {
    /// Polls for the slot's reply; resolves a remote fault.
    ///
    /// # Errors
    /// [`ProxyExited`].
    pub fn poll(&mut self) -> Result<Option<(u64, u64)>, ProxyExited> {
        self.slot.set_doorbell(polling::armed_doorbell());
        match self.slot.poll() {
            Some(Reply::Result { result, value }) => {
                self.slot.set_doorbell(0);
                polling::note_reply();
                Ok(Some((result, value)))
            }
            Some(Reply::Fault { address, write }) => {
                self.resolve_remote_fault(address, write);
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
        if is_wanted && self.interruptible_call != Some(CLOSE) {
            match self.cancel_from_ns.saturating_sub(clock::now_ns()) {
                0 => self.slot.interrupt(),
                left_ns => polling::poll_after(left_ns),
            }
        }
    }

    /// Resolves a remote fault, or replies with an error. Without memory, or while the page is
    /// being unmapped or shared, the fault stays in the slot, and is retried.
    fn resolve_remote_fault(&mut self, address: u64, write: bool) {
        let access = if write {
            Protection::WRITE
        } else {
            Protection::READ
        };
        let mut space = self.process.space();
        let resolved = space.fault_of_base(address, access);
        if resolved.is_ok() {
            populate_around(&mut space, address, access);
            space.note_awaited(address, self.slot.resolution().into());
            self.memory_wait_since_ns = None;
        }
        drop(space);
        match resolved {
            Err(Errno::EAGAIN) => return polling::poll_after(CHANGE_RETRY_NS),
            Err(Errno::ENOMEM) if !self.must_not_block() => {
                if self.may_wait_for_memory() {
                    return polling::poll_after(MEMORY_RETRY_NS);
                }
                self.kill_out_of_memory();
            }
            _ => {}
        }
        counters::count(Counter::RemoteFaults);
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
        now_ns - since_ns < TIMEOUT_NS && process_table::is_any_exiting()
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

    /// Makes a remote call: submits it and waits for the reply.
    ///
    /// # Errors
    /// [`ProxyExited`].
    pub async fn remote_call(
        &mut self,
        number: u64,
        arguments: [u64; 6],
    ) -> Result<(u64, u64), ProxyExited> {
        counters::count(Counter::Requests);
        self.slot.submit(number, arguments);
        poll_fn(|_| self.poll_remote_call()).await
    }

    fn poll_remote_call(&mut self) -> Poll<Result<(u64, u64), ProxyExited>> {
        match self.poll() {
            Ok(Some(reply)) => Poll::Ready(Ok(reply)),
            Ok(None) if self.process.pages().base_state() >= base_state::EXITED => {
                Poll::Ready(Err(ProxyExited))
            }
            Ok(None) => Poll::Pending,
            Err(exited) => Poll::Ready(Err(exited)),
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
    pub async fn remote_syscall(&mut self, number: u64, arguments: [u64; 6]) -> Result<u64, Errno> {
        let (bounds, region) = (self.process.pages().bounds(), self.process.region());
        let arguments = proxy_pointers::mask_proxy_pointers(arguments, bounds, region);
        self.remote_syscall_as_kernel(number, arguments).await
    }

    /// Like [`Thread::remote_syscall`], with the kernel's own arguments, which may point to the
    /// scratch words.
    ///
    /// # Errors
    /// As above.
    pub async fn remote_syscall_as_kernel(
        &mut self,
        number: u64,
        arguments: [u64; 6],
    ) -> Result<u64, Errno> {
        loop {
            let Ok((result, _)) = self.remote_call(number, arguments).await else {
                return Err(Errno::EINTR);
            };
            match of_result(result) {
                // A cancellation meant for an earlier call of the program.
                Err(Errno::EINTR) => {}
                result => return result,
            }
        }
    }

    /// Makes a system call on the base that may wait, as [`Thread::remote_syscall_as_kernel`] does, until
    /// `ends` says that it shall wait no longer, or this thread shall exit: the base cancels it then.
    ///
    /// # Errors
    /// The call's errors; [`Errno::EINTR`] if it was cancelled.
    pub(crate) async fn waiting_syscall(
        &mut self,
        number: u64,
        arguments: [u64; 6],
        mut ends: impl FnMut(&Self) -> bool,
    ) -> Result<u64, Errno> {
        counters::count(Counter::Requests);
        self.slot.submit(number, arguments);
        let reply = poll_fn(|_| {
            let polled = self.poll_remote_call();
            if polled.is_pending() && ends(self) {
                self.slot.interrupt();
            }
            polled
        });
        match reply.await {
            Ok((result, _)) => of_result(result),
            Err(ProxyExited) => Err(Errno::EINTR),
        }
    }

    /// Completes the call of the program.
    pub fn complete_call(&mut self, (result, value): (u64, u64)) {
        self.context.registers.rax = result;
        self.is_call_unbegun = value == NOT_BEGUN;
    }

    /// Maps fresh memory of the program, as a buffer for remote calls. Returns its address.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub(crate) async fn map_buffer(&mut self, size: u64) -> Result<u64, Errno> {
        let protection = Protection::READ | Protection::WRITE;
        self.change_space(move |space| space.map(Placement::Hint(0), size, protection))
            .await
    }

    /// Unmaps a buffer.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub(crate) async fn unmap_buffer(&mut self, start: u64, size: u64) -> Result<(), Errno> {
        self.change_space(move |space| space.unmap(start, start + size))
            .await
    }

    /// Changes the address space. `operation` is called again after each invalidation that it asks
    /// for.
    ///
    /// # Errors
    /// Those of `operation`.
    pub(crate) async fn change_space<T>(
        &mut self,
        mut operation: impl FnMut(&mut AddressSpace) -> Result<T, Stop>,
    ) -> Result<T, Errno> {
        let guard = self.process.mm().change().await;
        let step = guard.begin(&mut operation);
        self.finish_change(guard, step, operation).await
    }

    /// Completes a change after its first step.
    ///
    /// # Errors
    /// Those of `operation`.
    pub(crate) async fn finish_change<T>(
        &mut self,
        mut guard: ChangeGuard,
        mut step: Step<T>,
        mut operation: impl FnMut(&mut AddressSpace) -> Result<T, Stop>,
    ) -> Result<T, Errno> {
        loop {
            step = match step {
                Step::Done(result) => return result,
                Step::Invalidate(range) => {
                    let pinned = self.invalidate(&range).await;
                    guard.resume((&range, &pinned), &mut operation)
                }
                Step::Await(start, end) => {
                    wait_while_awaited(guard.mm(), start, end).await;
                    guard.begin(&mut operation)
                }
                Step::EndBaseMapping(start, end) => {
                    guard = self.end_base_mapping(guard, start, end).await?;
                    guard.begin(&mut operation)
                }
            }
        }
    }

    /// Frees the program's frames in quarantine that the base no longer pins. Returns whether there
    /// were any.
    pub(crate) async fn reclaim(&mut self) -> bool {
        let guard = self.process.mm().change().await;
        let range = guard.mm().space().pinned_probe();
        let Some(range) = range else {
            return false;
        };
        let pinned = self.invalidate(&range).await;
        guard.mm().space().finish_invalidation(&range, &pinned)
    }

    /// Has the base invalidate a range, with the change lock held. Returns the program's pinned
    /// frames.
    pub(super) async fn invalidate(&mut self, range: &Invalidation) -> Pinned {
        let mut flags = 0;
        if range.keeps_pages {
            flags |= INVALIDATE_NO_QUIESCE;
        }
        if self.process.mm().is_shared() {
            flags |= INVALIDATE_SHARED;
        }
        let ticket = self
            .process
            .invalidation_ticket
            .fetch_add(1, Ordering::Relaxed)
            + 1;
        let arguments = [range.start, range.end - range.start, ticket, flags, 0, 0];
        let invalidated = self.remote_call(request::INVALIDATE, arguments).await;
        let pages = self.process.pages();
        let is_done =
            invalidated.is_ok_and(|(result, _)| result == 0) && pages.invalidated() == ticket;
        match (is_done, pages.pinned()) {
            (false, _) => Pinned::NotInvalidated,
            (true, None) => Pinned::Unknown,
            (true, Some(frames)) => Pinned::Frames(frames),
        }
    }
}
