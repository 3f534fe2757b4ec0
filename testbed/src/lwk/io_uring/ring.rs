//! The rings of io_uring, without a library.

use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use nix::libc;

use crate::lwk::call;

/// Offsets at which mmap(2) maps the parts of a ring: the two rings in one, and the entries.
const RINGS: u64 = 0;
const ENTRIES: u64 = 0x1000_0000;
/// `IORING_ENTER_GETEVENTS`.
pub(super) const GET_EVENTS: u64 = 1;
/// `IORING_ENTER_SQ_WAKEUP`.
const WAKE_UP: u64 = 2;
/// `IORING_SQ_NEED_WAKEUP`.
const NEEDS_WAKE_UP: u32 = 1;

/// `struct io_uring_params`, as words of 32 bits.
type Parameters = [u32; 30];
/// Indices in it.
const FLAGS: usize = 2;
const THREAD_IDLE: usize = 4;
const SUBMISSION: usize = 10;
const COMPLETION: usize = 20;

/// A request: `struct io_uring_sqe`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Request {
    pub(super) operation: u8,
    pub(super) flags: u8,
    pub(super) priority: u16,
    pub(super) file: i32,
    pub(super) offset: u64,
    pub(super) address: u64,
    pub(super) size: u32,
    pub(super) operation_flags: u32,
    pub(super) data: u64,
    pub(super) buffers: u16,
    pub(super) personality: u16,
    pub(super) other_file: u32,
    pub(super) more: [u64; 2],
}

/// The end of a request: `struct io_uring_cqe`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    pub(super) data: u64,
    pub(super) result: i32,
    pub(super) flags: u32,
}

/// An instance of io_uring, whose rings are mapped.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) fd: i32,
    rings: u64,
    rings_size: u64,
    entries: u64,
    parameters: Parameters,
}

/// Makes a system call whose arguments name no Rust value but those of this file.
pub(super) fn make(number: i64, arguments: [u64; 6]) -> Result<u64, Errno> {
    // SAFETY: see above.
    unsafe { call(number as u64, arguments) }
}

impl Ring {
    /// Sets it up with flags; the kernel's thread for submissions, if any, sleeps after `idle_ms`.
    pub(super) fn new(count: u64, flags: u32, idle_ms: u32) -> Result<Self, Errno> {
        let mut parameters = Parameters::default();
        parameters[FLAGS] = flags;
        parameters[THREAD_IDLE] = idle_ms;
        let at = parameters.as_mut_ptr() as u64;
        let fd = make(libc::SYS_io_uring_setup, [count, at, 0, 0, 0, 0])?;
        // Sizes of an entry: 4 bytes, 16, 64.
        let [submissions, completions] = [0, 1].map(|index| u64::from(parameters[index]));
        let array = u64::from(parameters[SUBMISSION + 6]) + submissions * 4;
        let events = u64::from(parameters[COMPLETION + 5]) + completions * 16;
        let rings_size = array.max(events);
        let entries_size = submissions * 64;
        Ok(Self {
            fd: fd as i32,
            rings: map(fd, rings_size, RINGS)?,
            rings_size,
            entries: map(fd, entries_size, ENTRIES)?,
            parameters,
        })
    }

    fn word(&self, part: usize, index: usize) -> &AtomicU32 {
        let at = self.rings + u64::from(self.parameters[part + index]);
        // SAFETY: it is a word of the rings, which live as long.
        unsafe { &*(at as usize as *const AtomicU32) }
    }

    /// Queues a request.
    pub(super) fn queue(&self, request: Request) {
        let tail = self.word(SUBMISSION, 1);
        let place = tail.load(Ordering::Relaxed) & self.word(SUBMISSION, 2).load(Ordering::Relaxed);
        let entry = self.entries + u64::from(place) * 64;
        let array = self.rings + u64::from(self.parameters[SUBMISSION + 6] + place * 4);
        // SAFETY: both are places of the rings that the kernel does not read yet.
        unsafe {
            (entry as usize as *mut Request).write_volatile(request);
            (array as usize as *mut u32).write_volatile(place);
        }
        tail.fetch_add(1, Ordering::Release);
    }

    /// io_uring_enter(2).
    pub(super) fn enter(&self, submit: u64, wait: u64, flags: u64) -> Result<u64, Errno> {
        self.enter_with(submit, wait, flags, 0, 0)
    }

    pub(super) fn enter_with(
        &self,
        submit: u64,
        wait: u64,
        flags: u64,
        at: u64,
        size: u64,
    ) -> Result<u64, Errno> {
        let fd = self.fd as u64;
        make(
            libc::SYS_io_uring_enter,
            [fd, submit, wait, flags, at, size],
        )
    }

    /// Takes a completion, if there is one.
    pub(super) fn take(&self) -> Option<Completion> {
        let head = self.word(COMPLETION, 0);
        let at = head.load(Ordering::Relaxed);
        if at == self.word(COMPLETION, 1).load(Ordering::Acquire) {
            return None;
        }
        let place = at & self.word(COMPLETION, 2).load(Ordering::Relaxed);
        let event = self.rings + u64::from(self.parameters[COMPLETION + 5] + place * 16);
        // SAFETY: the kernel has filled it.
        let completion = unsafe { (event as usize as *const Completion).read_volatile() };
        head.store(at.wrapping_add(1), Ordering::Release);
        Some(completion)
    }

    /// Waits for a completion without a call: the kernel's thread submits, or the request completes
    /// by itself.
    pub(super) fn spin(&self) -> Completion {
        loop {
            match self.take() {
                Some(completion) => return completion,
                None => std::hint::spin_loop(),
            }
        }
    }

    /// Waits for a completion in a call.
    pub(super) fn wait(&self) -> Result<Completion, Errno> {
        loop {
            if let Some(completion) = self.take() {
                return Ok(completion);
            }
            self.enter(0, 1, GET_EVENTS)?;
        }
    }

    /// Submits a request, and waits for its completion in the same call.
    pub(super) fn run(&self, request: Request) -> Result<Completion, Errno> {
        self.queue(request);
        self.enter(1, 1, GET_EVENTS)?;
        self.wait()
    }

    /// Wakes the kernel's thread for submissions if it sleeps.
    pub(super) fn wake_up(&self) -> Result<(), Errno> {
        std::sync::atomic::fence(Ordering::SeqCst);
        let flags = self.word(SUBMISSION, 4).load(Ordering::Relaxed);
        match flags & NEEDS_WAKE_UP {
            0 => Ok(()),
            _ => self.enter(1, 0, WAKE_UP).map(drop),
        }
    }

    /// io_uring_register(2).
    pub(super) fn register(&self, operation: u64, at: u64, count: u64) -> Result<u64, Errno> {
        let fd = self.fd as u64;
        make(
            libc::SYS_io_uring_register,
            [fd, operation, at, count, 0, 0],
        )
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let _ = make(libc::SYS_munmap, [self.rings, self.rings_size, 0, 0, 0, 0]);
        let size = u64::from(self.parameters[0]) * 64;
        let _ = make(libc::SYS_munmap, [self.entries, size, 0, 0, 0, 0]);
        let _ = make(libc::SYS_close, [self.fd as u64, 0, 0, 0, 0, 0]);
    }
}

fn map(fd: u64, size: u64, offset: u64) -> Result<u64, Errno> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_SHARED | libc::MAP_POPULATE) as u64;
    make(libc::SYS_mmap, [0, size, protection, flags, fd, offset])
}
