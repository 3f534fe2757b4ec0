//! Wild pointers in every argument of every call that is not refused: EFAULT is returned where
//! Linux returns it.

use std::sync::atomic::Ordering;

use insula_lwk::syscall::call::{Call, Kind};
use insula_lwk::syscall::table::TABLE;
use nix::errno::Errno;
use nix::sys::wait::WaitStatus;

use super::{ProbeError, call, in_a_child, shared};

/// The null page, just above user memory, a non-canonical address, the last page. As ids of
/// processes, descriptors and signal numbers they are invalid.
const WILD: [u64; 4] = [
    0x3ff0,
    0x7fff_ffff_f000,
    0x1000_0000_0000_0000,
    0xffff_ffff_ffff_f000,
];
const ARGUMENTS: usize = 6;
/// Time limit of a call that blocks, in seconds.
const LIMIT_S: u32 = 10;

/// Calls that end, stop or fork the caller, block for ever, or change or leave behind state of the
/// whole machine; all kinds of pointers that they take occur in other calls.
const LEFT_OUT: &[&str] = &[
    "clone",
    "clone3",
    "exit",
    "exit_group",
    "fork",
    "kill",
    "msgget",
    "pause",
    "poll",
    "ppoll",
    "pselect6",
    "rt_sigreturn",
    "rt_sigsuspend",
    "select",
    "semget",
    "setdomainname",
    "sethostname",
    "shmget",
    "sync",
    "tgkill",
    "tkill",
    "vfork",
    "vhangup",
];

pub(super) fn probe() -> Result<(), ProbeError> {
    let done =
        |call: &&Call| !matches!(call.kind, Kind::Refused { .. }) && !LEFT_OUT.contains(&call.name);
    let faults = shared::words(1)?;
    for one in TABLE.iter().filter(done) {
        faults[0].store(0, Ordering::Relaxed);
        let ended = in_a_child(|| {
            nix::unistd::alarm::set(LIMIT_S);
            for (place, bit) in (0..ARGUMENTS * WILD.len()).zip(0..) {
                let mut arguments = [0; ARGUMENTS];
                arguments[place / WILD.len()] = WILD[place % WILD.len()];
                // SAFETY: this process is for nothing else, and may end by it.
                if unsafe { call(one.number, arguments) } == Err(Errno::EFAULT) {
                    faults[0].fetch_or(1 << bit, Ordering::Relaxed);
                }
            }
        })?;
        let faults = faults[0].load(Ordering::Relaxed);
        let ended = match ended {
            WaitStatus::Exited(_, status) => format!("status {status}"),
            WaitStatus::Signaled(_, signal, _) => signal.to_string(),
            other => format!("{other:?}"),
        };
        println!("{} {faults:06x} {ended}", one.name);
    }
    Ok(())
}
