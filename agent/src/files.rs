//! The file systems that every user land expects.

use std::fs;

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use crate::say::say;

/// Kind, where, options; in the order in which they need each other.
const MOUNTS: [(&str, &str, &str); 8] = [
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("devtmpfs", "/dev", "mode=755"),
    ("devpts", "/dev/pts", "gid=5,mode=620,ptmxmode=666"),
    ("tmpfs", "/dev/shm", "mode=1777"),
    ("tmpfs", "/run", "mode=755"),
    ("tmpfs", "/tmp", "mode=1777"),
    ("cgroup2", "/sys/fs/cgroup", ""),
];

/// Mounts them all. One that the kernel does not have is left out.
pub(crate) fn mount_usual() {
    for (kind, place, options) in MOUNTS {
        // Where it cannot be made, mounting tells.
        let _ = fs::create_dir_all(place);
        let options =
            (!options.is_empty()).then(|| std::ffi::CString::new(options).unwrap_or_default());
        let mounted = mount(kind, place, kind, MountFlags::NOSUID, options.as_deref());
        match mounted {
            Ok(()) | Err(Errno::BUSY) => {}
            Err(error) => say(&format!("{place}: {error}")),
        }
    }
}
