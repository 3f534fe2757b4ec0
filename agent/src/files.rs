//! Mounting the standard file systems.

use std::fs;

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use crate::log::log;

/// Type, mount point and options, in order of dependency.
const MOUNTS: [(&str, &str, &str); 8] = [
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("devtmpfs", "/dev", "mode=755"),
    ("devpts", "/dev/pts", "gid=5,mode=620,ptmxmode=666"),
    ("tmpfs", SHM, "mode=1777"),
    ("tmpfs", "/run", "mode=755"),
    ("tmpfs", "/tmp", "mode=1777"),
    ("cgroup2", "/sys/fs/cgroup", ""),
];

/// Shared memory, which containers know by its own name.
const SHM: &str = "/dev/shm";

/// Mounts all of them; failures are logged.
pub(crate) fn mount_all() {
    for (kind, place, options) in MOUNTS {
        // If this fails, so does the mount.
        let _ = fs::create_dir_all(place);
        let options =
            (!options.is_empty()).then(|| std::ffi::CString::new(options).unwrap_or_default());
        let source = if place == SHM { "shm" } else { kind };
        let mounted = mount(source, place, kind, MountFlags::NOSUID, options.as_deref());
        match mounted {
            Ok(()) | Err(Errno::BUSY) => {}
            Err(error) => log(&format!("{place}: {error}")),
        }
    }
}
