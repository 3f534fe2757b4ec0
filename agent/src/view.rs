//! What a container sees of its kernel, and what it does not (OCI runtime specification, `mounts` and `linux`).

use serde::{Deserialize, Serialize};

/// What a container sees of its kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// File systems that show the kernel or lie in memory, in the order in which they are mounted.
    pub mounts: Vec<KernelMount>,
    /// Device nodes beside those that every container has.
    pub devices: Vec<DeviceNode>,
    /// Names of parameters of the kernel (sysctl(8)), and their values.
    pub sysctls: Vec<(String, String)>,
    /// Paths at which nothing can be read.
    pub masked_paths: Vec<String>,
    /// Paths below which nothing can be written.
    pub read_only_paths: Vec<String>,
    /// What is mounted in its root on the base, in the order in which it is mounted.
    pub volumes: Vec<Volume>,
    /// How mounts in its root propagate: flags of mount(2), none for not at all.
    pub propagation: u32,
}

/// A file system to mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelMount {
    /// Its type.
    pub kind: String,
    /// What it is called in the list of mounts.
    pub source: String,
    /// Its mount point, absolute.
    pub mount_point: String,
    /// Flags of mount(2).
    pub flags: u32,
    /// Other options, separated by commas.
    pub options: String,
}

/// A file or folder of a container's root that is a mount of its own. It is seen also below what the kernel shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Its path, absolute and without links.
    pub path: String,
    /// Flags of mount(2).
    pub flags: u32,
}

/// A device node, or a FIFO.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNode {
    /// Its path, absolute.
    pub path: String,
    /// Its type and permissions, as stat(2) has them.
    pub mode: u32,
    /// Its numbers.
    pub major: u32,
    /// The second of them.
    pub minor: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}
