//! PCI functions of the node, as the base has described them in the monitor's memory.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering};

use insula_abi::monitor::MonitorFunction;

/// A function.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Virtual address of its [`MonitorFunction`].
    start: u64,
}

impl Function {
    /// The functions of an array at a virtual address.
    ///
    /// # Safety
    /// The base laid them out there, and they stay.
    pub unsafe fn all(start: u64, count: u32) -> impl Iterator<Item = Self> + use<> {
        let starts = (start..).step_by(size_of::<MonitorFunction>());
        starts.take(count as usize).map(|start| Self { start })
    }

    fn word32(&self, offset: usize) -> &'static AtomicU32 {
        // SAFETY: the array stays, and its words are only accessed as atomics.
        unsafe { AtomicU32::from_ptr((self.start as usize + offset) as *mut u32) }
    }

    /// Bus, device and function.
    #[must_use]
    pub fn address(&self) -> u32 {
        self.word32(offset_of!(MonitorFunction, address))
            .load(Ordering::Relaxed)
    }

    /// Word number `index`, below 64, of its configuration space, and the bits of it that the node can
    /// change.
    #[must_use]
    pub fn config(&self, index: usize) -> (&'static AtomicU32, u32) {
        let word = self.word32(offset_of!(MonitorFunction, config) + 4 * index);
        let writable = self.word32(offset_of!(MonitorFunction, writable) + 4 * index);
        (word, writable.load(Ordering::Relaxed))
    }
}
