//! What keeps a container from being moved, as far as its processes and their open files tell: CRIU knows no state of
//! devices, nor of files without a name that it does not list, and loses some locks.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{major, minor};
use rustix::process::Pid;

use super::cgroup::Cgroup;
use super::locks;

/// Files without a name that CRIU dumps, as `/proc/PID/fd` shows them.
const KNOWN: [&str; 6] = [
    "[eventpoll]",
    "[eventfd]",
    "[signalfd]",
    "[timerfd]",
    "inotify",
    "[fanotify]",
];
/// How `/proc/PID/fd` begins for a file without a name. Those of processes have their own file system
/// in newer kernels.
const ANONYMOUS: &str = "anon_inode:";
const PROCESS: &str = "[pidfd]";
/// Character devices without a state (kernel: Documentation/admin-guide/devices.txt): null, zero, full,
/// random and urandom; and terminals, whose state CRIU dumps.
const MEMORY_DEVICES: (u32, [u32; 5]) = (1, [3, 5, 7, 8, 9]);
const TERMINALS: [u32; 9] = [5, 136, 137, 138, 139, 140, 141, 142, 143];

/// What is in the way, with the process that has it.
pub(super) fn obstacles(cgroup: &Cgroup, first: Pid) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    let processes = cgroup.processes()?;
    found.extend(joined(&processes, first).map(|pid| {
        let name = name(pid);
        format!("`{name}`, which was started in it by `insula exec`")
    }));
    for &pid in &processes {
        let folder = Path::new("/proc").join(pid.to_string());
        // It may have ended meanwhile.
        let files = fs::read_dir(folder.join("fd")).into_iter().flatten();
        for file in files.flatten() {
            if let Some(what) = obstacle(&file.path()) {
                found.push(format!("{what}, open in `{}`", name(pid)));
            }
        }
    }
    found.extend(locks::lost(&processes).into_iter().map(|(path, pid)| {
        let (path, name) = (path.display(), name(pid));
        format!("a lock on {path}, which `{name}` has by a descriptor in common with its parent")
    }));
    found.sort();
    found.dedup();
    Ok(found)
}

/// Processes that descend from others than the first one, which CRIU does not see.
fn joined(processes: &[i32], first: Pid) -> impl Iterator<Item = i32> + '_ {
    let first = first.as_raw_nonzero().get();
    let has_parent = |pid: i32| parent(pid).is_none_or(|parent| processes.contains(&parent));
    let all = processes.iter().copied();
    all.filter(move |&pid| pid != first && !has_parent(pid))
}

/// The parent of a process, unless it has ended.
fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}

/// Name of a process.
fn name(pid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

/// What is in the way of an open file, whose link in `/proc` this is.
fn obstacle(link: &Path) -> Option<String> {
    let name = fs::read_link(link).ok()?;
    let name = name.to_string_lossy();
    if let Some(kind) = name.strip_prefix(ANONYMOUS) {
        let is_known = KNOWN.contains(&kind) || kind == PROCESS;
        return (!is_known).then(|| format!("a file of the kind {kind}"));
    }
    // Sockets, pipes and the like have no path, and are no devices.
    if !name.starts_with('/') {
        return None;
    }
    let metadata = fs::metadata(link).ok()?;
    let kind = metadata.file_type();
    let is_free = kind.is_char_device() && is_free(metadata.rdev());
    let is_device = kind.is_char_device() || kind.is_block_device();
    (is_device && !is_free).then(|| format!("the device {name}"))
}

/// Whether a character device has no state that is lost.
fn is_free(device: u64) -> bool {
    let (memory, free) = MEMORY_DEVICES;
    let number = major(device);
    (number == memory && free.contains(&minor(device))) || TERMINALS.contains(&number)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    fn of(file: &File) -> Option<String> {
        obstacle(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))
    }

    #[test]
    fn files_and_devices_without_a_state_are_not_in_the_way() {
        for path in ["/dev/null", "/dev/urandom", "/proc/self/status"] {
            assert_eq!(of(&File::open(path).unwrap()), None, "{path}");
        }
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        assert_eq!(of(&File::from(event)), None);
    }

    #[test]
    fn who_descends_from_others_has_joined() {
        let own = std::process::id().cast_signed();
        let other = parent(own).unwrap();
        let first = |pid| Pid::from_raw(pid).unwrap();
        let of = |processes: &[i32], of| joined(processes, first(of)).collect::<Vec<_>>();
        assert_eq!(of(&[1, own], 1), [own]);
        assert!(of(&[own, other], other).is_empty());
        assert!(of(&[own], own).is_empty());
    }

    #[test]
    fn devices_are_in_the_way() {
        assert!(!is_free(rustix::fs::makedev(10, 229)) && !is_free(rustix::fs::makedev(1, 1)));
        assert!(is_free(rustix::fs::makedev(136, 2)));
    }
}
