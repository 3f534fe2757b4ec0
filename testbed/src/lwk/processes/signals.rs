//! Signals: their information, the thread that receives them, and when.

use std::ffi::c_int;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid, gettid};

use crate::lwk::{Named, ProbeError, call};

/// Last signal of a handler: number, code, sender or timer, value or status, thread.
static LAST: Mutex<[i32; 5]> = Mutex::new([0; 5]);
static COUNT: AtomicU32 = AtomicU32::new(0);

extern "C" fn record(signal: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a complete structure; all words that are read lie in it.
    let (code, words) = unsafe { ((*info).si_code, info.cast::<[i32; 12]>().read()) };
    if let Ok(mut last) = LAST.try_lock() {
        *last = [signal, code, words[4], words[6], gettid().as_raw()];
    }
    COUNT.fetch_add(1, Ordering::SeqCst);
}

/// Information of the last signal.
fn last() -> [i32; 5] {
    LAST.lock().map(|last| *last).unwrap_or_default()
}

pub(crate) fn catch(signal: c_int, flags: c_int) -> Result<(), ProbeError> {
    // SAFETY: all zero is a valid action; the handler only does what handlers may.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = record as *const () as usize;
        action.sa_flags = flags | libc::SA_SIGINFO;
        libc::sigaction(signal, &raw const action, ptr::null_mut())
    };
    Errno::result(done).map(drop).named("sigaction")
}

pub(crate) fn set_of(signal: c_int) -> libc::sigset_t {
    // SAFETY: it is initialised before it is used.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        set
    }
}

pub(crate) fn mask(how: c_int, signal: c_int) {
    let set = set_of(signal);
    // SAFETY: a set of this function's.
    unsafe { libc::pthread_sigmask(how, &raw const set, ptr::null_mut()) };
}

/// Waits for a blocked signal, some seconds at most. Returns its number and code, or a negative
/// errno.
fn await_blocked(signal: c_int) -> (i32, i32) {
    let set = set_of(signal);
    let limit = libc::timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    // SAFETY: all three are this function's.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let taken = libc::sigtimedwait(&raw const set, &raw mut info, &raw const limit);
        match taken {
            -1 => (-(Errno::last() as i32), 0),
            taken => (taken, info.si_code),
        }
    }
}

/// Forks a process that runs `action` and exits with 7.
pub(crate) fn child(action: impl FnOnce(Pid)) -> Result<Pid, ProbeError> {
    // SAFETY: the child makes system calls only.
    match unsafe { fork() }.named("fork")? {
        ForkResult::Child => {
            action(getppid());
            // SAFETY: it ends the process, without the parent's exit handlers.
            unsafe { libc::_exit(7) }
        }
        ForkResult::Parent { child } => Ok(child),
    }
}

fn end_of(child: Pid) -> Result<(), ProbeError> {
    loop {
        match waitpid(child, None) {
            Err(Errno::EINTR) => {}
            other => return other.map(drop).named("waiting for a child"),
        }
    }
}

pub(crate) fn wait_until(what: &'static str, done: impl Fn() -> bool) -> Result<(), ProbeError> {
    for _ in 0..2000 {
        if done() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(ProbeError::Wrong(format!("waited in vain for {what}")))
}

pub(crate) fn probe() -> Result<(), ProbeError> {
    senders()?;
    own()?;
    timers()?;
    to_a_thread()?;
    blocked_pipe()?;
    pipe_before_its_error()
}

/// Signals of other processes: sender and value.
fn senders() -> Result<(), ProbeError> {
    // SAFETY: it has no arguments.
    let uid = unsafe { libc::getuid() };
    for (signal, by_queue) in [(libc::SIGUSR1, false), (libc::SIGRTMIN() + 3, true)] {
        catch(signal, 0)?;
        let before = COUNT.load(Ordering::SeqCst);
        let sender = child(|parent| {
            // SAFETY: signals that the parent catches.
            unsafe {
                match by_queue {
                    false => libc::kill(parent.as_raw(), signal),
                    true => libc::sigqueue(
                        parent.as_raw(),
                        signal,
                        libc::sigval {
                            sival_ptr: ptr::without_provenance_mut(77),
                        },
                    ),
                }
            };
        })?;
        end_of(sender)?;
        wait_until("a child's signal", || COUNT.load(Ordering::SeqCst) > before)?;
        let [_, code, pid, value, _] = last();
        let value = if by_queue { value } else { 0 };
        println!(
            "a child's: {code}, {}, {value}, {uid}",
            pid == sender.as_raw()
        );
    }
    catch(libc::SIGCHLD, 0)?;
    let before = COUNT.load(Ordering::SeqCst);
    let ended = child(|_| ())?;
    wait_until("a child's end", || COUNT.load(Ordering::SeqCst) > before)?;
    let [_, code, pid, status, _] = last();
    println!("its end: {code}, {}, {status}", pid == ended.as_raw());
    end_of(ended)?;
    default(libc::SIGCHLD);
    Ok(())
}

pub(crate) fn default(signal: c_int) {
    // SAFETY: the signal's default action.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Signals to itself, to the process and to one thread.
fn own() -> Result<(), ProbeError> {
    catch(libc::SIGUSR2, 0)?;
    // SAFETY: both are caught.
    unsafe { libc::raise(libc::SIGUSR2) };
    let [_, raised, by, ..] = last();
    // SAFETY: as above.
    unsafe { libc::kill(getpid().as_raw(), libc::SIGUSR2) };
    let [_, killed, also_by, uid, _] = last();
    // The word has no meaning for these signals.
    let _ = uid;
    let own = getpid().as_raw();
    println!("own: {raised}, {killed}, {}, {}", by == own, also_by == own);
    Ok(())
}

/// `struct sigevent` with a function to be called in a thread.
#[repr(C)]
struct Event {
    value: usize,
    signal: c_int,
    notify: c_int,
    function: extern "C" fn(usize),
    attributes: usize,
    rest: [u64; 4],
}

static NOTIFIED: AtomicU32 = AtomicU32::new(0);

extern "C" fn notified(value: usize) {
    NOTIFIED.fetch_add(value as u32, Ordering::SeqCst);
}

/// A timer that sends a signal with a value, and one that calls a function in a thread.
fn timers() -> Result<(), ProbeError> {
    let signal = libc::SIGRTMIN() + 4;
    catch(signal, 0)?;
    let before = COUNT.load(Ordering::SeqCst);
    let sends = timer(libc::SIGEV_SIGNAL, signal, 55)?;
    wait_until("a timer's signal", || COUNT.load(Ordering::SeqCst) > before)?;
    let [_, code, _, value, _] = last();
    println!("a timer's: {code}, {value}");
    let calls = timer(libc::SIGEV_THREAD, 0, 9)?;
    wait_until("a timer's function", || {
        NOTIFIED.load(Ordering::SeqCst) >= 27
    })?;
    println!(
        "a timer's function is called: {}",
        NOTIFIED.load(Ordering::SeqCst) % 9
    );
    for timer in [sends, calls] {
        // SAFETY: a timer of this function's.
        unsafe { libc::timer_delete(timer) };
    }
    // Discards a pending signal. SAFETY: it is ignored.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
    Ok(())
}

/// A timer that expires every 20 ms.
fn timer(notify: c_int, signal: c_int, value: usize) -> Result<libc::timer_t, ProbeError> {
    let mut event = Event {
        value,
        signal,
        notify,
        function: notified,
        attributes: 0,
        rest: [0; 4],
    };
    let often = libc::timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    let times = libc::itimerspec {
        it_interval: often,
        it_value: often,
    };
    let mut timer: libc::timer_t = ptr::null_mut();
    // SAFETY: the event has the C library's layout, and is copied.
    let made = unsafe {
        libc::timer_create(
            libc::CLOCK_MONOTONIC,
            (&raw mut event).cast(),
            &raw mut timer,
        )
    };
    Errno::result(made).named("timer_create")?;
    // SAFETY: the timer exists.
    let set = unsafe { libc::timer_settime(timer, 0, &raw const times, ptr::null_mut()) };
    Errno::result(set).map(|_| timer).named("timer_settime")
}

/// Another process sends a signal to one of two threads.
fn to_a_thread() -> Result<(), ProbeError> {
    let signal = libc::SIGRTMIN() + 5;
    catch(signal, 0)?;
    let second = AtomicI32::new(0);
    let before = COUNT.load(Ordering::SeqCst);
    let is_over = || COUNT.load(Ordering::SeqCst) > before;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            second.store(gettid().as_raw(), Ordering::SeqCst);
            wait_until("a signal to this thread", is_over)
        });
        wait_until("a thread", || second.load(Ordering::SeqCst) != 0)?;
        let thread = second.load(Ordering::SeqCst) as u64;
        let sender = child(|parent| {
            let arguments = [parent.as_raw() as u64, thread, signal as u64, 0, 0, 0];
            // SAFETY: a signal that is caught there.
            let _ = unsafe { call(libc::SYS_tgkill as u64, arguments) };
        })?;
        end_of(sender)?;
        wait_until("a signal to a thread", is_over)?;
        let [_, code, pid, _, found] = last();
        let right = (pid == sender.as_raw(), found as u64 == thread);
        println!("to a thread: {code}, {right:?}");
        Ok(())
    })
}

/// A pipe that nobody reads.
fn broken_pipe() -> Result<std::io::PipeWriter, ProbeError> {
    let (reader, writer) = std::io::pipe().map_err(|error| ProbeError::Wrong(error.to_string()))?;
    drop(reader);
    Ok(writer)
}

fn write_to(pipe: &std::io::PipeWriter) -> i32 {
    nix::unistd::write(pipe, b"x").map_or_else(|errno| errno as i32, |_| 0)
}

/// A thread that blocks SIGPIPE keeps it pending, and no other thread receives it.
fn blocked_pipe() -> Result<(), ProbeError> {
    default(libc::SIGPIPE);
    let pipe = broken_pipe()?;
    let ended = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            mask(libc::SIG_BLOCK, libc::SIGPIPE);
            (write_to(&pipe), await_blocked(libc::SIGPIPE))
        });
        writer.join().unwrap_or_default()
    });
    println!("a broken pipe, blocked: {ended:?}");
    Ok(())
}

/// The handler has run before the call returns.
fn pipe_before_its_error() -> Result<(), ProbeError> {
    catch(libc::SIGPIPE, libc::SA_RESTART)?;
    let pipe = broken_pipe()?;
    let mut late = 0;
    for _ in 0..200 {
        let before = COUNT.load(Ordering::SeqCst);
        let error = write_to(&pipe);
        late += u32::from(COUNT.load(Ordering::SeqCst) == before || error != Errno::EPIPE as i32);
    }
    let [signal, code, pid, ..] = last();
    println!(
        "late: {late}; {signal}, {code}, {}",
        pid == getpid().as_raw()
    );
    Ok(())
}
