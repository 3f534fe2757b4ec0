//! Calls, and what they return.

/// A call. Files are numbered in the order in which they were opened.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Path, access mode, and bits: create, exclusive, truncate, append.
    Open(String, u8, u8),
    Close(usize),
    Read(usize, usize),
    Write(usize, usize, u8),
    ReadAt(usize, i64, usize),
    WriteAt(usize, i64, usize, u8),
    Seek(usize, i64, i32),
    Truncate(usize, i64),
    /// Or punches a hole.
    Allocate(usize, i64, i64, bool),
    Mkdir(String),
    /// Or removes a directory.
    Unlink(String, bool),
    /// Whether the new name must be free.
    Rename(String, String, bool),
    /// Whether a symbolic link at the end of the first path is followed.
    Link(String, String, bool),
    Symlink(String, String),
    ReadLink(String),
    /// Whether a symbolic link at the end is followed.
    Stat(String, bool),
    Chmod(String, u32),
    Touch(String, i64),
    List(String),
    /// All bytes of a file.
    Content(String),
    Sync(usize),
}

/// What a call returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Value(i64),
    Error(i32),
    Bytes(Vec<u8>),
    Names(Vec<String>),
    /// Mode; of what is no directory links, and of a file the size.
    Status(u32, u64, u64),
}

pub(crate) trait Calls {
    fn play(&mut self, step: &Step) -> Outcome;
}

/// Returns the flags of open(2) for the bits of a step.
pub(crate) fn open_flags(mode: u8, bits: u8) -> i32 {
    use nix::libc::{O_APPEND, O_CREAT, O_EXCL, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY};
    let access = [O_RDONLY, O_WRONLY, O_RDWR, O_RDWR][usize::from(mode) % 4];
    let more = [O_CREAT, O_EXCL, O_TRUNC, O_APPEND];
    let chosen = more
        .iter()
        .enumerate()
        .filter(|(at, _)| bits >> at & 1 != 0);
    let flags = chosen.fold(access, |flags, (_, flag)| flags | flag);
    // Alone it is undefined.
    match flags & O_CREAT {
        0 => flags & !O_EXCL,
        _ => flags,
    }
}

/// Returns a status: what file systems agree on.
pub(crate) fn status(mode: u32, links: u64, size: u64) -> Outcome {
    use nix::libc::{S_IFDIR, S_IFMT};
    match mode & S_IFMT {
        S_IFDIR => Outcome::Status(mode, links, 0),
        _ => Outcome::Status(mode, links, size),
    }
}
