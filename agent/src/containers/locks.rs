//! Locks that CRIU loses without a word: those of `fcntl()` that a process has by a descriptor which is also an earlier
//! process's, as it is after a `fork()`. CRIU dumps the open file with the earlier one, and drops the locks of
//! the later one with it (`discard_dup_locks_tail` in `criu/file-lock.c`).

use std::ffi::OsStr;
use std::fs;
use std::os::raw::{c_int, c_long};
use std::path::{Path, PathBuf};

/// How a line of `/proc/PID/fdinfo` about such a lock begins, and the word for it, which comes third
/// (proc_pid_fdinfo(5)).
const LOCK: &str = "lock:";
const POSIX: &str = "POSIX";
/// `KCMP_FILE` of kcmp(2): whether two descriptors are of the same open file.
const KCMP_FILE: c_int = 0;
/// What of `/proc/PID/stat`, behind the name, is the time of the start (proc_pid_stat(5)).
const START: usize = 19;

/// Each lost lock: its file's path, and the process.
pub(super) fn lost(processes: &[i32]) -> Vec<(PathBuf, i32)> {
    // CRIU dumps a parent before its children.
    let mut ordered: Vec<_> = processes.iter().map(|&pid| (started(pid), pid)).collect();
    ordered.sort_unstable();
    let mut lost = Vec::new();
    for (index, &(_, pid)) in ordered.iter().enumerate() {
        for (descriptor, path) in locked(pid) {
            let earlier = ordered[..index].iter();
            if earlier
                .map(|&(_, other)| other)
                .any(|other| has(other, &path, (pid, descriptor)))
            {
                lost.push((path, pid));
            }
        }
    }
    lost
}

/// When a process was started, in ticks since the boot. One that has ended meanwhile has no locks.
fn started(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    let start = behind_name.split_whitespace().nth(START);
    start.and_then(|start| start.parse().ok()).unwrap_or(0)
}

/// Descriptors by which a process has locks of its own, and their files.
fn locked(pid: i32) -> Vec<(c_int, PathBuf)> {
    let is_locked = |descriptor: c_int| {
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}"));
        info.is_ok_and(|info| has_lock(&info))
    };
    let mut all = descriptors(pid);
    all.retain(|&(descriptor, _)| is_locked(descriptor));
    all
}

fn has_lock(info: &str) -> bool {
    let locks = info.lines().filter_map(|line| line.strip_prefix(LOCK));
    locks
        .into_iter()
        .any(|lock| lock.split_whitespace().nth(1) == Some(POSIX))
}

/// Whether a process has the file that a descriptor of another one is of.
fn has(pid: i32, path: &Path, (other, descriptor): (i32, c_int)) -> bool {
    let same_path = descriptors(pid).into_iter().filter(|(_, one)| one == path);
    same_path
        .into_iter()
        .any(|(own, _)| is_same_file((pid, own), (other, descriptor)))
}

fn descriptors(pid: i32) -> Vec<(c_int, PathBuf)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"));
    let entries = entries.into_iter().flatten().flatten();
    let number = |name: &OsStr| name.to_str()?.parse().ok();
    let opened = entries.filter_map(|entry| {
        let path = fs::read_link(entry.path()).ok()?;
        Some((number(&entry.file_name())?, path))
    });
    opened.collect()
}

#[allow(unsafe_code, reason = "the call has no safe name")]
fn is_same_file(one: (i32, c_int), other: (i32, c_int)) -> bool {
    let [first, second] = [one.1, other.1].map(c_long::from);
    // SAFETY: it takes numbers only, and changes nothing.
    unsafe { libc::syscall(libc::SYS_kcmp, one.0, other.0, KCMP_FILE, first, second) == 0 }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::process;

    use super::*;

    #[test]
    fn locks_are_told_apart() {
        let info = |kind: &str| {
            format!("pos:\t0\nflags:\t02\nlock:\t1: {kind}  ADVISORY  WRITE 7 00:31:42 0 EOF\n")
        };
        assert!(has_lock(&info("POSIX")));
        for other in ["FLOCK", "OFDLCK", "LEASE"] {
            assert!(!has_lock(&info(other)), "{other}");
        }
        assert!(!has_lock("pos:\t0\n"));
    }

    #[test]
    fn the_same_open_file_has_several_descriptors() {
        let own = process::id().cast_signed();
        let file = tempfile::tempfile().unwrap();
        let again = file.try_clone().unwrap();
        let other = tempfile::tempfile().unwrap();
        let [file, again, other] = [&file, &again, &other].map(|file| (own, file.as_raw_fd()));
        assert!(is_same_file(file, again) && !is_same_file(file, other));
        assert!(started(own) > 0);
        // None of them has a lock.
        assert_eq!(lost(&[own, own]), []);
    }
}
