//! Processes that share an address space, and execve in programs of several threads.

use std::ffi::{CString, c_int, c_void};
use std::io::Read;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, execv, getpid, gettid, pipe, read, write};

use crate::lwk::{Named, ProbeError, call};

const STACK_SIZE: usize = 64 << 10;
const PAGE: usize = 4096;
/// Address at which both processes map pages, one after another.
const PLACE: usize = 0x30_0000_0000;

pub(crate) fn probe() -> Result<(), ProbeError> {
    vforked()?;
    at_once()
}

/// State that two processes share.
struct Common {
    turn: AtomicU32,
    from: OwnedFd,
    to: OwnedFd,
}

/// Starts a process in the address space of this one.
pub(crate) fn start<T>(
    body: extern "C" fn(*mut c_void) -> c_int,
    common: &T,
    waits: bool,
) -> Result<Pid, ProbeError> {
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let size = NonZeroUsize::new(STACK_SIZE).ok_or(ProbeError::Unknown)?;
    // SAFETY: a new mapping at an address of the kernel's choice, never unmapped.
    let stack = unsafe { mmap_anonymous(None, size, protection, MapFlags::MAP_PRIVATE) };
    let top = stack
        .named("a stack")?
        .as_ptr()
        .wrapping_byte_add(STACK_SIZE);
    let flags = libc::CLONE_VM | libc::SIGCHLD | if waits { libc::CLONE_VFORK } else { 0 };
    let argument = (&raw const *common).cast_mut().cast();
    // SAFETY: the process has a stack of its own, and uses nothing but atomics and system calls.
    let pid = unsafe { libc::clone(body, top, flags, argument) };
    nix::errno::Errno::result(pid)
        .map(Pid::from_raw)
        .named("clone")
}

fn common() -> Result<Common, ProbeError> {
    let (from, to) = pipe().named("pipe")?;
    let turn = AtomicU32::new(0);
    Ok(Common { turn, from, to })
}

/// The parent of a vforked process sees what that has written.
fn vforked() -> Result<(), ProbeError> {
    extern "C" fn body(common: *mut c_void) -> c_int {
        // SAFETY: the other process waits until this one has ended.
        let common = unsafe { &*common.cast::<Common>() };
        common
            .turn
            .store(gettid().as_raw().cast_unsigned(), Ordering::Relaxed);
        7
    }
    let common = common()?;
    let child = start(body, &common, true)?;
    let seen = common.turn.load(Ordering::Relaxed) == child.as_raw().cast_unsigned();
    let ended = waitpid(child, None).named("waiting")?;
    println!(
        "a vforked child's write is seen: {seen}, {:?}",
        ended.pid() == Some(child)
    );
    Ok(())
}

fn private_futex(word: &AtomicU32, operation: c_int, value: u32) {
    let operation = (operation | libc::FUTEX_PRIVATE_FLAG) as u64;
    let address = word.as_ptr().expose_provenance() as u64;
    // SAFETY: it reads a word that outlives it. The word, not the result, tells why it returned.
    let _ = unsafe {
        call(
            libc::SYS_futex as u64,
            [address, operation, value.into(), 0, 0, 0],
        )
    };
}

fn wait_for(word: &AtomicU32, turn: u32) {
    loop {
        let seen = word.load(Ordering::SeqCst);
        if seen >= turn {
            return;
        }
        private_futex(word, libc::FUTEX_WAIT, seen);
    }
}

fn pass_on(word: &AtomicU32, turn: u32) {
    word.store(turn, Ordering::SeqCst);
    private_futex(word, libc::FUTEX_WAKE, 1);
}

/// Maps a new page over the last one.
fn remap_page(byte: u8) {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as u64;
    let arguments = [PLACE as u64, PAGE as u64, protection, flags, u64::MAX, 0];
    // SAFETY: no Rust value is there, and both processes wait for each other.
    if unsafe { call(libc::SYS_mmap as u64, arguments) }.is_ok() {
        // SAFETY: it has just been mapped.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(PLACE).write_volatile(byte) };
    }
}

/// Writes the page to the pipe, so that the kernel reads it.
fn write_page(common: &Common) {
    // SAFETY: it is mapped, and nobody unmaps it meanwhile.
    let byte = unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(PLACE), 1) };
    // If it fails, the reader misses the byte.
    let _ = write(&common.to, byte);
}

/// Two processes in one address space, in turn: the kernel reads for one what the other has just
/// mapped.
fn at_once() -> Result<(), ProbeError> {
    extern "C" fn body(common: *mut c_void) -> c_int {
        // SAFETY: the other process waits until this one has ended.
        let common = unsafe { &*common.cast::<Common>() };
        write_page(common);
        pass_on(&common.turn, 1);
        wait_for(&common.turn, 2);
        write_page(common);
        remap_page(b'c');
        pass_on(&common.turn, 3);
        0
    }
    let common = common()?;
    remap_page(b'a');
    write_page(&common);
    let child = start(body, &common, false)?;
    wait_for(&common.turn, 1);
    remap_page(b'b');
    pass_on(&common.turn, 2);
    wait_for(&common.turn, 3);
    write_page(&common);
    waitpid(child, None).named("waiting")?;
    let mut bytes = [0; 8];
    let count = read(&common.from, &mut bytes).named("read")?;
    println!(
        "in one memory: {}",
        String::from_utf8_lossy(&bytes[..count])
    );
    Ok(())
}

/// Calls execve in a program with several threads, which block in the kernel or compute: first of a
/// program that does not exist. With `leaves`, its first thread has ended by then.
pub(crate) fn execute(leaves: bool) -> Result<(), ProbeError> {
    let (never, _writer) = std::io::pipe().map_err(|error| ProbeError::Wrong(error.to_string()))?;
    let (sender, receiver) = mpsc::channel::<()>();
    let mut reader = never
        .try_clone()
        .map_err(|error| ProbeError::Wrong(error.to_string()))?;
    std::thread::spawn(move || reader.read(&mut [0]).map(drop));
    std::thread::spawn(move || receiver.recv());
    std::thread::spawn(|| {
        loop {
            std::hint::spin_loop();
        }
    });
    let pid = getpid();
    // /proc/self/exe is gone when the first thread has ended.
    let own = std::env::current_exe().map_err(|error| ProbeError::Wrong(error.to_string()))?;
    let own = CString::new(own.into_os_string().into_vec()).unwrap_or_default();
    let executing = std::thread::spawn(move || {
        let text = |word: &str| CString::new(word).unwrap_or_default();
        let wrong = execv(&text("/no/such"), &[text("x")]);
        println!(
            "there is no such program: {wrong:?}; the descriptor {}",
            never.as_raw_fd() > 2
        );
        let words = ["insula-probe", "executed", &pid.to_string()].map(text);
        execv(&own, &words)
    });
    if leaves {
        // SAFETY: it ends this thread; nobody uses its memory.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    let ended = executing.join();
    drop(sender);
    Err(ProbeError::Wrong(format!("still here: {ended:?}")))
}

/// Part of the program that is executed.
pub(crate) fn executed(pid: i32) -> Result<(), ProbeError> {
    let (same, first) = (getpid().as_raw() == pid, getpid() == gettid());
    println!("executed as the same process: {same}, its first thread: {first}");
    std::thread::spawn(|| println!("and has threads"))
        .join()
        .map_err(|_| ProbeError::Wrong("a thread".to_owned()))
}
