//! Values of `insula_files.h` as the Rust mirror has them.

use insula_abi::files::{CURRENT, NONE, SHARDS_MAX, operation};

use super::{Facts, values};

pub(crate) fn constants() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_FILE_NONE = NONE.cast_signed(),
        INSULA_FILE_CURRENT = CURRENT.cast_signed(),
        INSULA_FILE_SHARDS_MAX = SHARDS_MAX.cast_signed(),
    });
    facts
}

pub(crate) fn enumerators() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_FILE_OPEN = operation::OPEN,
        INSULA_FILE_RELEASE = operation::RELEASE,
        INSULA_FILE_READ = operation::READ,
        INSULA_FILE_WRITE = operation::WRITE,
        INSULA_FILE_SEEK = operation::SEEK,
        INSULA_FILE_STAT = operation::STAT,
        INSULA_FILE_STATX = operation::STATX,
        INSULA_FILE_ACCESS = operation::ACCESS,
        INSULA_FILE_MKDIR = operation::MKDIR,
        INSULA_FILE_UNLINK = operation::UNLINK,
        INSULA_FILE_RENAME = operation::RENAME,
        INSULA_FILE_LINK = operation::LINK,
        INSULA_FILE_SYMLINK = operation::SYMLINK,
        INSULA_FILE_READLINK = operation::READLINK,
        INSULA_FILE_CHMOD = operation::CHMOD,
        INSULA_FILE_CHOWN = operation::CHOWN,
        INSULA_FILE_UTIMES = operation::UTIMES,
        INSULA_FILE_TRUNCATE = operation::TRUNCATE,
        INSULA_FILE_ALLOCATE = operation::ALLOCATE,
        INSULA_FILE_SYNC = operation::SYNC,
        INSULA_FILE_READDIR = operation::READDIR,
        INSULA_FILE_STATFS = operation::STATFS,
        INSULA_FILE_FLAGS = operation::FLAGS,
        INSULA_FILE_SIZE = operation::SIZE,
        INSULA_FILE_MAP = operation::MAP,
        INSULA_FILE_UNMAP = operation::UNMAP,
        INSULA_FILE_MSYNC = operation::MSYNC,
    });
    facts
}
