//! Exit of threads and processes.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;

use insula_abi::lwk::request;

use crate::base::polling;
use crate::model::errno::Errno;
use crate::task::announcement;
use crate::task::flow::Flow;
use crate::task::process::Process;
use crate::task::thread::Thread;
use crate::task::{blocked, endpoint_registry, futex, mounted, pci, robust_list};

impl Thread {
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

    /// Exits the thread; the last one makes the process exit.
    pub fn exit(self: Box<Self>, status: u64) -> Flow {
        self.release_and(move |thread| match thread.mark_exited() {
            true => thread.exit_process(status),
            false => thread.exit_thread(),
        })
    }

    /// Exits the thread because another one executes a program.
    pub fn exit_for_exec(self: Box<Self>) -> Flow {
        self.release_and(Self::discard)
    }

    /// Exits the thread, which has never run.
    pub fn discard(&mut self) {
        self.mark_exited();
        self.exit_thread();
    }

    /// Releases its robust futexes, then exits: while others go on, the base has to be called for
    /// those in its memory, and for the word to clear.
    fn release_and(mut self: Box<Self>, exit: impl FnOnce(&mut Self) + Send + 'static) -> Flow {
        let is_done = robust_list::release(&mut self).is_none();
        if is_done && self.try_to_clear_tid_word() != Err(Errno::EBASEPAGE) {
            self.clear_child_tid = 0;
            exit(&mut self);
            return Flow::Exit(self);
        }
        Flow::handler(self, |mut thread| async move {
            if thread.release_robust_futexes().await {
                // As on Linux, a bad address is not reported.
                let _ = thread.with_base_pages(Self::try_to_clear_tid_word).await;
                thread.clear_child_tid = 0;
                exit(&mut thread);
            }
            Flow::Exit(thread)
        })
    }

    /// Marks the thread as exiting. Returns whether it is the last one.
    fn mark_exited(&mut self) -> bool {
        let has_exited = core::mem::replace(&mut self.has_exited, true);
        !has_exited && self.process.live_threads.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Releases its robust futexes as it exits with its process, and wakes waiters in shared memory.
    pub fn release_locks(&mut self) {
        if let Some(part) = robust_list::release(self) {
            let head = [part.first.unwrap_or_default(), part.offset, part.pending];
            self.slot.set_robust_list(self.process.pages(), head);
        }
        if self.process.mm().is_shared() {
            self.clear_tid_word();
        }
    }

    fn exit_thread(&mut self) {
        self.clear_tid_word();
        // The leader's thread on the base is the process, as which another thread may go on.
        if self.id != self.process.pages().pid() {
            self.slot.submit(request::THREAD_END, [0; 6]);
        }
    }

    /// Clears its `clear_child_tid` word and wakes a waiter.
    pub(super) fn clear_tid_word(&mut self) {
        // As on Linux, a bad address is not reported.
        let _ = self.try_to_clear_tid_word();
        self.clear_child_tid = 0;
    }

    /// The same, which may be repeated.
    fn try_to_clear_tid_word(&self) -> Result<(), Errno> {
        let word = self.clear_child_tid;
        if word != 0 {
            self.process.space().write(word, &[0; 4])?;
            futex::wake(self.process.futex_at(word), 1, u32::MAX);
        }
        Ok(())
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.mark_exited();
        self.process.note_stopped();
        self.process.signals().remove_thread(self.id);
        let before = self.process.threads.fetch_sub(1, Ordering::AcqRel);
        if before == 2 && self.is_killed_by_exec() {
            futex::wake(self.process.exec_key(), 1, u32::MAX);
        }
    }
}

impl Process {
    /// Makes all its threads exit. Returns whether this is the first call.
    pub fn begin_exit(&self) -> bool {
        let first = !self.exiting.swap(true, Ordering::AcqRel);
        if first {
            self.note_stopped();
            self.mm().note_leaving(&self.pages);
            self.complete_vfork();
            blocked::interrupt(self.pages.number(), |_| true);
            pci::release_all(self.pages.number());
            let ended = endpoint_registry::close_all(self.pages.number());
            ended.into_iter().for_each(announcement::end_all);
            mounted::remove(self);
            polling::poll_all();
        }
        first
    }

    /// Tells the base if no thread will run any more.
    fn note_stopped(&self) {
        if self.is_exiting() && self.live_threads.load(Ordering::Acquire) == 0 {
            self.pages().set_stopped();
        }
    }

    /// Makes all its threads but one exit. Returns whether no other thread did so before.
    pub(super) fn kill_other_threads(&self, thread: u64) -> bool {
        let claimed =
            self.exec_thread
                .compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed);
        if claimed.is_ok() && self.threads.load(Ordering::Acquire) > 1 {
            blocked::interrupt(self.pages.number(), Thread::is_killed_by_exec);
            polling::poll_all();
        }
        claimed.is_ok()
    }
}
