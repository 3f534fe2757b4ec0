//! What the proxy has for itself, in the address space and among the descriptors that it has together
//! with the program, is no program's: a call finds nothing there.

use std::fs;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::libc;

use super::{ProbeError, call};

/// What the base calls a mapping or a file of a space.
const SPACE: &str = "insula-space";

pub(super) fn probe() -> Result<(), ProbeError> {
    let maps = read("/proc/self/maps")?;
    let last = maps
        .lines()
        .rfind(|line| line.contains(SPACE) && !is_of_desks(line));
    let end = last.and_then(range).map(|(_, end)| end);
    let end = end.ok_or_else(|| ProbeError::Wrong("no program's memory".into()))?;
    let own = maps
        .lines()
        .filter_map(range)
        .filter(|&(start, _)| start >= end);
    let own: Vec<u64> = own.map(|(start, _)| start).collect();
    // The blob, what it has to know, desks and stacks.
    if own.len() < 2 {
        return Err(ProbeError::Wrong(format!("nothing is the proxy's: {maps}")));
    }
    own.into_iter().try_for_each(is_not_there)?;
    is_not_open(descriptor()?)?;
    println!("it is not the program's");
    Ok(())
}

fn read(path: &str) -> Result<String, ProbeError> {
    fs::read_to_string(path).map_err(|error| ProbeError::Wrong(format!("{path}: {error}")))
}

/// Desks are mapped from an offset behind all programs' memory.
fn is_of_desks(line: &str) -> bool {
    let offset = line.split(' ').nth(2);
    let offset = offset.and_then(|word| u64::from_str_radix(word, 16).ok());
    offset.is_some_and(|offset| offset >= insula_abi::lwk::SPACE_DESKS)
}

fn range(line: &str) -> Option<(u64, u64)> {
    let (start, rest) = line.split_once('-')?;
    let (end, _) = rest.split_once(' ')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    (end <= 1 << 47).then_some((start, end))
}

fn is_not_there(address: u64) -> Result<(), ProbeError> {
    // SAFETY: it only reads what is there.
    let told = unsafe { call(libc::SYS_chdir as u64, [address, 0, 0, 0, 0, 0]) };
    let wrong = || ProbeError::Wrong(format!("chdir of {address:#x}: {told:?}"));
    (told == Err(Errno::EFAULT)).then_some(()).ok_or_else(wrong)
}

/// The number of the proxy's own.
fn descriptor() -> Result<u64, ProbeError> {
    let folder = fs::read_dir("/proc/self/fd");
    let folder = folder.map_err(|error| ProbeError::Wrong(format!("/proc/self/fd: {error}")))?;
    let mut files = folder.flatten().map(|entry| entry.path());
    let is_space = |path: &PathBuf| {
        let name = fs::read_link(path);
        name.is_ok_and(|name| name.to_string_lossy().contains(SPACE))
    };
    let found = files.find(is_space);
    let number = found.and_then(|path| path.file_name()?.to_str()?.parse().ok());
    number.ok_or_else(|| ProbeError::Wrong("the proxy has no descriptor".into()))
}

fn is_not_open(number: u64) -> Result<(), ProbeError> {
    let tries = [
        (libc::SYS_close, 0, 0),
        (libc::SYS_dup, 0, 0),
        (libc::SYS_dup2, 1, 0),
        (libc::SYS_dup3, 1, 0),
        (libc::SYS_fcntl, libc::F_DUPFD as u64, 0),
        (libc::SYS_fcntl, libc::F_DUPFD_CLOEXEC as u64, 0),
        (libc::SYS_ioctl, 0, 0),
    ];
    for (call_number, second, third) in tries {
        // SAFETY: of a number that is none it does nothing.
        let told = unsafe { call(call_number as u64, [number, second, third, 0, 0, 0]) };
        if told != Err(Errno::EBADF) {
            let what = format!("call {call_number} of the proxy's descriptor: {told:?}");
            return Err(ProbeError::Wrong(what));
        }
    }
    Ok(())
}
