//! Memory whose pages a server can share with the kernel, and what it tells the kernel of them
//! (`abi/include/insula_files.h`).
//!
//! Of a page that programs have mapped the content may change at any time: it is bytes that are copied, nothing else.
//!
//! A page that has been shared becomes free only after the kernel was told that it is not shared any more: so long it
//! keeps what it had, and no reader finds in it what is another file's.

#![allow(unsafe_code, reason = "memory that is mapped is used by address")]

mod sharing;

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut, RangeInclusive};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::libc::c_void;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use self::sharing::Sharing;
use crate::Announcement;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Pages beyond those that a cache needs: while they wait to be free again.
const SPARE: usize = 320;

/// A shared mapping.
struct Region {
    start: NonNull<c_void>,
    bytes: NonZeroUsize,
}

// SAFETY: the mapping stays until it is dropped, and is used by the blocks of its pages alone.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn map(pages: usize) -> Option<Self> {
        let bytes = NonZeroUsize::new(pages.checked_mul(PAGE)?)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(None, bytes, access, flags) }.ok()?;
        Some(Self { start, bytes })
    }

    fn page(&self, page: u32) -> *mut u8 {
        let start = self.start.as_ptr().cast::<u8>();
        start.wrapping_add(page as usize * PAGE)
    }

    /// Returns the page that begins at an address, if it is one of these.
    fn page_at(&self, address: usize) -> Option<u32> {
        let offset = address.checked_sub(self.start.as_ptr().addr())?;
        let is_page = offset < self.bytes.get() && offset.is_multiple_of(PAGE);
        is_page.then_some((offset / PAGE) as u32)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more. That fails for wrong arguments only.
        let _ = unsafe { munmap(self.start, self.bytes.get()) };
    }
}

struct Pool {
    /// None if there was no room for it.
    region: Option<Region>,
    state: Mutex<Sharing>,
}

/// Pages for cached content of files.
#[derive(Clone)]
pub struct PagePool(Arc<Pool>);

impl fmt::Debug for PagePool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PagePool").finish_non_exhaustive()
    }
}

impl PagePool {
    /// Creates one for a cache of so many bytes. It needs memory as it is used.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Pool {
            region: Region::map((bytes / PAGE).saturating_add(SPARE)),
            state: Mutex::default(),
        }))
    }

    /// Returns a block of zeros: a page, if it has the size of one and there is one; else the server's own memory, which cannot
    /// be shared.
    #[must_use]
    pub fn block(&self, bytes: usize) -> Block {
        let page = (bytes == PAGE).then(|| self.take_page()).flatten();
        let Some(page) = page else {
            return Block(Room::Own(vec![0; bytes].into_boxed_slice()));
        };
        let mut block = Block(Room::Page(page));
        block.fill(0);
        block
    }

    fn state(&self) -> MutexGuard<'_, Sharing> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_page(&self) -> Option<Page> {
        let region = self.0.region.as_ref()?;
        let number = self.state().take_page(region.bytes.get() / PAGE)?;
        let start = NonNull::new(region.page(number))?;
        let pool = self.clone();
        Some(Page {
            pool,
            number,
            start,
        })
    }

    /// Shares the page in which bytes lie, if it is one of these: they are those at an offset of a file, which has that
    /// size. What lies elsewhere cannot be shared.
    pub(crate) fn share(&self, bytes: &[u8], (inode, offset): (u64, u64), size: u64) {
        let address = bytes.as_ptr().addr().wrapping_sub(offset as usize % PAGE);
        let region = self.0.region.as_ref();
        if let Some(page) = region.and_then(|region| region.page_at(address)) {
            let at = (address as u64, size);
            let place = (inode, offset / PAGE as u64);
            self.state().share(page, place, at);
        }
    }

    /// Whether the page of a file with that number is shared.
    pub(crate) fn is_shared(&self, inode: u64, number: u64) -> bool {
        self.state().is_shared((inode, number))
    }

    /// Has a page of a file that is mapped be known, in which bytes lie from its start on; none if they lie elsewhere.
    pub(crate) fn map(&self, bytes: &[u8], (inode, number): (u64, u64)) -> Option<()> {
        let address = bytes.as_ptr().addr();
        self.0.region.as_ref()?.page_at(address)?;
        self.state().map(inode, number, address as u64);
        Some(())
    }

    /// Ends the sharing of a file's pages: it becomes shorter, or loses blocks, or is no more.
    pub(crate) fn invalidate(&self, inode: u64) {
        self.invalidate_pages(inode, 0..=u64::MAX);
    }

    /// Ends the sharing of some of a file's pages, by their numbers, of which its size may have changed.
    pub(crate) fn invalidate_pages(&self, inode: u64, numbers: RangeInclusive<u64>) {
        self.state().invalidate(inode, numbers);
    }

    /// Ends the sharing of a page, by its number: it is cached no more, and as it was.
    pub(crate) fn evict(&self, inode: u64, number: u64) {
        self.state().evict((inode, number));
    }

    /// Has the next read of a file be requested: its size or its times change.
    pub(crate) fn set_changed(&self, inode: u64) {
        self.state().set_changed(inode);
    }

    /// Takes what is to be announced with the reply to a request. With the next call it has been.
    pub(crate) fn take_announcements(&self) -> Vec<Announcement> {
        self.state().take_announcements()
    }
}

/// A page of a pool.
struct Page {
    pool: PagePool,
    number: u32,
    start: NonNull<u8>,
}

// SAFETY: it alone gives access to memory that stays mapped as long as its pool.
unsafe impl Send for Page {}
// SAFETY: as above; by a shared reference it is only read.
unsafe impl Sync for Page {}

/// Where a block is.
enum Room {
    Page(Page),
    /// The server's own memory.
    Own(Box<[u8]>),
}

/// A block of cached content.
pub struct Block(Room);

impl fmt::Debug for Block {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Block").finish_non_exhaustive()
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: a page of the region, of which this is the only block. Others may have mapped it: what they write
            // are bytes, of which any is valid.
            Room::Page(page) => unsafe { std::slice::from_raw_parts(page.start.as_ptr(), PAGE) },
            Room::Own(bytes) => bytes,
        }
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            // SAFETY: as above, and the block is borrowed exclusively.
            Room::Page(page) => unsafe {
                std::slice::from_raw_parts_mut(page.start.as_ptr(), PAGE)
            },
            Room::Own(bytes) => bytes,
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Room::Page(page) = &self.0 {
            page.pool.state().release(page.number);
        }
    }
}
