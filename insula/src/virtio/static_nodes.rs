//! Files in `/dev` by which the kernel loads the drivers of back ends.
//!
//! Most kernels have vhost as modules. The kernel loads one by itself when its device is opened,
//! whoever opens it; systemd makes the files for that at boot (`kmod-static-nodes.service`). Where
//! nobody has, a supervisor does, before it gives up the privilege to.
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

/// Makes those that are missing. If one cannot be made, whoever opens it is told.
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
