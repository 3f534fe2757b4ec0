//! Measurements of the running kernel from within a program, by the time stamp counter: system
//! calls that do nothing, reads of a file, and starts of a program. And work between marks, for the emulator to count.

#![allow(
    unsafe_code,
    reason = "memory is mapped ahead by its address, and fork() is forced"
)]

use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::ptr::NonNull;

use insula_driver::tsc;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::mman::{MmapAdvise, madvise};

use crate::blocks::{self, Blocks};
use crate::marks::Kind;

/// Calls in a round, and earlier ones that are not counted.
const CALLS: usize = 2000;
const WARM: usize = 200;
/// Bytes read in a round, at least, and largest number of reads.
const READ: usize = 4 << 20;
const READS: usize = 200;
/// Size of the memory for reads: so large that any allocator takes it untouched from the kernel.
const ROOM: usize = 64 << 20;
/// Size of the buffer for copies.
const PIECE: usize = 64 << 10;
/// Size of a read when a file is read as a whole.
const THROUGH_PIECE: usize = 1 << 20;

/// Turns of the computation between marks: about 10^9 instructions, and ten times as many where a
/// kernel hardly ever interrupts.
const SPINS: u64 = 100_000_000;
const LONG_SPINS: u64 = 1_000_000_000;
/// Size of a read between marks, and number of earlier reads.
const MARKED_READ: usize = 1 << 20;
const WARM_READS: usize = 3;
/// Starts of a program in a round, and earlier ones, also between marks.
const STARTS: usize = 30;
const WARM_STARTS: usize = 3;

/// Durations of a round, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    /// Median.
    pub median: u64,
    /// 99th percentile.
    pub p99: u64,
}

impl Ticks {
    /// A single duration.
    #[must_use]
    pub fn once(ticks: u64) -> Self {
        Self::of(vec![ticks])
    }

    pub(crate) fn of(mut all: Vec<u64>) -> Self {
        all.sort_unstable();
        let at = |index: usize| all.get(index).copied().unwrap_or_default();
        Self {
            median: at(all.len() / 2),
            p99: at(all.len() * 99 / 100),
        }
    }
}

/// A system call that does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A call that each kernel executes itself.
    Getpid,
    /// A call about a descriptor, which the kernel with the files must execute.
    Fcntl,
}

impl Call {
    /// The call of that name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "getpid" => Some(Self::Getpid),
            "fcntl" => Some(Self::Fcntl),
            _ => None,
        }
    }
}

/// Makes the call again and again.
///
/// # Errors
/// The call's error.
pub fn call(which: Call) -> io::Result<Ticks> {
    let input = io::stdin();
    let make = || match which {
        Call::Getpid => {
            black_box(nix::unistd::getpid());
            Ok(())
        }
        Call::Fcntl => fcntl(&input, FcntlArg::F_GETFD).map(drop),
    };
    (0..WARM).try_for_each(|_| make())?;
    let mut all = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let began = tsc();
        make()?;
        all.push(tsc() - began);
    }
    Ok(Ticks::of(all))
}

/// Starts a program again and again, by fork(2) and execve(2), and waits for its end.
///
/// # Errors
/// When it cannot be started.
pub fn starts(program: &str) -> io::Result<Ticks> {
    let mut all = Vec::with_capacity(STARTS);
    for round in 0..WARM_STARTS + STARTS {
        let mut command = Command::new(program);
        // SAFETY: it does nothing. With it the standard library does not choose vfork(2).
        unsafe { command.pre_exec(|| Ok(())) };
        let began = tsc();
        command.status()?;
        if round >= WARM_STARTS {
            all.push(tsc() - began);
        }
    }
    Ok(Ticks::of(all))
}

/// Reads a file once, from its start to its end: both figures are the duration.
///
/// # Errors
/// When it cannot be read.
pub fn through(path: &Path) -> io::Result<Ticks> {
    let mut file = File::open(path)?;
    let mut piece = vec![0; THROUGH_PIECE];
    let began = tsc();
    while file.read(&mut piece)? > 0 {}
    Ok(Ticks::once(tsc() - began))
}

/// Does the work to be counted, between its marks; both figures are the duration. The same call, or
/// read of the file's first MiB, has been made before, to warm up.
///
/// # Errors
/// When the file cannot be read, or is shorter.
pub fn marked(kind: Kind, path: &Path) -> io::Result<Ticks> {
    match kind {
        Kind::SpinPlain | Kind::SpinIsolated | Kind::SpinLwk => {
            let turns = match kind {
                Kind::SpinPlain => SPINS,
                _ => LONG_SPINS,
            };
            between(kind, || {
                black_box(spin(black_box(turns)));
                Ok(())
            })
        }
        Kind::CallPlain | Kind::CallLwk => {
            let input = io::stdin();
            let make = || fcntl(&input, FcntlArg::F_GETFD).map(drop);
            (0..WARM).try_for_each(|_| make())?;
            between(kind, || Ok(make()?))
        }
        Kind::OwnPlain | Kind::OwnLwk => {
            (0..WARM).for_each(|_| {
                black_box(nix::unistd::getpid());
            });
            between(kind, || {
                black_box(nix::unistd::getpid());
                Ok(())
            })
        }
        Kind::StartPlain | Kind::StartLwk => {
            let start = || Command::new(path).status().map(drop);
            (0..WARM_STARTS).try_for_each(|_| start())?;
            between(kind, start)
        }
        Kind::BlockReads | Kind::BlockMix => {
            let updates = kind == Kind::BlockMix;
            let mut blocks = Blocks::open(path, updates)?;
            between(kind, || {
                (0..blocks::COUNT).try_for_each(|_| blocks.access())
            })
        }
        Kind::NodeLwk
        | Kind::NodeLinux
        | Kind::InterruptNative
        | Kind::InterruptShared
        | Kind::InterruptNmi
        | Kind::InterruptMonitor => Err(io::ErrorKind::Unsupported.into()),
        Kind::ReadPlain | Kind::ReadLwk => {
            let mut file = File::open(path)?;
            let mut room = vec![0; MARKED_READ];
            for _ in 0..WARM_READS {
                file.read_exact(&mut room)?;
                file.rewind()?;
            }
            between(kind, || file.read_exact(&mut room))
        }
    }
}

fn between(kind: Kind, act: impl FnOnce() -> io::Result<()>) -> io::Result<Ticks> {
    let began = tsc();
    kind.begin();
    let done = act();
    kind.end();
    done.map(|()| Ticks::once(tsc() - began))
}

/// Computes without system calls: some ten instructions a turn.
pub(crate) fn spin(turns: u64) -> u64 {
    (0..turns).fold(1, |state: u64, turn| {
        let state = state ^ (state << 13);
        let state = state ^ (state >> 7);
        (state ^ (state << 17)).wrapping_add(turn)
    })
}

/// Destination of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Untouched memory.
    Fresh,
    /// Untouched memory that the program has had mapped ahead of the read.
    Ahead,
    /// Memory that was read into before.
    Reused,
    /// A small buffer that was read into before, from which the program copies, piece by piece, to
    /// memory that was used before.
    Copied,
}

impl Way {
    /// The destination of that name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "fresh" => Some(Self::Fresh),
            "ahead" => Some(Self::Ahead),
            "reused" => Some(Self::Reused),
            "copied" => Some(Self::Copied),
            _ => None,
        }
    }
}

/// Reads the file's first `size` bytes, at most 64 MiB, again and again.
///
/// # Errors
/// When the file cannot be read, or is shorter.
pub fn read(path: &Path, size: usize, way: Way) -> io::Result<Ticks> {
    let mut file = File::open(path)?;
    let size = size.min(ROOM);
    let mut room = vec![0; ROOM];
    let mut piece = vec![0; PIECE];
    let mut once = |room: &mut [u8]| -> io::Result<u64> {
        file.rewind()?;
        let began = tsc();
        match way {
            Way::Fresh | Way::Ahead | Way::Reused => file.read_exact(&mut room[..size])?,
            Way::Copied => {
                for to in room[..size].chunks_mut(PIECE) {
                    let from = &mut piece[..to.len()];
                    file.read_exact(from)?;
                    to.copy_from_slice(from);
                }
            }
        }
        Ok(tsc() - began)
    };
    once(&mut room)?;
    let mut all = Vec::new();
    for _ in 0..(READ / size.max(1)).clamp(1, READS) {
        if matches!(way, Way::Fresh | Way::Ahead) {
            drop(room);
            room = vec![0; ROOM];
        }
        if way == Way::Ahead {
            map_ahead(&mut room[..size])?;
        }
        all.push(once(&mut room)?);
    }
    Ok(Ticks::of(all))
}

/// Has the kernel map memory that will be written: on a node of the lightweight kernel in the
/// proxy, too.
fn map_ahead(room: &mut [u8]) -> io::Result<()> {
    const PAGE: usize = 4096;
    let start = room.as_mut_ptr();
    let before = start.addr() % PAGE;
    let size = (before + room.len()).next_multiple_of(PAGE);
    let first = NonNull::new(start.wrapping_byte_sub(before)).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: pages that contain the memory, whose content stays.
    unsafe { madvise(first.cast(), size, MmapAdvise::MADV_POPULATE_WRITE) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_reads_take_time() {
        for which in [Call::Getpid, Call::Fcntl] {
            let ticks = call(which).unwrap();
            assert!(0 < ticks.median && ticks.median <= ticks.p99, "{ticks:?}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(100_000).unwrap();
        for way in [Way::Fresh, Way::Ahead, Way::Reused, Way::Copied] {
            assert!(read(file.path(), 100_000, way).unwrap().median > 0);
        }
        assert!(read(file.path(), 100_001, Way::Reused).is_err());
    }

    #[test]
    fn ticks_of_a_hundred() {
        let ticks = Ticks::of((1..=100).rev().collect());
        assert_eq!((ticks.median, ticks.p99), (51, 100));
    }
}
