//! Parents blocked in vfork(2).

use core::sync::atomic::Ordering;

use crate::model::futex::Key;
use crate::task::futex;
use crate::task::process::Process;
use crate::task::thread::Thread;

/// Returns the key of a thread in vfork(2). It is not an address, so no futex has it.
pub(crate) fn vfork_key(thread: &Thread, child: &Process) -> Key {
    (
        thread.process.pages.number(),
        u64::MAX - child.pages.number(),
    )
}

impl Process {
    /// Whether the parent is blocked in vfork(2) on this process.
    pub(crate) fn blocks_parent(&self) -> bool {
        self.blocks_parent.load(Ordering::Acquire)
    }

    /// Wakes the parent from vfork(2): this process executes a program or exits.
    pub(super) fn complete_vfork(&self) {
        if self.blocks_parent.swap(false, Ordering::AcqRel) {
            let key = (self.pages.parent(), u64::MAX - self.pages.number());
            futex::wake(key, 1, u32::MAX);
        }
    }
}
