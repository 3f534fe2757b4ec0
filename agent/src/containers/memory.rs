//! How much memory a container has that is copied when it is moved.

use std::fs;
use std::io;

use super::cgroup::Cgroup;

/// How the line of `/proc/PID/status` begins that has a process's anonymous memory, in KiB (proc_pid_status(5)).
const ANONYMOUS: &str = "RssAnon:";

/// The anonymous memory of its processes, in bytes: what several of them have in common, as after a `fork()`, more
/// than once.
pub(super) fn anonymous(cgroup: &Cgroup) -> io::Result<u64> {
    let processes = cgroup.processes()?.into_iter();
    // One may have ended meanwhile.
    let statuses = processes.flat_map(|pid| fs::read_to_string(format!("/proc/{pid}/status")));
    let kib: u64 = statuses.filter_map(|status| anonymous_kib(&status)).sum();
    Ok(kib << 10)
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
