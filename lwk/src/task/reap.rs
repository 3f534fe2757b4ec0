//! Freeing threads and processes that have exited.

use alloc::boxed::Box;

use crate::hw::power;
use crate::task::placement;
use crate::task::process_table::{is_reap_pending, remove, take_reapable};
use crate::task::thread::Thread;

/// Frees processes without threads whose memory the base no longer uses.
pub fn reap() {
    if !is_reap_pending() {
        return;
    }
    for process in take_reapable() {
        process.pages().set_page_table(0);
        process.mm().remove_sharer(process.pages());
        if remove(&process) {
            power::off("its last program has exited");
        }
    }
}

/// Ends a thread that is in no queue.
pub(crate) fn end_thread(mut thread: Box<Thread>) {
    thread.release_locks();
    thread.process.save_thread_dump(&thread);
    placement::detach(&thread);
    drop(thread);
    reap();
}
