//! The signals of a proxy: which ones the process ignores and blocks, for the program to start with,
//! and the blob's handler for all of them.

use insula_abi::lwk::MIRROR_CANCEL_SIGNAL;
use insula_base::error::Error;
use insula_proxy::blob;
use nix::errno::Errno;
use nix::libc;

use super::{RegionLayout, failed};

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Action {
    pub(super) handler: u64,
    pub(super) flags: u64,
    pub(super) restorer: u64,
    pub(super) mask: u64,
}

/// Signals that cannot be caught.
const UNCATCHABLE: [i32; 2] = [libc::SIGKILL, libc::SIGSTOP];
/// Signals by which a terminal stops a background process. The terminal checks itself whether they
/// are ignored: so the proxy must ignore them if the program does.
const BACKGROUND_STOPS: [i32; 2] = [libc::SIGTTIN, libc::SIGTTOU];

/// The bit of a signal in a set.
fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Signal dispositions of this process, which the program starts with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inherited {
    /// Ignored signals: bit number - 1 of each.
    pub(super) ignored: u64,
    /// Blocked signals: bit number - 1 of each.
    pub(super) blocked: u64,
}

impl Inherited {
    pub(super) fn from_this_process() -> Result<Self, Error> {
        let mut ignored = 0;
        // Rust's runtime ignores SIGPIPE for itself; a parent that used posix_spawn(3) of glibc has
        // made this process ignore the C library's own signals.
        let others = |signal: &i32| !matches!(*signal, libc::SIGPIPE | 32 | 33);
        for signal in (1..=64).filter(others) {
            let failed = |errno| failed(format!("catching signal {signal}"))(errno);
            if is_ignored(signal).map_err(failed)? {
                ignored |= bit(signal);
            }
        }
        let mut blocked = 0_u64;
        change_mask(libc::SIG_BLOCK, 0, &mut blocked)?;
        Ok(Self { ignored, blocked })
    }
}

/// Changes this thread's signal mask; stores the previous one.
fn change_mask(how: i32, set: u64, before: &mut u64) -> Result<(), Error> {
    let size = size_of::<u64>();
    // SAFETY: both are signal sets as the kernel defines them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            &raw const set,
            &raw mut *before,
            size,
        )
    };
    Errno::result(result)
        .map(drop)
        .map_err(failed("unblocking signals"))
}

/// Directs all signals to the blob, also those that are ignored or blocked: the program may change
/// that later, and its kernel decides about each. The proxy installs a handler for an ignored one
/// when the program does.
pub(super) fn catch(region: &RegionLayout, inherited: Inherited) -> Result<(), Error> {
    for signal in 1..=64 {
        let failed = |errno| failed(format!("catching signal {signal}"))(errno);
        if let Some(action) = action(region, signal, inherited.ignored) {
            sigaction(signal, &raw const action, std::ptr::null_mut()).map_err(failed)?;
        }
    }
    change_mask(libc::SIG_SETMASK, 0, &mut 0)
}

/// The action of a proxy for a signal; `None`: what it is, as it cannot be caught, or is to be ignored.
/// `ignored` are the signals that the program ignores.
pub(super) fn action(region: &RegionLayout, signal: i32, ignored: u64) -> Option<Action> {
    const SA_RESTORER: u64 = 0x0400_0000;
    let is_ignored = ignored & bit(signal) != 0;
    if UNCATCHABLE.contains(&signal) || is_ignored && BACKGROUND_STOPS.contains(&signal) {
        return None;
    }
    // A restarted call that uses a terminal from the background would be stopped again, for ever.
    let is_not_restarted = signal == MIRROR_CANCEL_SIGNAL.cast_signed()
        || signal == libc::SIGTSTP
        || BACKGROUND_STOPS.contains(&signal);
    let restart = if is_not_restarted {
        0
    } else {
        libc::SA_RESTART
    };
    // With SIGCHLD ignored, wait(2) does not report children.
    let no_child_wait = signal == libc::SIGCHLD && is_ignored;
    let children = if no_child_wait { libc::SA_NOCLDWAIT } else { 0 };
    let blob = blob();
    Some(Action {
        handler: region.address() + blob.handler as u64,
        flags: (libc::SA_SIGINFO | restart | children) as u64 | SA_RESTORER,
        restorer: region.address() + blob.restorer as u64,
        mask: u64::MAX,
    })
}

fn is_ignored(signal: i32) -> Result<bool, Errno> {
    let mut action = Action::default();
    sigaction(signal, std::ptr::null(), &raw mut action)?;
    Ok(action.handler == libc::SIG_IGN as u64)
}

/// `rt_sigaction`: the C library's would set its own restorer, and hides two signals.
fn sigaction(signal: i32, new: *const Action, old: *mut Action) -> Result<(), Errno> {
    let size = size_of::<u64>();
    // SAFETY: both are null or the kernel's structure; the handler is in the blob, which is mapped.
    let result = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, old, size) };
    Errno::result(result).map(drop)
}
