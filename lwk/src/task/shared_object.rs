//! Shared-memory objects: a shared mapping refers to the same object in parent and child after
//! fork(2). An object owns its frames and is freed with its last mapping.

#![allow(
    unsafe_code,
    reason = "fresh frames are cleared through the direct map"
)]

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use insula_bare::memory::{self, FRAME_SIZE, PhysAddr};

use crate::hw::memory::frames::{alloc_for_program, free_block};
use crate::model::errno::Errno;

/// Number of the kernel's own object, with the pages of the vDSO.
pub const KERNEL_OBJECT: u64 = 0;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// A shared-memory object.
#[derive(Debug)]
pub struct SharedObject {
    number: u64,
    frames: spin::Mutex<BTreeMap<u64, PhysAddr>>,
}

impl SharedObject {
    /// Creates an object without frames.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            frames: spin::Mutex::new(BTreeMap::new()),
        })
    }

    /// Creates an object of the kernel's own frames, which programs cannot write.
    #[must_use]
    pub fn from_kernel_frames(frames: impl IntoIterator<Item = PhysAddr>) -> Arc<Self> {
        Arc::new(Self {
            number: KERNEL_OBJECT,
            frames: spin::Mutex::new((0..).zip(frames).collect()),
        })
    }

    /// Returns its number, by which it is identified.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the frame of a page; allocates it zeroed if it is missing.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn frame(&self, index: u64) -> Result<PhysAddr, Errno> {
        let mut frames = self.frames.lock();
        if self.number == KERNEL_OBJECT && !frames.contains_key(&index) {
            return Err(Errno::EFAULT);
        }
        if let Some(&frame) = frames.get(&index) {
            return Ok(frame);
        }
        let frame = alloc_for_program(0).ok_or(Errno::ENOMEM)?;
        // SAFETY: it has just been allocated.
        unsafe { memory::clear(frame, FRAME_SIZE) };
        frames.insert(index, frame);
        Ok(frame)
    }
}

impl Drop for SharedObject {
    fn drop(&mut self) {
        if self.number == KERNEL_OBJECT {
            return;
        }
        for &frame in self.frames.lock().values() {
            free_block(frame, 0);
        }
    }
}
