//! Load for the base, so that it is not idle while nodes run.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::base::Finding;

/// stress-ng, which is ended when this is dropped.
pub(crate) struct Load {
    stress: Child,
    before: Usage,
}

/// Work of the base since it booted.
struct Usage {
    /// Busy time of all cores, in the kernel's ticks.
    busy: u64,
    /// Total time of all cores, in the kernel's ticks.
    total: u64,
    /// Sectors written to disks.
    written: u64,
}

/// Control group with half of one core, in periods of 20 ms.
const GROUP: &str = "/sys/fs/cgroup/load";
const SHARE: &str = "10000 20000";

impl Load {
    /// Keeps cores and a disk busy, with pauses: an emulator runs the machine's cores in turn, each
    /// until it waits, and nodes' cores must get their turns.
    pub(crate) fn start() -> Result<Self, Finding> {
        let before = Usage::now()?;
        make_group()?;
        let stress = Command::new("sh")
            .args([
                "-c",
                "echo $$ > \"$0/cgroup.procs\" && exec stress-ng \"$@\"",
                GROUP,
            ])
            .args(["--quiet", "--cpu", "1"])
            // Writes must reach the disk before the file is removed.
            .args(["--hdd", "1", "--hdd-bytes", "64M", "--hdd-opts", "dsync"])
            .args(["--temp-path", "/var/tmp"])
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { stress, before })
    }

    /// Fails unless the base has been busy since the start, on cores and on a disk.
    pub(crate) fn assert_busy(&self) -> Result<(), Finding> {
        let now = Usage::now()?;
        let (busy, total) = (now.busy - self.before.busy, now.total - self.before.total);
        let written = now.written - self.before.written;
        Finding::unless(8 * busy > total && written > 0, || {
            format!("the base was not under load: busy {busy} of {total} ticks, {written} sectors")
        })
    }
}

fn make_group() -> Result<(), Finding> {
    let root = Path::new(GROUP).parent().unwrap_or(Path::new("/"));
    let controllers = root.join("cgroup.subtree_control");
    if !controllers.exists() {
        let mount = ["-t", "cgroup2", "none"];
        let mounted = Command::new("mount").args(mount).arg(root).status()?;
        Finding::unless(mounted.success(), || {
            "no control groups can be mounted".into()
        })?;
    }
    fs::write(controllers, "+cpu")?;
    fs::create_dir_all(GROUP)?;
    Ok(fs::write(Path::new(GROUP).join("cpu.max"), SHARE)?)
}

impl Drop for Load {
    /// Sends SIGTERM, so that it removes its files.
    fn drop(&mut self) {
        let pid = i32::try_from(self.stress.id()).map(Pid::from_raw);
        if let Ok(pid) = pid {
            // It may have ended by itself.
            let _ = kill(pid, Signal::SIGTERM);
        }
        let _ = self.stress.wait();
        let _ = fs::remove_dir(GROUP);
    }
}

impl Usage {
    fn now() -> Result<Self, Finding> {
        let stat = fs::read_to_string("/proc/stat")?;
        let times = stat.lines().next().unwrap_or_default();
        let times: Vec<u64> = times
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let total: u64 = times.iter().sum();
        // The fourth is idle, the fifth is iowait (proc_stat(5)).
        let idle: u64 = times.iter().skip(3).take(2).sum();
        Ok(Self {
            busy: total - idle,
            total,
            written: sectors(9)?,
        })
    }
}

/// Sectors that all disks have read since the base booted.
pub(crate) fn sectors_read() -> Result<u64, Finding> {
    sectors(5)
}

/// Sum of a column of /proc/diskstats, counted from 0 (kernel:
/// Documentation/admin-guide/iostats.rst).
fn sectors(column: usize) -> Result<u64, Finding> {
    let table = fs::read_to_string("/proc/diskstats")?;
    let fields = table
        .lines()
        .filter_map(|line| line.split_whitespace().nth(column));
    Ok(fields.filter_map(|field| field.parse::<u64>().ok()).sum())
}
