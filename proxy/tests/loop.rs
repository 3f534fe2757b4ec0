//! The blob at work in a thread of this process: its desk is ordinary memory, and the test plays the
//! kernel on the other side. There is no module, so what it asks of one fails.

#![allow(unsafe_code, reason = "the blob is put into memory and jumped to")]

use std::arch::asm;
use std::io::Read;
use std::mem::offset_of;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use insula_abi::lwk::{ANSWER_RESULT, Desk, SPACE_INTERRUPT, request};
use insula_proxy::{BLOB_SIZE, Parameters, STACK_SIZE, Step, Text, blob};
use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use zerocopy::IntoBytes;

const DATA_SIZE: usize = 4096;
const DESKS_SIZE: usize = 4096;
/// No descriptor.
const NO_SPACE: u64 = u32::MAX as u64;

/// A region with the blob in it, for good: its thread never ends.
#[derive(Clone, Copy)]
struct Region(u64);

impl Region {
    fn new(arguments: &[u8], steps: &[Step]) -> Self {
        let size = NonZeroUsize::new(BLOB_SIZE + DATA_SIZE + DESKS_SIZE + 2 * STACK_SIZE).unwrap();
        let all = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE | ProtFlags::PROT_EXEC;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(None, size, all, MapFlags::MAP_PRIVATE) }.unwrap();
        let region = Self(start.as_ptr() as u64);
        let data = region.0 + BLOB_SIZE as u64;
        let steps_at = data + size_of::<Parameters>() as u64;
        let arguments_at = steps_at + size_of_val(steps) as u64;
        let parameters = Parameters {
            space: NO_SPACE,
            desks: region.desks(),
            desks_end: region.desks() + DESKS_SIZE as u64,
            stacks: region.desks() + DESKS_SIZE as u64,
            polls: u64::MAX,
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
            // SAFETY: they lie in the region, which nobody else knows yet.
            unsafe { (at as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        region
    }

    fn desks(self) -> u64 {
        self.0 + (BLOB_SIZE + DATA_SIZE) as u64
    }

    fn word(self, field: usize) -> &'static AtomicU64 {
        // SAFETY: a word of desk 0, which is never unmapped and reached through atomics only.
        unsafe { &*((self.desks() + field as u64) as *const AtomicU64) }
    }

    fn begin(self) -> std::thread::JoinHandle<()> {
        // SAFETY: the blob never returns, and uses the stack that it is called on only to begin.
        std::thread::spawn(move || unsafe {
            asm!("jmp {}", in(reg) self.0, in("rdi") 0, options(noreturn))
        })
    }

    fn post(self, number: u64, arguments: &[u64]) -> u64 {
        self.word(offset_of!(Desk, number))
            .store(number, Ordering::Relaxed);
        for (index, argument) in arguments.iter().enumerate() {
            let field = offset_of!(Desk, arguments) + 8 * index;
            self.word(field).store(*argument, Ordering::Relaxed);
        }
        self.word(offset_of!(Desk, turn))
            .fetch_add(1, Ordering::Release)
            + 1
    }

    fn answer(self, turn: u64) -> i64 {
        let began = Instant::now();
        while self
            .word(offset_of!(Desk, answer_turn))
            .load(Ordering::Acquire)
            != turn
        {
            assert!(began.elapsed() < Duration::from_secs(60), "no answer");
            std::thread::yield_now();
        }
        assert_eq!(
            self.word(offset_of!(Desk, kind)).load(Ordering::Relaxed),
            ANSWER_RESULT
        );
        self.word(offset_of!(Desk, result))
            .load(Ordering::Relaxed)
            .cast_signed()
    }

    /// Ends its thread, which would look for turns for ever.
    fn end(self) {
        self.post(request::THREAD_END, &[]);
    }

    fn call(self, number: u64, arguments: &[u64]) -> i64 {
        self.answer(self.post(number, arguments))
    }
}

#[test]
fn calls_and_arguments() {
    let region = Region::new(b"words\0", &[]);
    region.begin();
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
    let mut came = [0; 4];
    reader.read_exact(&mut came).unwrap();
    assert_eq!(&came, text);
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
    // SAFETY: the other thread has written it and is through with it.
    let buffer = unsafe { (&raw const buffer).read_volatile() };
    assert_eq!(&buffer, b"words\0\0\0\0");
    region.end();
}

/// The module gave up waiting for a page, and the call has ended: the page that comes then is answered
/// with what the call came to.
#[test]
fn a_page_that_comes_too_late_changes_nothing() {
    let region = Region::new(b"", &[]);
    region.begin();
    let no_file = -(Errno::EBADF as i64);
    assert_eq!(region.call(libc::SYS_close as u64, &[1 << 30]), no_file);
    assert_eq!(region.call(request::RESOLVED, &[0]), no_file);
    let pid = i64::from(std::process::id());
    assert_eq!(region.call(libc::SYS_getpid as u64, &[]), pid);
    region.end();
}

#[test]
fn steps_come_first_and_requests_of_the_module_are_passed_on() {
    let (reader, writer) = std::io::pipe().unwrap();
    let step = Step {
        number: libc::SYS_dup as u64,
        arguments: [writer.as_raw_fd() as u64, 0, 0, 0, 0, 0],
        complaint: Text::default(),
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
    region.begin();
    let no_descriptor = -(Errno::EBADF as i64);
    assert_eq!(
        region.call(request::RELEASE, &[0, 4096, 1, 0]),
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
fn a_call_is_broken_off_wherever_it_is() {
    let region = Region::new(b"", &[]);
    let action = [
        region.0 + blob().handler as u64,
        libc::SA_SIGINFO as u64 | 0x0400_0000,
        region.0 + blob().restorer as u64,
        u64::MAX,
    ];
    let signal = u64::from(SPACE_INTERRUPT);
    // SAFETY: the handler is the blob's, for a signal that only this test sends to its thread.
    let set = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, &raw const action, 0, 8) };
    assert_eq!(set, 0);
    region.begin();
    let thread = region.call(libc::SYS_gettid as u64, &[]);
    let (reader, _writer) = std::io::pipe().unwrap();
    let (file, byte) = (reader.as_raw_fd() as u64, [0_u8]);
    let send = || {
        // SAFETY: a signal for which there is a handler.
        unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, signal) }
    };
    for round in 0..600_u32 {
        let turn = region.post(libc::SYS_read as u64, &[file, byte.as_ptr() as u64, 1]);
        // The signal meets it before, at and in the call.
        (0..round).for_each(|_| std::hint::spin_loop());
        assert_eq!(send(), 0);
        assert_eq!(region.answer(turn), -(Errno::EINTR as i64), "round {round}");
        // One for which there is no call may meet the next, at most once.
        assert_eq!(send(), 0);
        let mut calls = (0..2).map(|_| region.call(libc::SYS_gettid as u64, &[]));
        assert!(calls.any(|id| id == thread), "round {round}");
    }
    region.end();
}

#[test]
fn a_thread_ends() {
    let region = Region::new(b"", &[]);
    region.begin();
    let thread = region.call(libc::SYS_gettid as u64, &[]);
    region.end();
    let path = format!("/proc/self/task/{thread}");
    let began = Instant::now();
    while std::path::Path::new(&path).exists() {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "the thread is still there"
        );
        std::thread::yield_now();
    }
}

/// In a process of its own: the way in which it ends.
#[test]
fn it_ends_as_the_program_ended() {
    for (status, expected) in [(0, 0), (7 << 8, 7 << 8), (15, 15), (6, 6)] {
        let region = Region::new(b"", &[]);
        region.post(request::EXIT, &[status]);
        // SAFETY: the child makes no call but those of the blob, on a copy of this thread's stack.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as in `begin`.
            unsafe { asm!("jmp {}", in(reg) region.0, in("rdi") 0, options(noreturn)) }
        }
        let mut ended = 0;
        // SAFETY: it waits for the child of this function.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut ended, 0) }, child);
        assert_eq!(ended, expected, "status {status:#x}");
    }
}

#[test]
fn a_step_that_fails_is_told() {
    let complaint = b"it went wrong";
    let (mut reader, writer) = std::io::pipe().unwrap();
    let step = Step {
        number: libc::SYS_close as u64,
        arguments: [u64::MAX, 0, 0, 0, 0, 0],
        complaint: Text {
            start: complaint.as_ptr() as u64,
            size: complaint.len() as u64,
        },
    };
    let region = Region::new(b"", &[step]);
    // SAFETY: as above.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: standard error becomes the pipe; then as in `begin`.
        unsafe {
            libc::dup2(writer.as_raw_fd(), 2);
            asm!("jmp {}", in(reg) region.0, in("rdi") 0, options(noreturn))
        }
    }
    drop(writer);
    let mut ended = 0;
    // SAFETY: it waits for the child of this function.
    unsafe { libc::waitpid(child, &raw mut ended, 0) };
    assert_eq!(ended, insula_proxy::FAILED << 8);
    let mut told = String::new();
    reader.read_to_string(&mut told).unwrap();
    assert_eq!(told.as_bytes(), complaint);
}
