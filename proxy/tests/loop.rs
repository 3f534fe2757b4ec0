//! Runs the blob in a thread of this process: its slot is ordinary memory, and the test acts as the
//! kernel. There is no module, so requests to it fail.

#![allow(unsafe_code, reason = "the blob is copied to memory and jumped to")]

use std::arch::asm;
use std::io::Read;
use std::mem::offset_of;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use insula_abi::lwk::{
    ANSWER_RESULT, MIRROR_CANCEL_SIGNAL, MIRROR_SLOTS_SIZE, SyscallSlot, request,
};
use insula_proxy::{BLOB_SIZE, Parameters, STACK_SIZE, Step, Text, blob};
use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use zerocopy::IntoBytes;

const DATA_SIZE: usize = 4096;
const SLOTS_SIZE: usize = 2 * MIRROR_SLOTS_SIZE as usize;
/// An invalid descriptor.
const NO_MIRROR: u64 = u32::MAX as u64;

/// A region with the blob; it is never unmapped.
#[derive(Clone, Copy)]
struct Region(u64);

impl Region {
    fn new(arguments: &[u8], steps: &[Step]) -> Self {
        let size = NonZeroUsize::new(BLOB_SIZE + DATA_SIZE + SLOTS_SIZE + 2 * STACK_SIZE).unwrap();
        let all = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE | ProtFlags::PROT_EXEC;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(None, size, all, flags) }.unwrap();
        let region = Self(start.as_ptr() as u64);
        let data = region.0 + BLOB_SIZE as u64;
        let steps_at = data + size_of::<Parameters>() as u64;
        let arguments_at = steps_at + size_of_val(steps) as u64;
        let parameters = Parameters {
            mirror: NO_MIRROR,
            slots: region.slots(),
            slots_end: region.slots() + MIRROR_SLOTS_SIZE,
            stacks: region.slots() + SLOTS_SIZE as u64,
            spins: u64::MAX,
            steps: steps_at,
            steps_end: arguments_at,
            arguments: Text {
                start: arguments_at,
                size: arguments.len() as u64,
            },
            ..Parameters::default()
        };
        for (at, bytes) in [
            (region.0, blob().bytes),
            (data, parameters.as_bytes()),
            (steps_at, steps.as_bytes()),
            (arguments_at, arguments),
        ] {
            // SAFETY: the ranges are in the region, which nobody else uses yet.
            unsafe { (at as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        region
    }

    fn slots(self) -> u64 {
        self.0 + (BLOB_SIZE + DATA_SIZE) as u64
    }

    fn word(self, field: usize) -> &'static AtomicU64 {
        // SAFETY: a word of slot 0, which is never unmapped and accessed through atomics only.
        unsafe { &*((self.slots() + field as u64) as *const AtomicU64) }
    }

    fn start(self) -> std::thread::JoinHandle<()> {
        // SAFETY: the blob never returns, and leaves this stack at once.
        std::thread::spawn(move || unsafe {
            asm!("jmp {}", in(reg) self.0, in("rdi") 0, options(noreturn))
        })
    }

    fn submit(self, number: u64, arguments: &[u64]) -> u64 {
        self.word(offset_of!(SyscallSlot, number))
            .store(number, Ordering::Relaxed);
        for (index, argument) in arguments.iter().enumerate() {
            let field = offset_of!(SyscallSlot, arguments) + 8 * index;
            self.word(field).store(*argument, Ordering::Relaxed);
        }
        self.word(offset_of!(SyscallSlot, sequence))
            .fetch_add(1, Ordering::Release)
            + 1
    }

    fn wait_for_answer(self, sequence: u64) -> i64 {
        let started = Instant::now();
        while self
            .word(offset_of!(SyscallSlot, answer_sequence))
            .load(Ordering::Acquire)
            != sequence
        {
            assert!(started.elapsed() < Duration::from_secs(60), "no answer");
            std::thread::yield_now();
        }
        assert_eq!(
            self.word(offset_of!(SyscallSlot, kind))
                .load(Ordering::Relaxed),
            ANSWER_RESULT
        );
        self.word(offset_of!(SyscallSlot, result))
            .load(Ordering::Relaxed)
            .cast_signed()
    }

    /// Ends its thread, which would poll for ever.
    fn end(self) {
        self.submit(request::THREAD_END, &[]);
    }

    fn call(self, number: u64, arguments: &[u64]) -> i64 {
        self.wait_for_answer(self.submit(number, arguments))
    }
}

#[test]
fn calls_and_arguments() {
    let region = Region::new(b"words\0", &[]);
    region.start();
    let pid = i64::from(std::process::id());
    for _ in 0..1000 {
        assert_eq!(region.call(libc::SYS_getpid as u64, &[]), pid);
    }
    let (mut reader, writer) = std::io::pipe().unwrap();
    let (text, out) = (b"six!", writer.as_raw_fd() as u64);
    assert_eq!(
        region.call(libc::SYS_write as u64, &[out, text.as_ptr() as u64, 4]),
        4
    );
    let mut received = [0; 4];
    reader.read_exact(&mut received).unwrap();
    assert_eq!(&received, text);
    // All six arguments arrive.
    let size = 8192;
    let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let arguments = [0, size, protection as u64, flags as u64, u64::MAX, 0];
    let mapped = region.call(libc::SYS_mmap as u64, &arguments);
    assert!(mapped > 0);
    assert_eq!(
        region.call(libc::SYS_munmap as u64, &[mapped.cast_unsigned(), size]),
        0
    );
    let buffer = [0_u8; 9];
    let address = buffer.as_ptr() as u64;
    assert_eq!(region.call(request::ARGUMENTS, &[address, 5]), 5);
    assert_eq!(region.call(request::ARGUMENTS, &[address, 9]), 6);
    // SAFETY: the other thread has finished writing it.
    let buffer = unsafe { (&raw const buffer).read_volatile() };
    assert_eq!(&buffer, b"words\0\0\0\0");
    region.end();
}

/// When the module has timed out waiting for a page and the call has ended, the late RESOLVED
/// request is answered with the call's result.
#[test]
fn a_page_resolved_too_late_changes_nothing() {
    let region = Region::new(b"", &[]);
    region.start();
    let no_file = -(Errno::EBADF as i64);
    assert_eq!(region.call(libc::SYS_close as u64, &[1 << 30]), no_file);
    assert_eq!(region.call(request::RESOLVED, &[0]), no_file);
    let pid = i64::from(std::process::id());
    assert_eq!(region.call(libc::SYS_getpid as u64, &[]), pid);
    region.end();
}

#[test]
fn steps_run_first_and_requests_for_the_module_are_forwarded() {
    let (reader, writer) = std::io::pipe().unwrap();
    let step = Step {
        number: libc::SYS_dup as u64,
        arguments: [writer.as_raw_fd() as u64, 0, 0, 0, 0, 0],
        error_message: Text::default(),
    };
    let region = Region::new(
        b"",
        &[
            Step {
                number: u64::from(u32::MAX),
                ..step
            },
            step,
        ],
    );
    drop(reader);
    region.start();
    let no_descriptor = -(Errno::EBADF as i64);
    assert_eq!(
        region.call(request::INVALIDATE, &[0, 4096, 1, 0]),
        no_descriptor
    );
    assert_eq!(region.call(request::THREAD, &[]), no_descriptor);
    assert_eq!(region.call(request::FORK, &[17, 0]), no_descriptor);
    assert_eq!(
        region.call(request::REQUEST | 99, &[]),
        -(Errno::ENOSYS as i64)
    );
    assert_eq!(
        region.call(libc::SYS_write as u64, &[u64::MAX, 0, 0]),
        no_descriptor
    );
    region.end();
}

#[test]
fn a_call_is_cancelled_wherever_it_is() {
    let region = Region::new(b"", &[]);
    let action = [
        region.0 + blob().handler as u64,
        libc::SA_SIGINFO as u64 | 0x0400_0000,
        region.0 + blob().restorer as u64,
        u64::MAX,
    ];
    let signal = u64::from(MIRROR_CANCEL_SIGNAL);
    // SAFETY: the handler is the blob's, for a signal that only this test sends to its thread.
    let set = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, &raw const action, 0, 8) };
    assert_eq!(set, 0);
    region.start();
    let thread = region.call(libc::SYS_gettid as u64, &[]);
    let (reader, _writer) = std::io::pipe().unwrap();
    let (file, byte) = (reader.as_raw_fd() as u64, [0_u8]);
    let send = || {
        // SAFETY: the signal has a handler.
        unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, signal) }
    };
    for round in 0..600_u32 {
        let sequence = region.submit(libc::SYS_read as u64, &[file, byte.as_ptr() as u64, 1]);
        // The signal arrives before, at and in the call.
        (0..round).for_each(|_| std::hint::spin_loop());
        assert_eq!(send(), 0);
        assert_eq!(
            region.wait_for_answer(sequence),
            -(Errno::EINTR as i64),
            "round {round}"
        );
        // One sent when no call is under way may cancel the next call, at most once.
        assert_eq!(send(), 0);
        let mut calls = (0..2).map(|_| region.call(libc::SYS_gettid as u64, &[]));
        assert!(calls.any(|id| id == thread), "round {round}");
    }
    region.end();
}

#[test]
fn a_thread_exits() {
    let region = Region::new(b"", &[]);
    region.start();
    let thread = region.call(libc::SYS_gettid as u64, &[]);
    region.end();
    wait_for_exit(thread);
}

/// Linux releases the futexes in the list that a thread's exit finds.
#[test]
fn robust_futexes_of_a_thread_are_released() {
    const OWNER_DIED: u64 = 0x4000_0000;
    let region = Region::new(b"", &[]);
    region.start();
    let thread = region.call(libc::SYS_gettid as u64, &[]);
    // An entry and its futex, which is the word behind it.
    let list = [const { AtomicU64::new(0) }; 2];
    let (entry, lock) = (list[0].as_ptr().expose_provenance() as u64, &list[1]);
    lock.store(thread.cast_unsigned(), Ordering::SeqCst);
    let head = MIRROR_SLOTS_SIZE as usize + offset_of!(SyscallSlot, robust_list);
    list[0].store(region.slots() + head as u64, Ordering::SeqCst);
    region.word(head).store(entry, Ordering::SeqCst);
    region.word(head + 8).store(8, Ordering::SeqCst);
    region.end();
    wait_for_exit(thread);
    assert_eq!(lock.load(Ordering::SeqCst), OWNER_DIED);
}

fn wait_for_exit(thread: i64) {
    let path = format!("/proc/self/task/{thread}");
    let started = Instant::now();
    while std::path::Path::new(&path).exists() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "the thread is still there"
        );
        std::thread::yield_now();
    }
}

/// Runs in a process of its own, because the process exits.
#[test]
fn the_proxy_exits_as_the_program_did() {
    for (status, expected) in [(0, 0), (7 << 8, 7 << 8), (15, 15), (6, 6)] {
        let region = Region::new(b"", &[]);
        region.submit(request::EXIT, &[status]);
        // SAFETY: the child makes no calls but those of the blob, on a copy of this thread's stack.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as in `start`.
            unsafe { asm!("jmp {}", in(reg) region.0, in("rdi") 0, options(noreturn)) }
        }
        let mut ended = 0;
        // SAFETY: it waits for the child of this function.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut ended, 0) }, child);
        assert_eq!(ended, expected, "status {status:#x}");
    }
}

#[test]
fn a_failing_step_prints_its_message() {
    let error_message = b"it went wrong";
    let (mut reader, writer) = std::io::pipe().unwrap();
    let step = Step {
        number: libc::SYS_close as u64,
        arguments: [u64::MAX, 0, 0, 0, 0, 0],
        error_message: Text {
            start: error_message.as_ptr() as u64,
            size: error_message.len() as u64,
        },
    };
    let region = Region::new(b"", &[step]);
    // SAFETY: as above.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: standard error becomes the pipe; then as in `start`.
        unsafe {
            libc::dup2(writer.as_raw_fd(), 2);
            asm!("jmp {}", in(reg) region.0, in("rdi") 0, options(noreturn))
        }
    }
    drop(writer);
    let mut ended = 0;
    // SAFETY: it waits for the child of this function.
    unsafe { libc::waitpid(child, &raw mut ended, 0) };
    assert_eq!(ended, insula_proxy::EXIT_FAILED << 8);
    let mut printed = String::new();
    reader.read_to_string(&mut printed).unwrap();
    assert_eq!(printed.as_bytes(), error_message);
}
