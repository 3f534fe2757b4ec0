//! Shared-memory objects: a shared mapping refers to the same object in parent and child after
//! fork(2). An object owns its frames and is freed with its last mapping.

#![allow(
    unsafe_code,
    reason = "fresh frames are cleared through the direct map"
)]

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::any::Any;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use insula_bare::memory::{self, FRAME_SIZE, PhysAddr};

use crate::hw::memory::frames::{alloc_for_program, free_block};
use crate::model::errno::Errno;

/// Number of the kernel's own object, with the pages of the vDSO.
pub const KERNEL_OBJECT: u64 = 0;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Pages that are others'.
pub(crate) trait PageSource: fmt::Debug + Send + Sync + Any {
    /// Returns the frame of a page.
    ///
    /// # Errors
    /// [`Errno::EIO`] if there is none.
    fn frame(&self, index: u64) -> Result<PhysAddr, Errno>;
}

/// Where its frames come from.
#[derive(Debug)]
enum Backing {
    /// They are allocated one by one when they are accessed first.
    OnAccess,
    /// They are the kernel's own.
    Kernel,
    /// They are one block.
    Block(PhysAddr, u8),
    /// They are so many pages of a device's registers.
    Registers(PhysAddr, u64),
    /// They are others', which programs may write or not.
    Source(Arc<dyn PageSource>, bool),
}

/// A shared-memory object.
#[derive(Debug)]
pub struct SharedObject {
    number: u64,
    backing: Backing,
    frames: spin::Mutex<BTreeMap<u64, PhysAddr>>,
}

impl SharedObject {
    /// Creates an object without frames.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::of(Backing::OnAccess)
    }

    fn of(backing: Backing) -> Arc<Self> {
        Arc::new(Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            backing,
            frames: spin::Mutex::new(BTreeMap::new()),
        })
    }

    /// Creates an object of one zeroed block of 2^order frames. Returns it, and where it is.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn of_block(order: u8) -> Result<(Arc<Self>, PhysAddr), Errno> {
        let block = alloc_for_program(order).ok_or(Errno::ENOMEM)?;
        // SAFETY: it has just been allocated.
        unsafe { memory::clear(block, FRAME_SIZE << order) };
        Ok((Self::of(Backing::Block(block, order)), block))
    }

    /// Creates an object of a device's registers: so many pages.
    #[must_use]
    pub fn of_registers(start: PhysAddr, pages: u64) -> Arc<Self> {
        Self::of(Backing::Registers(start, pages))
    }

    /// Creates an object of others' pages, which programs may write or not.
    #[must_use]
    pub(crate) fn from_source(source: Arc<dyn PageSource>, is_writable: bool) -> Arc<Self> {
        Self::of(Backing::Source(source, is_writable))
    }

    /// Creates an object of the kernel's own frames, which programs cannot write.
    #[must_use]
    pub fn from_kernel_frames(frames: impl IntoIterator<Item = PhysAddr>) -> Arc<Self> {
        Arc::new(Self {
            number: KERNEL_OBJECT,
            backing: Backing::Kernel,
            frames: spin::Mutex::new((0..).zip(frames).collect()),
        })
    }

    /// Returns its number, by which it is identified.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether it is memory that a program has for itself: no device's, no server's, and not the kernel's.
    #[must_use]
    pub fn is_of_program(&self) -> bool {
        matches!(self.backing, Backing::OnAccess)
    }

    /// Returns whose pages it has, if they are others'.
    pub(crate) fn source<T: PageSource>(&self) -> Option<Arc<T>> {
        match &self.backing {
            Backing::Source(source, _) => {
                let source: Arc<dyn Any + Send + Sync> = Arc::clone(source) as Arc<_>;
                source.downcast().ok()
            }
            _ => None,
        }
    }

    /// Whether programs may write it.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        !matches!(self.backing, Backing::Kernel | Backing::Source(_, false))
    }

    /// Returns the frame of a page; allocates it zeroed if it is missing.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`]; [`Errno::EFAULT`] beyond its end.
    pub fn frame(&self, index: u64) -> Result<PhysAddr, Errno> {
        let within = |start: PhysAddr, pages: u64| match index < pages {
            true => Ok(PhysAddr(start.0 + index * FRAME_SIZE)),
            false => Err(Errno::EFAULT),
        };
        match &self.backing {
            Backing::Block(start, order) => within(*start, 1 << order),
            Backing::Registers(start, pages) => within(*start, *pages),
            Backing::Source(source, _) => source.frame(index),
            Backing::Kernel => self.frames.lock().get(&index).copied().ok_or(Errno::EFAULT),
            Backing::OnAccess => self.frame_on_access(index),
        }
    }

    fn frame_on_access(&self, index: u64) -> Result<PhysAddr, Errno> {
        let mut frames = self.frames.lock();
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
        match &self.backing {
            Backing::Kernel | Backing::Registers(..) | Backing::Source(..) => {}
            Backing::Block(start, order) => free_block(*start, *order),
            Backing::OnAccess => {
                for &frame in self.frames.lock().values() {
                    free_block(frame, 0);
                }
            }
        }
    }
}
