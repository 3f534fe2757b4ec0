//! Faults of processes: the base needs a page of a program outside of the program's calls, for
//! another process or for I/O. They are resolved by the core that the base rings, whatever the
//! program's threads do.
//!
//! A fault that has to wait, for memory or for a change of the address space, is retried by each
//! core that polls.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::base::counters::{self, Counter};
use crate::base::polling;
use crate::base::process_faults::ProcessFault;
use crate::base::process_pages::ProcessPages;
use crate::model::errno::Errno;
use crate::model::vma::Protection;
use crate::task::process::Process;
use crate::task::process_table::is_any_exiting;
use crate::task::remote::{CHANGE_RETRY_NS, MEMORY_RETRY_NS, populate_around};

/// Some fault has to be retried.
static IS_RETRY_DUE: AtomicBool = AtomicBool::new(false);

/// Whether faults have to be retried. The caller retries those of all processes.
pub(super) fn take_retry() -> bool {
    IS_RETRY_DUE.load(Ordering::Relaxed) && IS_RETRY_DUE.swap(false, Ordering::AcqRel)
}

/// Has this core retry a fault after a time.
fn retry_after(ns: u64) {
    IS_RETRY_DUE.store(true, Ordering::Release);
    polling::poll_after(ns);
}

impl Process {
    /// Resolves its faults, as far as possible now.
    pub(super) fn resolve_faults(&self) {
        for fault in self.pages.faults() {
            match self.resolve(&fault) {
                Err(Errno::EAGAIN) => retry_after(CHANGE_RETRY_NS),
                Err(Errno::ENOMEM) if is_any_exiting() => retry_after(MEMORY_RETRY_NS),
                resolved => {
                    counters::count(Counter::RemoteFaults);
                    fault.answer(resolved.err().map_or(0, Errno::as_result));
                }
            }
        }
    }

    fn resolve(&self, fault: &ProcessFault) -> Result<(), Errno> {
        let access = match fault.write {
            true => Protection::WRITE,
            false => Protection::READ,
        };
        let mut space = self.space();
        space.fault_of_base(fault.address, access)?;
        populate_around(&mut space, fault.address, access);
        space.note_awaited(fault.address, fault.resolution().into());
        Ok(())
    }
}

/// Denies the faults of a process that does not run here.
pub(super) fn deny_faults(pages: &ProcessPages) {
    for fault in pages.faults() {
        fault.answer(Errno::EFAULT.as_result());
    }
}
