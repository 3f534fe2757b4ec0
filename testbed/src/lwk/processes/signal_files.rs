//! Signals that a program blocks and reads from a descriptor: its own, of timers, of children, of
//! others; and what else sees them as pending.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::errno::Errno;
use nix::libc;

use crate::lwk::{Named, ProbeError, in_a_child};

const SIGNALS: [i32; 7] = [
    libc::SIGCHLD,
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGALRM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    QUEUED,
];
/// A real-time signal.
const QUEUED: i32 = 40;
static HANDLED: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: i32) {
    HANDLED.store(signal, Ordering::Relaxed);
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: a set is plain words, and the C library's functions change it alone.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for &signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

fn change_mask(how: i32, signals: &[i32]) -> Result<(), ProbeError> {
    let set = set_of(signals);
    // SAFETY: it reads the set.
    let result = unsafe { libc::sigprocmask(how, &raw const set, ptr::null_mut()) };
    Errno::result(result).named("sigprocmask").map(drop)
}

/// A descriptor that signals are read from.
struct SignalFile(File);

impl SignalFile {
    fn new(flags: i32) -> Result<Self, ProbeError> {
        let set = set_of(&SIGNALS);
        // SAFETY: it reads the set.
        let fd = Errno::result(unsafe { libc::signalfd(-1, &raw const set, flags) });
        // SAFETY: it is new, and owned by nobody else.
        Ok(Self(unsafe { File::from_raw_fd(fd.named("signalfd")?) }))
    }

    /// Number, code, whether the program itself has sent it, value.
    fn take(&self) -> Option<(u32, i32, bool, i32)> {
        let mut bytes = [0; size_of::<libc::signalfd_siginfo>()];
        (&self.0).read_exact(&mut bytes).ok()?;
        // SAFETY: any bytes are a valid one.
        let info: libc::signalfd_siginfo = unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) };
        let is_own = info.ssi_pid == std::process::id();
        Some((info.ssi_signo, info.ssi_code, is_own, info.ssi_int))
    }

    fn wait(&self) -> bool {
        let mut poll = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: it writes the one entry.
        unsafe { libc::poll(&raw mut poll, 1, 20_000) == 1 }
    }
}

fn send(signal: i32) {
    // SAFETY: the program blocks it, or has a handler.
    unsafe { libc::kill(libc::getpid(), signal) };
}

pub(crate) fn probe() -> Result<(), ProbeError> {
    change_mask(libc::SIG_BLOCK, &SIGNALS)?;
    send(libc::SIGUSR2);
    let file = SignalFile::new(libc::SFD_NONBLOCK | libc::SFD_CLOEXEC)?;
    println!("sent before: {:?}, {:?}", file.take(), file.take());
    own(&file);
    timer(&file)?;
    children(&file)?;
    seen_by_others(&file)?;
    unblocked(&file)?;
    blocks_a_thread()?;
    println!("left: {:?}", file.take());
    Ok(())
}

fn own(file: &SignalFile) {
    send(libc::SIGTERM);
    // SAFETY: the thread blocks it.
    unsafe { libc::raise(libc::SIGINT) };
    println!(
        "own: {:?}, {:?}, {:?}",
        file.take(),
        file.take(),
        file.take()
    );
    for value in 1..=3 {
        let value = libc::sigval {
            sival_ptr: ptr::without_provenance_mut(value),
        };
        // SAFETY: the program blocks it.
        unsafe { libc::sigqueue(libc::getpid(), QUEUED, value) };
    }
    println!(
        "queued: {:?}, {:?}, {:?}",
        file.take(),
        file.take(),
        file.take()
    );
    println!("no more: {:?}", file.take());
}

fn timer(file: &SignalFile) -> Result<(), ProbeError> {
    let after = libc::timeval {
        tv_sec: 0,
        tv_usec: 20_000,
    };
    let once = libc::itimerval {
        it_interval: libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        },
        it_value: after,
    };
    // SAFETY: it reads the time.
    let set = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const once, ptr::null_mut()) };
    Errno::result(set).named("setitimer")?;
    println!("a timer: {}, {:?}", file.wait(), file.take());
    Ok(())
}

/// Children that end at once, and that send a signal.
fn children(file: &SignalFile) -> Result<(), ProbeError> {
    for _ in 0..20 {
        in_a_child(|| {})?;
        let taken = file.wait().then(|| file.take()).flatten();
        if !matches!(taken, Some((17, libc::CLD_EXITED, false, _))) {
            return Err(ProbeError::Wrong(format!("a child ended: {taken:?}")));
        }
    }
    println!("children: {:?}", file.take());
    // SAFETY: this program has one thread here.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the parent blocks it.
        unsafe { libc::kill(libc::getppid(), libc::SIGTERM) };
        // It has inherited the descriptor, which reads its own signals.
        send(libc::SIGUSR1);
        let own = file.take();
        // SAFETY: it ends the process, without the parent's exit handlers.
        unsafe { libc::_exit(own.map_or(0, |(signal, ..)| signal as i32)) }
    }
    let mut status = 0;
    // SAFETY: it writes the status.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    println!("a child: {status:x}");
    let mut both = [0; 2].map(|_| file.wait().then(|| file.take()).flatten());
    both.sort_unstable_by_key(|taken| taken.map(|(signal, ..)| signal));
    println!(
        "{:?}",
        both.map(|taken| taken.map(|(signal, code, is_own, _)| (signal, code, is_own)))
    );
    Ok(())
}

/// sigpending(2) and sigtimedwait(2) see what a descriptor would read.
fn seen_by_others(file: &SignalFile) -> Result<(), ProbeError> {
    send(libc::SIGTERM);
    let mut pending = set_of(&[]);
    // SAFETY: it writes the set; then that is read.
    let is_pending = unsafe {
        libc::sigpending(&raw mut pending);
        libc::sigismember(&raw const pending, libc::SIGTERM)
    };
    println!("pending: {is_pending}");
    let (term, second) = (
        set_of(&[libc::SIGTERM]),
        libc::timespec {
            tv_sec: 1,
            tv_nsec: 0,
        },
    );
    // SAFETY: it reads the set and the time.
    let wait =
        || unsafe { libc::sigtimedwait(&raw const term, ptr::null_mut(), &raw const second) };
    println!("awaited: {}, {:?}", wait(), file.take());
    let sent = in_a_child(|| {
        // SAFETY: the parent blocks it.
        unsafe { libc::kill(libc::getppid(), libc::SIGTERM) };
    })?;
    println!(
        "{}, {}",
        matches!(sent, nix::sys::wait::WaitStatus::Exited(_, 0)),
        wait()
    );
    println!("a child: {:?}", file.take().map(|(signal, ..)| signal));
    Ok(())
}

/// What is pending is handled as soon as it is not blocked any more.
fn unblocked(file: &SignalFile) -> Result<(), ProbeError> {
    // SAFETY: the handler sets a word alone.
    unsafe { libc::signal(libc::SIGUSR1, note as *const () as libc::sighandler_t) };
    send(libc::SIGUSR1);
    println!("blocked: {}", HANDLED.load(Ordering::Relaxed));
    change_mask(libc::SIG_UNBLOCK, &[libc::SIGUSR1])?;
    println!("handled: {}", HANDLED.swap(0, Ordering::Relaxed));
    change_mask(libc::SIG_BLOCK, &[libc::SIGUSR1])?;
    send(libc::SIGUSR1);
    let none = set_of(&[]);
    // SAFETY: there are no descriptors; it reads the set.
    let polled = unsafe { libc::ppoll(ptr::null_mut(), 0, ptr::null(), &raw const none) };
    println!(
        "in a call: {polled}, {}",
        HANDLED.swap(0, Ordering::Relaxed)
    );
    send(libc::SIGUSR1);
    // SAFETY: it reads the set.
    let suspended = unsafe { libc::sigsuspend(&raw const none) };
    println!(
        "suspended: {suspended}, {}",
        HANDLED.swap(0, Ordering::Relaxed)
    );
    println!("then: {:?}", file.take());
    Ok(())
}

/// A thread waits in a read, another one sends the signal.
fn blocks_a_thread() -> Result<(), ProbeError> {
    let file = SignalFile::new(0)?;
    let reader = std::thread::spawn(move || [file.take(), file.take()]);
    send(libc::SIGTERM);
    let value = libc::sigval {
        sival_ptr: ptr::without_provenance_mut(7),
    };
    // SAFETY: the program blocks it.
    unsafe { libc::sigqueue(libc::getpid(), QUEUED, value) };
    let taken = reader
        .join()
        .map_err(|_| ProbeError::Wrong("a thread".to_owned()))?;
    println!("a thread: {taken:?}");
    Ok(())
}
