//! Memory that is discarded and replaced while another thread has a file read into it and a third
//! one accesses it: nobody finds it missing, and it holds zeros or the file's content. A fourth
//! thread makes calls without a pause, so that the one that reads loses its core of the base often.

use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use nix::libc;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};
use nix::unistd::getppid;

use crate::lwk::{Named, ProbeError, call};

const PAGE: usize = 4096;
const SIZE: usize = 64 * PAGE;
/// Each byte of the file.
const CONTENT: u8 = 0xa5;
/// Replacements, and reads of the file meanwhile, that are enough.
const ROUNDS: u64 = 300;
const READS: u64 = 300;

/// The range that the threads share.
struct Range {
    /// Its first address.
    start: usize,
    /// Completed reads of the file into it.
    reads: AtomicU64,
    /// A thread has done enough, or failed.
    is_over: AtomicBool,
}

pub(crate) fn probe() -> Result<(), ProbeError> {
    let file = file().map_err(|error| ProbeError::Wrong(format!("its file: {error}")))?;
    let range = Range {
        start: map(None)?,
        reads: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    };
    let mut rounds = 0;
    thread::scope(|scope| {
        let reader = scope.spawn(|| range.repeat(|| range.read(&file)));
        let toucher = scope.spawn(|| range.repeat(|| range.touch()));
        let caller = scope.spawn(|| range.repeat(|| Ok(getppid().as_raw() >= 0)));
        let replaced = range.repeat(|| {
            rounds += 1;
            range.replace()?;
            Ok(rounds < ROUNDS || range.reads.load(Ordering::Relaxed) < READS)
        });
        let joined = |other: thread::ScopedJoinHandle<'_, _>| {
            other.join().unwrap_or(Err(ProbeError::Unknown))
        };
        [reader, toucher, caller]
            .map(joined)
            .into_iter()
            .fold(replaced, Result::and)
    })?;
    println!("{ROUNDS} replacements of memory in use");
    Ok(())
}

/// Makes a file without a name.
fn file() -> std::io::Result<File> {
    let path = std::env::temp_dir().join(format!("replaced-{}", std::process::id()));
    fs::write(&path, [CONTENT; SIZE])?;
    let file = File::open(&path);
    fs::remove_file(&path)?;
    file
}

/// Maps fresh memory for the range: where it is already, or anywhere.
fn map(start: Option<usize>) -> Result<usize, ProbeError> {
    let size = NonZeroUsize::new(SIZE).ok_or(ProbeError::Unknown)?;
    let address = start.and_then(NonZeroUsize::new);
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let mut flags = MapFlags::MAP_PRIVATE;
    flags.set(MapFlags::MAP_FIXED, address.is_some());
    // SAFETY: it replaces nothing but the range, in which no Rust value is.
    let mapped = unsafe { mmap_anonymous(address, size, protection, flags) };
    Ok(mapped.named("mmap")?.addr().get())
}

impl Range {
    /// Repeats an action while it wants to and no other thread has come to an end.
    fn repeat(
        &self,
        mut action: impl FnMut() -> Result<bool, ProbeError>,
    ) -> Result<(), ProbeError> {
        let mut goes_on = Ok(true);
        while matches!(goes_on, Ok(true)) && !self.is_over.load(Ordering::Relaxed) {
            goes_on = action();
        }
        self.is_over.store(true, Ordering::Relaxed);
        goes_on.map(drop)
    }

    /// Discards the content, then replaces the mapping.
    fn replace(&self) -> Result<(), ProbeError> {
        let start = std::ptr::without_provenance_mut(self.start);
        let start = std::ptr::NonNull::new(start).ok_or(ProbeError::Unknown)?;
        // SAFETY: no Rust value is there.
        unsafe { madvise(start, SIZE, MmapAdvise::MADV_DONTNEED) }.named("madvise")?;
        map(Some(self.start)).map(drop)
    }

    /// Reads the whole file into the range.
    fn read(&self, file: &File) -> Result<bool, ProbeError> {
        let arguments = [
            file.as_raw_fd() as u64,
            self.start as u64,
            SIZE as u64,
            0,
            0,
            0,
        ];
        // SAFETY: it writes to memory without Rust values.
        let read = unsafe { call(libc::SYS_pread64 as u64, arguments) }.named("pread")?;
        if read != SIZE as u64 {
            return Err(ProbeError::Wrong(format!("read {read} bytes of {SIZE}")));
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Looks at each page.
    fn touch(&self) -> Result<bool, ProbeError> {
        for at in (0..SIZE).step_by(PAGE) {
            let byte = std::ptr::with_exposed_provenance::<u8>(self.start + at);
            // SAFETY: memory is always mapped there.
            match unsafe { byte.read_volatile() } {
                0 | CONTENT => {}
                other => return Err(ProbeError::Wrong(format!("byte {at} is {other:#x}"))),
            }
        }
        Ok(true)
    }
}
