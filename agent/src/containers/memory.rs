//! How much memory a container has that is copied when it is moved.

use std::fs::{self, File};
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;

use super::cgroup::Cgroup;

/// How the line of `/proc/PID/status` begins that has a process's anonymous memory, in KiB (proc_pid_status(5)).
const ANONYMOUS: &str = "RssAnon:";

/// A page's entry of `/proc/PID/pagemap`, and its bit for a page that was written
/// (kernel: Documentation/admin-guide/mm/soft-dirty.rst).
const ENTRY: usize = 8;
const SOFT_DIRTY: u64 = 1 << 55;

/// The anonymous memory of its processes that can be copied before, in bytes: what several of them have in common, as
/// after a `fork()`, more than once; none if this kernel does not note what is written.
pub(super) fn anonymous(cgroup: &Cgroup) -> io::Result<u64> {
    if !notes_writes().unwrap_or(false) {
        return Ok(0);
    }
    let processes = cgroup.processes()?.into_iter();
    // One may have ended meanwhile.
    let statuses = processes.flat_map(|pid| fs::read_to_string(format!("/proc/{pid}/status")));
    let kib: u64 = statuses.filter_map(|status| anonymous_kib(&status)).sum();
    Ok(kib << 10)
}

/// Whether the kernel notes which pages are written: then it has of a new one.
fn notes_writes() -> io::Result<bool> {
    let page_size = rustix::param::page_size();
    let written = black_box(vec![1_u8; page_size]);
    let mut entry = [0; ENTRY];
    let at = written.as_ptr().addr() / page_size * ENTRY;
    File::open("/proc/self/pagemap")?.read_exact_at(&mut entry, at as u64)?;
    Ok(u64::from_le_bytes(entry) & SOFT_DIRTY != 0)
}

fn anonymous_kib(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(ANONYMOUS))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_notes_can_be_asked() {
        notes_writes().unwrap();
    }

    #[test]
    fn a_process_has_anonymous_memory() {
        let own = fs::read_to_string("/proc/self/status").unwrap();
        assert!(anonymous_kib(&own).unwrap() > 0);
        assert_eq!(
            anonymous_kib("Name:\tx\nRssAnon:\t    1234 kB\n"),
            Some(1234)
        );
        // A kernel thread has none.
        assert_eq!(anonymous_kib("Name:\tkthreadd\n"), None);
    }
}
