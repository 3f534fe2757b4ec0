//! Memory at fixed addresses, whose pages have numbers in them, and files to fill it from.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;

use super::{CONTENT, MIB, PAGE};
use crate::lwk::{Named, ProbeError, call};

/// A file of [`CONTENT`] on a disk, without a name.
pub(super) struct Files {
    pub(super) buffered: File,
    /// The same, past the page cache.
    pub(super) direct: File,
}

impl Files {
    const SIZE: u64 = 4 * MIB;

    pub(super) fn make() -> std::io::Result<Self> {
        let path = format!("/var/tmp/forked-{}", std::process::id());
        fs::write(&path, CONTENT.to_ne_bytes().repeat(Self::SIZE as usize / 8))?;
        let open = |flags| {
            let mut options = File::options();
            options
                .read(true)
                .write(true)
                .custom_flags(flags)
                .open(&path)
        };
        let files = Self {
            buffered: open(0)?,
            direct: open(libc::O_DIRECT)?,
        };
        fs::remove_file(&path)?;
        Ok(files)
    }
}

/// Pages at a fixed address. Not unmapped when dropped: processes differ in what they have there.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) start: u64,
    pub(super) size: u64,
}

impl Memory {
    pub(super) fn map(start: u64, size: u64) -> Result<Self, ProbeError> {
        Self::map_with(start, size, libc::MAP_ANONYMOUS, u64::MAX)
    }

    /// Private pages of a file.
    pub(super) fn of_file(start: u64, size: u64, file: &File) -> Result<Self, ProbeError> {
        Self::map_with(start, size, 0, file.as_raw_fd() as u64)
    }

    fn map_with(start: u64, size: u64, flags: i32, file: u64) -> Result<Self, ProbeError> {
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (flags | libc::MAP_PRIVATE | libc::MAP_FIXED) as u64;
        let arguments = [start, size, protection, flags, file, 0];
        // SAFETY: it replaces nothing but such memory, in which no Rust value is.
        unsafe { call(libc::SYS_mmap as u64, arguments) }.named("mmap")?;
        Ok(Self { start, size })
    }

    pub(super) fn unmap(self) -> Result<(), ProbeError> {
        self.change("munmap", libc::SYS_munmap, 0)
    }

    pub(super) fn part(self, from: u64, size: u64) -> Self {
        Self {
            start: self.start + from,
            size,
        }
    }

    /// Makes a call whose first arguments are its address and size.
    pub(super) fn change(
        self,
        what: &'static str,
        number: i64,
        argument: u64,
    ) -> Result<(), ProbeError> {
        let arguments = [self.start, self.size, argument, 0, 0, 0];
        // SAFETY: no Rust value is there.
        unsafe { call(number as u64, arguments) }
            .named(what)
            .map(drop)
    }

    pub(super) fn word(self, page: u64) -> &'static AtomicU64 {
        self.word_at(page * PAGE)
    }

    pub(super) fn second_word(self, page: u64) -> &'static AtomicU64 {
        self.word_at(page * PAGE + 8)
    }

    fn word_at(self, offset: u64) -> &'static AtomicU64 {
        let word = std::ptr::with_exposed_provenance((self.start + offset) as usize);
        // SAFETY: the caller has mapped it, and it is accessed as an atomic only.
        unsafe { &*word }
    }

    pub(super) fn pages(self) -> std::ops::Range<u64> {
        0..self.size / PAGE
    }

    /// Writes the first word of each page for which `tag` returns one.
    pub(super) fn write(self, tag: impl Fn(u64) -> Option<u64>) {
        for page in self.pages() {
            if let Some(tag) = tag(page) {
                self.word(page).store(tag ^ page, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn fill(self, tag: u64) {
        self.write(|_| Some(tag));
    }

    /// Whether the first word of each page is what [`Self::write`] has written.
    pub(super) fn holds(self, who: &str, tag: impl Fn(u64) -> u64) -> Result<(), ProbeError> {
        let is = |page| self.word(page).load(Ordering::Relaxed) == tag(page) ^ page;
        match self.pages().find(|&page| !is(page)) {
            None => Ok(()),
            Some(page) => Err(ProbeError::Wrong(format!(
                "{who}: page {page} has {:#x}",
                self.word(page).load(Ordering::Relaxed) ^ page
            ))),
        }
    }

    /// Whether each page begins with a word.
    pub(super) fn is_filled(self, who: &str, word: u64) -> Result<(), ProbeError> {
        self.holds(who, |page| word ^ page)
    }

    /// Reads a file into it, or writes it to the file.
    pub(super) fn transfer(self, number: i64, file: &File) -> Result<(), ProbeError> {
        let arguments = [file.as_raw_fd() as u64, self.start, self.size, 0, 0, 0];
        // SAFETY: it accesses memory without Rust values.
        let done = unsafe { call(number as u64, arguments) }.named("reading or writing a file")?;
        let wrong = || ProbeError::Wrong(format!("{done} bytes of {}", self.size));
        (done == self.size).then_some(()).ok_or_else(wrong)
    }
}
