//! Starting a forked child whose proxy is ready.

use alloc::boxed::Box;
use alloc::sync::Arc;

use insula_abi::lwk::request;

use crate::base::process_pages::ProcessPages;
use crate::base::slot::Slot;
use crate::task::flow::Flow;
use crate::task::process::Process;
use crate::task::run_queue;
use crate::task::thread::Thread;

impl Process {
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
        thread.ports = nascent_child.ports;
        thread.set_child_tid = nascent_child.set_child_tid;
        run_queue::enqueue(thread);
    }
}

/// Stores the id of a new thread where its parent has asked for it.
pub(crate) fn store_child_tid(thread: Box<Thread>) -> Flow {
    Flow::handler(thread, |mut thread| async move {
        let at = core::mem::take(&mut thread.set_child_tid);
        let id = (thread.id as u32).to_le_bytes();
        let store = |thread: &Thread| thread.process.space().write(at, &id);
        // As on Linux, a bad address is not reported.
        let _ = thread.with_base_pages(store).await;
        Flow::Continue(thread)
    })
}

/// Makes the proxy of a process that will not run exit.
pub(super) fn kill_proxy(pages: ProcessPages) {
    const KILLED: u64 = 9;
    pages.set_stopped();
    if pages.area().slot_belongs_to(pages.slot(), pages.number()) {
        Slot::attach(pages.area(), pages.slot()).submit(request::EXIT, [KILLED, 0, 0, 0, 0, 0]);
    }
}
