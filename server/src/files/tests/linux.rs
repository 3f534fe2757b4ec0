//! Calls on this computer's own file system.

#![allow(unsafe_code, reason = "system calls are made as programs make them")]

use std::ffi::CString;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::libc;

use super::calls::{Calls, Outcome, Step, open_flags};

pub(crate) struct Linux {
    root: std::fs::File,
    files: Vec<i32>,
    _folder: tempfile::TempDir,
}

impl Linux {
    pub(crate) fn new() -> Self {
        // Of this process alone; times and modes are as tmpfs has them.
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        Self {
            root: std::fs::File::open(folder.path()).unwrap(),
            files: Vec::new(),
            _folder: folder,
        }
    }

    fn file(&self, at: usize) -> i32 {
        self.files.get(at).copied().unwrap_or(-1)
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        for file in self.files.iter().filter(|file| **file >= 0) {
            // SAFETY: it is this one's own.
            unsafe { libc::close(*file) };
        }
    }
}

fn text(path: &str) -> CString {
    CString::new(path).unwrap()
}

fn outcome(result: i64) -> Outcome {
    match Errno::result(result) {
        Ok(value) => Outcome::Value(value),
        Err(error) => Outcome::Error(error as i32),
    }
}

fn bytes(result: isize, mut buffer: Vec<u8>) -> Outcome {
    match usize::try_from(result) {
        Ok(length) => {
            buffer.truncate(length);
            Outcome::Bytes(buffer)
        }
        Err(_) => outcome(result as i64),
    }
}

impl Calls for Linux {
    fn play(&mut self, step: &Step) -> Outcome {
        let root = self.root.as_raw_fd();
        let file = |at: &usize| self.file(*at);
        // SAFETY: paths end in a NUL; buffers are as long as is said, and outlive the calls.
        unsafe {
            match step {
                Step::Open(path, mode, bits) => {
                    let flags = open_flags(*mode, *bits) | libc::O_CLOEXEC;
                    let opened = libc::openat(root, text(path).as_ptr(), flags, 0o640);
                    let result = outcome(opened.into());
                    if opened >= 0 {
                        self.files.push(opened);
                        return Outcome::Value(0);
                    }
                    result
                }
                Step::Close(at) => {
                    let result = outcome(libc::close(file(at)).into());
                    if let Some(file) = self.files.get_mut(*at) {
                        *file = -1;
                    }
                    result
                }
                Step::Read(at, size) => {
                    let mut buffer = vec![0; *size];
                    let result = libc::read(file(at), buffer.as_mut_ptr().cast(), *size);
                    bytes(result, buffer)
                }
                Step::ReadAt(at, offset, size) => {
                    let mut buffer = vec![0; *size];
                    let result = libc::pread(file(at), buffer.as_mut_ptr().cast(), *size, *offset);
                    bytes(result, buffer)
                }
                Step::Write(at, size, byte) => {
                    let buffer = vec![*byte; *size];
                    outcome(libc::write(file(at), buffer.as_ptr().cast(), *size) as i64)
                }
                Step::WriteAt(at, offset, size, byte) => {
                    let buffer = vec![*byte; *size];
                    let result = libc::pwrite(file(at), buffer.as_ptr().cast(), *size, *offset);
                    outcome(result as i64)
                }
                // Where a directory's end is, is its file system's own matter.
                Step::Seek(at, ..) if is_directory(file(at)) => outcome(0),
                Step::Seek(at, offset, whence) => {
                    outcome(libc::lseek(file(at), *offset, *whence % 3))
                }
                Step::Truncate(at, size) => outcome(libc::ftruncate(file(at), *size).into()),
                Step::Allocate(at, offset, size, punches) => {
                    let mode = match punches {
                        true => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                        false => 0,
                    };
                    outcome(libc::fallocate(file(at), mode, *offset, *size).into())
                }
                Step::Mkdir(path) => {
                    outcome(libc::mkdirat(root, text(path).as_ptr(), 0o750).into())
                }
                Step::Unlink(path, directory) => {
                    let flags = if *directory { libc::AT_REMOVEDIR } else { 0 };
                    outcome(libc::unlinkat(root, text(path).as_ptr(), flags).into())
                }
                Step::Rename(from, to, new) => {
                    let flags = if *new { libc::RENAME_NOREPLACE } else { 0 };
                    let (from, to) = (text(from), text(to));
                    let result = libc::renameat2(root, from.as_ptr(), root, to.as_ptr(), flags);
                    outcome(result.into())
                }
                Step::Link(from, to, follows) => {
                    let flags = if *follows { libc::AT_SYMLINK_FOLLOW } else { 0 };
                    let (from, to) = (text(from), text(to));
                    outcome(libc::linkat(root, from.as_ptr(), root, to.as_ptr(), flags).into())
                }
                Step::Symlink(target, path) => {
                    let (target, path) = (text(target), text(path));
                    outcome(libc::symlinkat(target.as_ptr(), root, path.as_ptr()).into())
                }
                Step::ReadLink(path) => {
                    let mut buffer = vec![0; 100];
                    let to = buffer.as_mut_ptr().cast();
                    let result = libc::readlinkat(root, text(path).as_ptr(), to, 100);
                    bytes(result, buffer)
                }
                Step::Stat(path, follows) => {
                    let mut status: libc::stat = std::mem::zeroed();
                    let flags = if *follows {
                        0
                    } else {
                        libc::AT_SYMLINK_NOFOLLOW
                    };
                    let path = text(path);
                    match libc::fstatat(root, path.as_ptr(), &raw mut status, flags) {
                        0 => super::calls::status(
                            status.st_mode,
                            status.st_nlink,
                            status.st_size as u64,
                        ),
                        error => outcome(error.into()),
                    }
                }
                Step::Chmod(path, mode) => {
                    outcome(libc::fchmodat(root, text(path).as_ptr(), *mode, 0).into())
                }
                Step::Touch(path, at) => {
                    let time = libc::timespec {
                        tv_sec: *at,
                        tv_nsec: 0,
                    };
                    let times = [time, time];
                    outcome(libc::utimensat(root, text(path).as_ptr(), times.as_ptr(), 0).into())
                }
                Step::List(path) => self.list(path),
                Step::Content(path) => self.content(path),
                Step::Sync(at) => outcome(libc::fsync(file(at)).into()),
            }
        }
    }
}

fn is_directory(file: i32) -> bool {
    // SAFETY: all bits of it may be 0, and it is written as a whole.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        libc::fstat(file, &raw mut status) == 0 && status.st_mode & libc::S_IFMT == libc::S_IFDIR
    }
}

impl Linux {
    fn list(&self, path: &str) -> Outcome {
        let flags = nix::fcntl::OFlag::O_RDONLY | nix::fcntl::OFlag::O_DIRECTORY;
        let mode = nix::sys::stat::Mode::empty();
        match nix::dir::Dir::openat(&self.root, path, flags, mode) {
            Err(error) => Outcome::Error(error as i32),
            Ok(mut directory) => {
                let names = directory
                    .iter()
                    .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
                let mut names: Vec<String> = names.collect();
                names.sort();
                Outcome::Names(names)
            }
        }
    }

    fn content(&self, path: &str) -> Outcome {
        let flags = nix::fcntl::OFlag::O_RDONLY | nix::fcntl::OFlag::O_NOFOLLOW;
        let mode = nix::sys::stat::Mode::empty();
        let opened = nix::fcntl::openat(&self.root, path, flags, mode);
        let mut bytes = Vec::new();
        let read = opened.map(std::fs::File::from).map(|mut file| {
            std::io::Read::read_to_end(&mut file, &mut bytes)
                .map_err(|error| error.raw_os_error().unwrap_or(0))
        });
        match read {
            Ok(Ok(_)) => Outcome::Bytes(bytes),
            Ok(Err(error)) => Outcome::Error(error),
            Err(error) => Outcome::Error(error as i32),
        }
    }
}
