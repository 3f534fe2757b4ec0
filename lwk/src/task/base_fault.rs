//! Page faults of a program in base mappings: the base faults the page in, as an access of the proxy.

use insula_abi::lwk::request;

use crate::model::errno::{Errno, of_result};
use crate::model::vma::{PAGE, Protection};
use crate::task::thread::Thread;

impl Thread {
    /// Faults in a page of a base mapping.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] if the program may not access it; [`Errno::EIO`] if the base cannot:
    /// beyond the end of the file, for example; [`Errno::ENOMEM`]; [`Errno::EINTR`] if the proxy
    /// has exited.
    pub(crate) async fn fault_in(&mut self, address: u64, access: Protection) -> Result<(), Errno> {
        let result = self.try_fault_in(address, access).await;
        if !matches!(result, Err(Errno::EFAULT | Errno::EIO)) {
            return result;
        }
        // Another thread may be changing the mapping: its proxy has changed, the VMA not yet.
        let _guard = self.process.mm().change().await;
        match self.process.space().fault(address, access) {
            Err(Errno::EBASEPAGE) => {}
            result => return result,
        }
        self.try_fault_in(address, access).await
    }

    async fn try_fault_in(&mut self, address: u64, access: Protection) -> Result<(), Errno> {
        loop {
            let told = self.process.space().prepare_base_fault(address, access)?;
            let owner = self.process.mm().owner();
            let arguments = [address, told, owner, 0, 0, 0];
            let reply = self.remote_call(request::FAULT_IN, arguments).await;
            let Ok((result, _)) = reply else {
                return Err(Errno::EINTR);
            };
            match of_result(result) {
                Ok(_) => return Ok(()),
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(Errno::ENOMEM) => return Err(Errno::ENOMEM),
                Err(_) => return Err(Errno::EIO),
            }
        }
    }

    /// Faults in the pages of the base mappings in a range that the program's page table lacks.
    ///
    /// # Errors
    /// As of [`Thread::fault_in`], of the first page that fails.
    pub(crate) async fn populate_base(
        &mut self,
        (start, end): (u64, u64),
        access: Protection,
    ) -> Result<(), Errno> {
        let mut next = start;
        loop {
            let missing = self.process.space().missing_base_page((next, end), access);
            let Some(address) = missing else {
                return Ok(());
            };
            self.fault_in(address, access).await?;
            next = address + PAGE;
        }
    }
}
