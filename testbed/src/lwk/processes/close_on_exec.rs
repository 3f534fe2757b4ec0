//! Close-on-exec without /proc: descriptors with the flag are closed, whatever their number.

use std::ffi::CStr;

use nix::errno::Errno;
use nix::libc;
use nix::unistd::{chroot, execve};

use crate::lwk::{Named, ProbeError, call};

/// Folder with this program, and without /proc.
const ROOT: &str = "/payload";
const PROGRAM: &CStr = c"/bin/insula-probe";
/// Descriptors with the flag: the last is beyond a few hundred.
const NUMBERS: [u64; 3] = [40, 64, 1000];
/// Descriptor without the flag.
const GIVEN: u64 = 900;

pub(crate) fn probe() -> Result<(), ProbeError> {
    for number in NUMBERS {
        copy_output(number, libc::O_CLOEXEC)?;
    }
    copy_output(GIVEN, 0)?;
    chroot(ROOT).named("chroot")?;
    execve(PROGRAM, &[PROGRAM, c"closed"], &[] as &[&CStr])
        .named("execve")
        .map(drop)
}

fn copy_output(to: u64, flags: i32) -> Result<(), ProbeError> {
    // SAFETY: these descriptors are unused.
    unsafe { call(libc::SYS_dup3 as u64, [1, to, flags as u64, 0, 0, 0]) }
        .named("dup3")
        .map(drop)
}

/// Part of the program that is executed.
pub(crate) fn closed() -> Result<(), ProbeError> {
    let is_closed = |number: u64| {
        let arguments = [number, libc::F_GETFD as u64, 0, 0, 0, 0];
        // SAFETY: it only queries a descriptor.
        let answer = unsafe { call(libc::SYS_fcntl as u64, arguments) };
        answer == Err(Errno::EBADF)
    };
    let left = NUMBERS.into_iter().find(|&number| !is_closed(number));
    match left {
        Some(number) => Err(ProbeError::Wrong(format!("{number} is open"))),
        None if is_closed(GIVEN) => Err(ProbeError::Wrong(format!("{GIVEN} is closed"))),
        None => {
            println!("what is not for it is closed");
            Ok(())
        }
    }
}
