//! Attributes of inodes, and the structures that programs get them in.

use nix::libc;
use zerocopy::{Immutable, IntoBytes};

use crate::files::system::{Inode, Statistics};

/// Bytes of a block.
pub(super) const BLOCK: u64 = 4096;
/// Bits of a mode without the type.
pub(super) const PERMISSIONS: u32 = 0o7777;

/// A time since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub ns: u32,
}

impl Time {
    /// The time now.
    #[must_use]
    pub fn now() -> Self {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let since = since.unwrap_or_default();
        Self {
            seconds: since.as_secs().cast_signed(),
            ns: since.subsec_nanos(),
        }
    }
}

/// What an inode is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileType {
    /// A regular file.
    #[default]
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
}

impl FileType {
    /// Returns it as the type's bits of a mode.
    pub(crate) fn mode(self) -> u32 {
        match self {
            Self::File => libc::S_IFREG,
            Self::Directory => libc::S_IFDIR,
            Self::Link => libc::S_IFLNK,
        }
    }

    /// Returns it as a `d_type` of getdents(2).
    pub(super) fn entry_type(self) -> u8 {
        match self {
            Self::File => libc::DT_REG,
            Self::Directory => libc::DT_DIR,
            Self::Link => libc::DT_LNK,
        }
    }
}

/// Attributes of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// What it is.
    pub kind: FileType,
    /// Permissions.
    pub permissions: u32,
    /// Number of its names.
    pub links: u32,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes that it has.
    pub sectors: u64,
    /// Last read.
    pub accessed: Time,
    /// Content last changed.
    pub modified: Time,
    /// Attributes last changed.
    pub changed: Time,
    /// Made.
    pub created: Time,
}

/// New values of attributes; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Permissions.
    pub permissions: Option<u32>,
    /// Owner.
    pub user: Option<u32>,
    /// Group.
    pub group: Option<u32>,
    /// Bytes of a file.
    pub size: Option<u64>,
    /// Last read.
    pub accessed: Option<Time>,
    /// Content last changed.
    pub modified: Option<Time>,
}

/// `struct stat` (arch/x86/include/uapi/asm/stat.h of Linux).
#[repr(C)]
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
pub(super) struct Stat {
    device: u64,
    inode: u64,
    links: u64,
    mode: u32,
    user: u32,
    group: u32,
    padding: u32,
    special_device: u64,
    size: u64,
    block_size: u64,
    sectors: u64,
    times: [[u64; 2]; 3],
    unused: [u64; 3],
}

/// Device number of what a server keeps: Linux gives such file systems one of major number 0, too.
const DEVICE: u64 = 0xfe;

impl Stat {
    pub(super) fn new(inode: Inode, of: &Attributes) -> Self {
        let time = |time: Time| [time.seconds.cast_unsigned(), time.ns.into()];
        Self {
            device: DEVICE,
            inode,
            links: of.links.into(),
            mode: of.kind.mode() | of.permissions,
            user: of.user,
            group: of.group,
            padding: 0,
            special_device: 0,
            size: of.size,
            block_size: BLOCK,
            sectors: of.sectors,
            times: [of.accessed, of.modified, of.changed].map(time),
            unused: [0; 3],
        }
    }
}

/// `struct statx_timestamp` (include/uapi/linux/stat.h of Linux).
#[repr(C)]
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
struct StatxTime {
    seconds: i64,
    ns: u32,
    reserved: u32,
}

/// `struct statx` (the same).
#[repr(C)]
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
pub(super) struct Statx {
    mask: u32,
    block_size: u32,
    attributes: u64,
    links: u32,
    user: u32,
    group: u32,
    mode: u16,
    spare: u16,
    inode: u64,
    size: u64,
    sectors: u64,
    attributes_mask: u64,
    accessed: StatxTime,
    created: StatxTime,
    changed: StatxTime,
    modified: StatxTime,
    special_device: [u32; 2],
    device: [u32; 2],
    more: [u64; 14],
}

impl Statx {
    pub(super) fn new(inode: Inode, of: &Attributes) -> Self {
        let time = |time: Time| StatxTime {
            seconds: time.seconds,
            ns: time.ns,
            reserved: 0,
        };
        Self {
            mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
            block_size: BLOCK as u32,
            attributes: 0,
            links: of.links,
            user: of.user,
            group: of.group,
            mode: (of.kind.mode() | of.permissions) as u16,
            spare: 0,
            inode,
            size: of.size,
            sectors: of.sectors,
            attributes_mask: 0,
            accessed: time(of.accessed),
            created: time(of.created),
            changed: time(of.changed),
            modified: time(of.modified),
            special_device: [0; 2],
            device: [0, DEVICE as u32],
            more: [0; 14],
        }
    }
}

/// `struct statfs` (include/uapi/asm-generic/statfs.h of Linux).
#[repr(C)]
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
pub(super) struct Statfs {
    kind: u64,
    block_size: u64,
    blocks: u64,
    free_blocks: u64,
    available_blocks: u64,
    inodes: u64,
    free_inodes: u64,
    id: [u32; 2],
    name_max: u64,
    fragment_size: u64,
    flags: u64,
    spare: [u64; 4],
}

/// Longest name, in bytes.
pub(super) const NAME_MAX: usize = 255;

impl Statfs {
    pub(super) fn new(of: &Statistics) -> Self {
        /// `TMPFS_MAGIC`: programs know what to expect of such a file system.
        const KIND: u64 = 0x0102_1994;
        Self {
            kind: KIND,
            block_size: BLOCK,
            blocks: of.blocks,
            free_blocks: of.free_blocks,
            available_blocks: of.free_blocks,
            inodes: of.inodes,
            free_inodes: of.free_inodes,
            id: [0; 2],
            name_max: NAME_MAX as u64,
            fragment_size: BLOCK,
            flags: 0,
            spare: [0; 4],
        }
    }
}

const _: () = {
    assert!(size_of::<Stat>() == size_of::<libc::stat>());
    assert!(size_of::<Statx>() == size_of::<libc::statx>());
    assert!(size_of::<Statfs>() == size_of::<libc::statfs>());
};
