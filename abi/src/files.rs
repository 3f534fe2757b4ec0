//! Mirror of `include/insula_files.h`: what a lightweight kernel asks a file server.

/// `INSULA_FILE_NONE`: no handle.
pub const NONE: u64 = u64::MAX;
/// `INSULA_FILE_CURRENT`: the offset of the description.
pub const CURRENT: u64 = u64::MAX;
/// `INSULA_FILE_SHARDS_MAX`: the highest number of a shard.
pub const SHARDS_MAX: u64 = 64;

/// `enum insula_file_operation`. Words and results are in the header.
pub mod operation {
    /// `INSULA_FILE_OPEN`.
    pub const OPEN: u32 = 1;
    /// `INSULA_FILE_RELEASE`.
    pub const RELEASE: u32 = 2;
    /// `INSULA_FILE_READ`.
    pub const READ: u32 = 3;
    /// `INSULA_FILE_WRITE`.
    pub const WRITE: u32 = 4;
    /// `INSULA_FILE_SEEK`.
    pub const SEEK: u32 = 5;
    /// `INSULA_FILE_STAT`.
    pub const STAT: u32 = 6;
    /// `INSULA_FILE_STATX`.
    pub const STATX: u32 = 7;
    /// `INSULA_FILE_ACCESS`.
    pub const ACCESS: u32 = 8;
    /// `INSULA_FILE_MKDIR`.
    pub const MKDIR: u32 = 9;
    /// `INSULA_FILE_UNLINK`.
    pub const UNLINK: u32 = 10;
    /// `INSULA_FILE_RENAME`.
    pub const RENAME: u32 = 11;
    /// `INSULA_FILE_LINK`.
    pub const LINK: u32 = 12;
    /// `INSULA_FILE_SYMLINK`.
    pub const SYMLINK: u32 = 13;
    /// `INSULA_FILE_READLINK`.
    pub const READLINK: u32 = 14;
    /// `INSULA_FILE_CHMOD`.
    pub const CHMOD: u32 = 15;
    /// `INSULA_FILE_CHOWN`.
    pub const CHOWN: u32 = 16;
    /// `INSULA_FILE_UTIMES`.
    pub const UTIMES: u32 = 17;
    /// `INSULA_FILE_TRUNCATE`.
    pub const TRUNCATE: u32 = 18;
    /// `INSULA_FILE_ALLOCATE`.
    pub const ALLOCATE: u32 = 19;
    /// `INSULA_FILE_SYNC`.
    pub const SYNC: u32 = 20;
    /// `INSULA_FILE_READDIR`.
    pub const READDIR: u32 = 21;
    /// `INSULA_FILE_STATFS`.
    pub const STATFS: u32 = 22;
    /// `INSULA_FILE_FLAGS`.
    pub const FLAGS: u32 = 23;
    /// `INSULA_FILE_SIZE`.
    pub const SIZE: u32 = 24;
    /// `INSULA_FILE_MAP`.
    pub const MAP: u32 = 25;
    /// `INSULA_FILE_UNMAP`.
    pub const UNMAP: u32 = 26;
    /// `INSULA_FILE_MSYNC`.
    pub const MSYNC: u32 = 27;
}
