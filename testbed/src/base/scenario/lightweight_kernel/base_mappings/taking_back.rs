//! The ways in which Linux' memory management takes back a program's pages, and how long each took.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;

use super::moved;
use super::sharing::{PAGES, Sharing};
use crate::base::{Context, Finding};
use crate::lwk::memory::answers::PAGE;

/// Memory is taken offline in one of so many rounds.
const OFFLINE_ROUNDS: u64 = 16;

/// A way to take pages back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    Compaction,
    WriteBack,
    PageOut,
    DropCaches,
    Offline,
}

impl Way {
    /// The way of a round: all in turn.
    pub(super) fn of_round(round: u64) -> Self {
        if round % OFFLINE_ROUNDS == OFFLINE_ROUNDS / 2 {
            return Self::Offline;
        }
        match round % 4 {
            0 => Self::Compaction,
            1 => Self::WriteBack,
            2 => Self::PageOut,
            _ => Self::DropCaches,
        }
    }

    /// Has Linux take back the program's pages.
    pub(super) fn take_back(self, round: u64, sharing: &Sharing) -> Result<(), Finding> {
        match self {
            Self::Compaction => fs::write("/proc/sys/vm/compact_memory", "1")?,
            Self::WriteBack => sharing.file.sync_all()?,
            Self::PageOut => page_out(sharing.program.id())?,
            Self::DropCaches => {
                sharing.file.sync_all()?;
                page_out(sharing.program.id())?;
                fs::write("/proc/sys/vm/drop_caches", "3")?;
            }
            Self::Offline => moved::offline_a_block(round / OFFLINE_ROUNDS)?,
        }
        Ok(())
    }

    fn name(self) -> &'static str {
        match self {
            Self::Compaction => "compaction",
            Self::WriteBack => "writing back",
            Self::PageOut => "paging out",
            Self::DropCaches => "dropping caches",
            Self::Offline => "taking a block of memory offline",
        }
    }
}

/// How long the base took, way by way.
#[derive(Debug, Default)]
pub(super) struct Durations(BTreeMap<Way, Vec<Duration>>);

impl Durations {
    pub(super) fn add(&mut self, way: Way, duration: Duration) {
        self.0.entry(way).or_default().push(duration);
    }

    /// Reports the median and the 99th percentile of each way as figures.
    pub(super) fn report(mut self, context: &Context, what: &str) -> Result<(), Finding> {
        for (way, durations) in &mut self.0 {
            durations.sort();
            for (percent, name) in [(50, "median"), (99, "99th percentile")] {
                let at = (durations.len() * percent / 100).min(durations.len() - 1);
                let name = format!("{what}: {}, {name} of {}", way.name(), durations.len());
                context.figure(&name, durations[at].as_secs_f64() * 1e3, "ms")?;
            }
        }
        Ok(())
    }
}

/// Reclaims what a process maps of the file.
pub(super) fn page_out(pid: u32) -> Result<(), Finding> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let line = maps.lines().find(|line| line.ends_with("/file"));
    let range = line.and_then(|line| line.split(' ').next()?.split_once('-'));
    let (start, _) = range.ok_or_else(|| Finding::new(format!("not mapped:\n{maps}")))?;
    let start = usize::from_str_radix(start, 16).unwrap_or_default();
    page_out_range(pid, start, PAGES * PAGE)
}

/// process_madvise(2) with `MADV_PAGEOUT`.
#[expect(unsafe_code, reason = "the C library has no function for it")]
fn page_out_range(pid: u32, start: usize, size: usize) -> Result<(), Finding> {
    let range = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(start),
        iov_len: size,
    };
    // SAFETY: it takes no pointers.
    let pidfd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the range outlives the call, and is of another process, whose pages keep their
    // content.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            pidfd,
            &raw const range,
            1,
            libc::MADV_PAGEOUT,
            0,
        )
    };
    // SAFETY: it was opened above, and nobody else has it.
    unsafe { libc::close(pidfd as i32) };
    Ok(Errno::result(done).map(drop)?)
}
