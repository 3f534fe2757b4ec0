//! The proxy's own mappings and descriptors, in the address space and descriptor table that it
//! shares with the program: the program's calls must not reach them.

use std::fs;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::libc;

use super::memory::event_rings::open_event;
use super::{ProbeError, call};

/// Name of the mirror's mappings and file.
const MIRROR: &str = "insula-mirror";

pub(super) fn probe() -> Result<(), ProbeError> {
    let maps = read("/proc/self/maps")?;
    let last = maps
        .lines()
        .rfind(|line| line.contains(MIRROR) && !is_of_slots(line));
    let end = last.and_then(range).map(|(_, end)| end);
    let end = end.ok_or_else(|| ProbeError::Wrong("no program's memory".into()))?;
    let own = maps
        .lines()
        .filter_map(range)
        .filter(|&(start, _)| start >= end);
    let own: Vec<u64> = own.map(|(start, _)| start).collect();
    // Code, parameters, syscall slots and stacks.
    if own.len() < 2 {
        return Err(ProbeError::Wrong(format!(
            "no mapping is the proxy's: {maps}"
        )));
    }
    own.into_iter().try_for_each(is_unreachable)?;
    is_not_open(descriptor()?)?;
    is_not_counted()?;
    println!("the program cannot reach it");
    Ok(())
}

fn read(path: &str) -> Result<String, ProbeError> {
    fs::read_to_string(path).map_err(|error| ProbeError::Wrong(format!("{path}: {error}")))
}

/// Syscall slots are mapped from an offset beyond all programs' memory.
fn is_of_slots(line: &str) -> bool {
    let offset = line.split(' ').nth(2);
    let offset = offset.and_then(|word| u64::from_str_radix(word, 16).ok());
    offset.is_some_and(|offset| offset >= insula_abi::lwk::MIRROR_SLOTS)
}

/// Events of the proxy are not taken for those of the program.
fn is_not_counted() -> Result<(), ProbeError> {
    let own = nix::unistd::gettid().as_raw();
    for process in [0, own] {
        // Context switches, on any processor.
        match open_event(3, process, -1) {
            Err(ProbeError::Call {
                errno: Errno::EPERM,
                ..
            }) => {}
            opened => {
                return Err(ProbeError::Wrong(format!(
                    "events of {process}: {opened:?}"
                )));
            }
        }
    }
    Ok(())
}

fn range(line: &str) -> Option<(u64, u64)> {
    let (start, rest) = line.split_once('-')?;
    let (end, _) = rest.split_once(' ')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    (end <= 1 << 47).then_some((start, end))
}

fn is_unreachable(address: u64) -> Result<(), ProbeError> {
    // SAFETY: it only reads a string.
    let result = unsafe { call(libc::SYS_chdir as u64, [address, 0, 0, 0, 0, 0]) };
    let wrong = || ProbeError::Wrong(format!("chdir of {address:#x}: {result:?}"));
    (result == Err(Errno::EFAULT))
        .then_some(())
        .ok_or_else(wrong)
}

/// Number of the proxy's own descriptor.
fn descriptor() -> Result<u64, ProbeError> {
    let folder = fs::read_dir("/proc/self/fd");
    let folder = folder.map_err(|error| ProbeError::Wrong(format!("/proc/self/fd: {error}")))?;
    let mut files = folder.flatten().map(|entry| entry.path());
    let is_mirror = |path: &PathBuf| {
        let name = fs::read_link(path);
        name.is_ok_and(|name| name.to_string_lossy().contains(MIRROR))
    };
    let found = files.find(is_mirror);
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
        // SAFETY: of an invalid descriptor it does nothing.
        let result = unsafe { call(call_number as u64, [number, second, third, 0, 0, 0]) };
        if result != Err(Errno::EBADF) {
            let what = format!("call {call_number} of the proxy's descriptor: {result:?}");
            return Err(ProbeError::Wrong(what));
        }
    }
    Ok(())
}
