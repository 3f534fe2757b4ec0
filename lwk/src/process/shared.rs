//! Memory that several programs may have: what a program has mapped to be shared stays one memory when
//! the program forks. Its frames are its own, and are freed when nobody has it any more.

#![allow(
    unsafe_code,
    reason = "fresh frames are cleared through the direct map"
)]

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use insula_bare::memory::{self, FRAME_SIZE, PhysAddr};

use super::errno::Errno;
use crate::memory::{give_block, take_for_program};

/// Number of what is the kernel's.
pub const KERNELS: u64 = 0;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Such a memory.
#[derive(Debug)]
pub struct Shared {
    number: u64,
    frames: spin::Mutex<BTreeMap<u64, PhysAddr>>,
}

impl Shared {
    /// One in which all is zero.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            frames: spin::Mutex::new(BTreeMap::new()),
        })
    }

    /// The kernel's own frames, which no program writes.
    #[must_use]
    pub fn of_kernel(frames: impl IntoIterator<Item = PhysAddr>) -> Arc<Self> {
        Arc::new(Self {
            number: KERNELS,
            frames: spin::Mutex::new((0..).zip(frames).collect()),
        })
    }

    /// What tells it from others.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The frame of its page of that index, which is there from now on.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn frame(&self, index: u64) -> Result<PhysAddr, Errno> {
        let mut frames = self.frames.lock();
        if self.number == KERNELS && !frames.contains_key(&index) {
            return Err(Errno::EFAULT);
        }
        if let Some(&frame) = frames.get(&index) {
            return Ok(frame);
        }
        let frame = take_for_program(0).ok_or(Errno::ENOMEM)?;
        // SAFETY: it has just been taken.
        unsafe { memory::clear(frame, FRAME_SIZE) };
        frames.insert(index, frame);
        Ok(frame)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.number == KERNELS {
            return;
        }
        for &frame in self.frames.lock().values() {
            give_block(frame, 0);
        }
    }
}
