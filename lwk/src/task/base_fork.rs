//! What forked proxies inherit of base mappings: Linux copies them, but for those that are in one proxy
//! only while several processes share a memory.

use crate::model::errno::Errno;
use crate::model::number::MADVISE;
use crate::model::vma::{Vma, VmaFlags};
use crate::task::fork::ForkOptions;
use crate::task::thread::Thread;

/// `MADV_DONTFORK` and `MADV_DOFORK`.
const DONT_FORK: u64 = 10;
const DO_FORK: u64 = 11;

impl Thread {
    /// Whether its process has had the memory longer than others that share it.
    pub(crate) fn owns_memory(&self) -> bool {
        self.process.mm().owner() == self.process.pages().number()
    }

    /// Prepares the proxy's mappings for a fork, with the change lock held; [`Self::end_base_fork`] is due.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub(super) async fn begin_base_fork(&mut self, options: &ForkOptions) -> Result<(), Errno> {
        match (self.owns_memory(), options.shares_mm) {
            (true, true) => self.advise_in_one_proxy(DONT_FORK).await,
            // The child would inherit nothing there.
            (false, false) if self.next_in_one_proxy(0).is_some() => Err(Errno::ENOMEM),
            _ => Ok(()),
        }
    }

    /// Undoes what [`Self::begin_base_fork`] did.
    pub(super) async fn end_base_fork(&mut self, options: &ForkOptions) {
        if options.shares_mm && self.owns_memory() {
            // It fails only if the proxy has exited.
            let _ = self.advise_in_one_proxy(DO_FORK).await;
        }
    }

    /// Gives an advice on each mapping in one proxy only that its program has not excluded from forks.
    async fn advise_in_one_proxy(&mut self, advice: u64) -> Result<(), Errno> {
        let mut next = 0;
        while let Some(Vma {
            start, end, flags, ..
        }) = self.next_in_one_proxy(next)
        {
            next = end;
            if !flags.contains(VmaFlags::DONT_FORK) {
                let arguments = [start, end - start, advice, 0, 0, 0];
                self.remote_syscall(MADVISE, arguments).await?;
            }
        }
        Ok(())
    }

    fn next_in_one_proxy(&self, start: u64) -> Option<Vma> {
        let space = self.process.space();
        let (_, end) = space.bounds();
        space.in_one_proxy_within(start, end)
    }
}
