//! Device files by which the kernel loads the drivers of backends.
//!
//! Most kernels have vhost as modules, and load one when its device file is opened. systemd makes
//! these files at boot (`kmod-static-nodes.service`). Where they are missing, a supervisor makes
//! them before it drops the privilege to.
//!
//! Source: `MODULE_ALIAS_MISCDEV` in `drivers/vhost/`, `drivers/net/tun.c` and
//! `include/linux/miscdevice.h` of the kernel.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};

/// Major number of "miscellaneous" devices.
const MISC: u64 = 10;
/// Path and minor number.
const NODES: &[(&str, u64)] = &[
    ("/dev/net/tun", 200),
    ("/dev/vhost-net", 238),
    ("/dev/vhost-vsock", 241),
];

/// Makes the missing files. A failure shows when the file is opened.
pub fn make_static_nodes() {
    let missing = NODES.iter().map(|(path, minor)| (Path::new(path), minor));
    for (path, minor) in missing.filter(|(path, _)| !path.exists()) {
        if let Some(folder) = path.parent() {
            let _ = DirBuilder::new().recursive(true).mode(0o755).create(folder);
        }
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let _ = mknod(path, SFlag::S_IFCHR, mode, makedev(MISC, *minor));
    }
}
