//! Pages of a memory object in this process, which only system calls access: once they are gone,
//! an access by the process itself would end it.

#![allow(
    unsafe_code,
    reason = "the kernel is given addresses of memory that may be gone at any moment"
)]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use io_uring::{IoUring, opcode, types};
use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::base::support::insula_command::TIMEOUT;

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;

/// A mapping whose memory only the kernel reads and writes.
#[derive(Debug)]
pub(super) struct MappedPages {
    start: NonNull<libc::c_void>,
    size: NonZeroUsize,
}

// SAFETY: the mapping is not tied to a thread, and its memory is passed to the kernel only.
unsafe impl Send for MappedPages {}
// SAFETY: as above.
unsafe impl Sync for MappedPages {}

impl MappedPages {
    /// The first `size` bytes of the descriptor's memory.
    pub(super) fn map(fd: impl AsFd, size: usize) -> Result<Self, Errno> {
        let size = NonZeroUsize::new(size).ok_or(Errno::EINVAL)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap(None, size, protection, MapFlags::MAP_SHARED, fd, 0) }?;
        Ok(Self { start, size })
    }

    /// Anonymous memory of this process.
    pub(super) fn anonymous(size: usize) -> Result<Self, Errno> {
        let size = NonZeroUsize::new(size).ok_or(Errno::EINVAL)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap_anonymous(None, size, protection, MapFlags::MAP_PRIVATE) }?;
        Ok(Self { start, size })
    }

    /// Size of all pages, in bytes.
    pub(super) fn size(&self) -> usize {
        self.size.get()
    }

    /// Discards pages: later reads find zero, or the file's content.
    pub(super) fn discard(&self, pages: Range<usize>) -> Result<(), Errno> {
        let (start, size) = (self.address(pages.start), pages.len() * PAGE);
        assert!(pages.end * PAGE <= self.size.get(), "{pages:?}");
        // SAFETY: the pages are this mapping's, and there are no references to their memory.
        let answer = unsafe { libc::madvise(start.cast(), size, libc::MADV_DONTNEED) };
        Errno::result(answer).map(drop)
    }

    /// Unmaps all pages. Their addresses stay reserved: system calls on them fail with `EFAULT`.
    pub(super) fn unmap(&self) -> Result<(), Errno> {
        let start = NonZeroUsize::new(self.start.as_ptr() as usize);
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED;
        // SAFETY: exactly this mapping is replaced, and there are no references to its memory.
        unsafe { mmap_anonymous(start, self.size, ProtFlags::PROT_NONE, flags) }.map(drop)
    }

    /// Writes the first word of a page.
    pub(super) fn poke(&self, page: usize, word: u64) -> Result<(), Errno> {
        let bytes = word.to_le_bytes();
        let here = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let there = libc::iovec {
            iov_base: self.address(page).cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: the kernel reads the bytes of `word`, and writes to this process's own page or
        // refuses.
        let count = unsafe {
            libc::process_vm_writev(libc::getpid(), &raw const here, 1, &raw const there, 1, 0)
        };
        Errno::result(count).map(drop)
    }

    /// Start of a page.
    ///
    /// # Panics
    /// When the page does not exist.
    pub(super) fn address(&self, page: usize) -> *mut u8 {
        assert!((page + 1) * PAGE <= self.size.get(), "page {page}");
        self.start.as_ptr().cast::<u8>().wrapping_add(page * PAGE)
    }

    /// Reads a page's bytes from the start of a file.
    pub(super) fn read_from(&self, file: BorrowedFd<'_>, page: usize) -> Result<usize, Errno> {
        // SAFETY: the kernel writes to this page, of which there are no references.
        let count = unsafe { libc::pread(file.as_raw_fd(), self.address(page).cast(), PAGE, 0) };
        Errno::result(count).map(isize::unsigned_abs)
    }

    /// Writes a page's bytes to the start of a file.
    pub(super) fn write_to(&self, file: BorrowedFd<'_>, page: usize) -> Result<usize, Errno> {
        // SAFETY: the kernel reads this page.
        let count = unsafe { libc::pwrite(file.as_raw_fd(), self.address(page).cast(), PAGE, 0) };
        Errno::result(count).map(isize::unsigned_abs)
    }

    /// Moves a reference to the page into a pipe, without a copy.
    pub(super) fn splice_to(&self, pipe: impl AsFd, page: usize) -> Result<usize, Errno> {
        let piece = libc::iovec {
            iov_base: self.address(page).cast(),
            iov_len: PAGE,
        };
        // SAFETY: the kernel reads this page, now and until the pipe is read; all users expect
        // concurrent writes to it.
        let count = unsafe { libc::vmsplice(pipe.as_fd().as_raw_fd(), &raw const piece, 1, 0) };
        Errno::result(count).map(isize::unsigned_abs)
    }

    /// The first word of a page, read as a debugger does.
    pub(super) fn peek(&self, page: usize) -> Result<u32, Errno> {
        let mut word = [0; 4];
        let here = libc::iovec {
            iov_base: word.as_mut_ptr().cast(),
            iov_len: word.len(),
        };
        let there = libc::iovec {
            iov_base: self.address(page).cast(),
            iov_len: word.len(),
        };
        // SAFETY: the kernel writes the four bytes of `word`, and copies from this process's own
        // page or refuses.
        let count = unsafe {
            libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0)
        };
        Errno::result(count).map(|_| u32::from_ne_bytes(word))
    }

    /// Waits on the futex in the first word of a page while the word is 0.
    pub(super) fn futex_wait(&self, page: usize) -> Result<(), Errno> {
        self.futex(page, libc::FUTEX_WAIT, 0).map(drop)
    }

    /// Wakes one waiter of the futex in the first word of a page. Returns how many were woken.
    pub(super) fn futex_wake(&self, page: usize) -> Result<i64, Errno> {
        self.futex(page, libc::FUTEX_WAKE, 1)
    }

    fn futex(&self, page: usize, operation: libc::c_int, value: u32) -> Result<i64, Errno> {
        let timeout = libc::timespec {
            tv_sec: TIMEOUT.as_secs() as i64,
            tv_nsec: 0,
        };
        let word = self.address(page);
        // SAFETY: the kernel reads this word, and the time, which lives for the length of the call.
        let answer =
            unsafe { libc::syscall(libc::SYS_futex, word, operation, value, &raw const timeout) };
        Errno::result(answer)
    }

    /// Reads a page from the start of a file and writes it back there, by io_uring, both at once.
    pub(super) fn through_ring(
        &self,
        ring: &mut IoUring,
        file: BorrowedFd<'_>,
        page: usize,
    ) -> Result<(), Errno> {
        let (fd, size) = (types::Fd(file.as_raw_fd()), PAGE as u32);
        let read = opcode::Read::new(fd, self.address(page), size).build();
        let write = opcode::Write::new(fd, self.address(page), size).build();
        // SAFETY: the kernel uses this page and the open file until both have completed, for which
        // the call below waits.
        unsafe { ring.submission().push_multiple(&[read, write]) }.map_err(|_| Errno::EAGAIN)?;
        ring.submit_and_wait(2)
            .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or_default()))?;
        let failed = ring.completion().find(|one| one.result() < 0);
        failed.map_or(Ok(()), |one| Err(Errno::from_raw(-one.result())))
    }
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped; nothing refers to it.
        let _ = unsafe { munmap(self.start, self.size.get()) };
    }
}
