//! A container's control group (kernel: Documentation/admin-guide/cgroup-v2.rst), by which all its
//! processes are found.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use insula_agent::pod::{Share, UNLIMITED};
use rustix::process::{Pid, Signal, kill_process};

/// The group of all groups.
const ROOT: &str = "/sys/fs/cgroup";
/// Parent of the groups of all containers.
const ALL: &str = "/sys/fs/cgroup/insula";
/// Time that processes have to be gone, or to stand still, and the interval at which that is polled.
const GONE_TIMEOUT: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(5);

/// No limit, as the kernel reads it: what is where no controller limits anything.
const NO_LIMIT: &str = "max";

/// Role of this program: to execute another in a container's control group. The container's name and
/// the words follow.
pub(crate) const JOIN: &str = "join";

/// Executes a program in a container's control group.
pub(crate) fn join(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let mut next = || words.next().unwrap_or_default();
    let (name, program) = (next(), next());
    let joined = Cgroup::of(&name.to_string_lossy()).join();
    let error = match joined {
        Ok(()) => Command::new(program).args(words).exec(),
        Err(error) => error,
    };
    eprintln!("insula: {error}");
    ExitCode::FAILURE
}

/// Removes the parent of all groups, if there are none.
pub(crate) fn remove_parent() {
    let _ = fs::remove_dir(ALL);
}

/// Has the groups of containers limit what a controller does.
fn enable(controller: &str) -> io::Result<()> {
    for parent in [ROOT, ALL] {
        fs::write(
            Path::new(parent).join("cgroup.subtree_control"),
            format!("+{controller}"),
        )?;
    }
    Ok(())
}

/// A limit as the kernel reads it.
fn in_words(limit: u64) -> String {
    match limit {
        UNLIMITED => NO_LIMIT.to_owned(),
        limit => limit.to_string(),
    }
}

/// The control group of a container.
#[derive(Clone, Debug)]
pub(super) struct Cgroup(PathBuf);

impl Cgroup {
    /// That of the container with this name, which need not exist.
    pub(super) fn of(name: &str) -> Self {
        Self(Path::new(ALL).join(name))
    }

    /// Creates it.
    pub(super) fn create(&self) -> io::Result<()> {
        fs::create_dir_all(&self.0)
    }

    /// Limits what its processes get.
    pub(super) fn limit(&self, share: &Share) -> io::Result<()> {
        let processor_time = share
            .processor_time
            .map(|(time, period)| format!("{} {period}", in_words(time)));
        let limits = [
            ("memory", "memory.max", share.memory.map(in_words)),
            ("cpu", "cpu.max", processor_time),
            ("pids", "pids.max", share.processes.map(in_words)),
        ];
        for (controller, file, limit) in limits {
            let Some(limit) = limit else {
                continue;
            };
            if limit.starts_with(NO_LIMIT) && !self.0.join(file).exists() {
                continue;
            }
            let limited = enable(controller).and_then(|()| fs::write(self.0.join(file), limit));
            limited.map_err(|error| io::Error::new(error.kind(), format!("{file}: {error}")))?;
        }
        Ok(())
    }

    /// Puts this process into it.
    pub(super) fn join(&self) -> io::Result<()> {
        fs::write(self.0.join("cgroup.procs"), "0")
    }

    /// Puts another process into it.
    pub(super) fn add(&self, pid: Pid) -> io::Result<()> {
        fs::write(
            self.0.join("cgroup.procs"),
            pid.as_raw_nonzero().to_string(),
        )
    }

    /// Ids of all its processes.
    pub(super) fn processes(&self) -> io::Result<Vec<i32>> {
        let all = fs::read_to_string(self.0.join("cgroup.procs"))?;
        Ok(all.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// Signals all its processes.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        for pid in self.processes()?.into_iter().filter_map(Pid::from_raw) {
            // It may have ended meanwhile.
            let _ = kill_process(pid, signal);
        }
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Freezes all its processes, or has them go on, and waits until they do.
    pub(super) fn freeze(&self, freeze: bool) -> io::Result<()> {
        let number = u8::from(freeze);
        fs::write(self.0.join("cgroup.freeze"), number.to_string())?;
        let wanted = format!("frozen {number}");
        let began = Instant::now();
        while !fs::read_to_string(self.0.join("cgroup.events"))?.contains(&wanted) {
            if began.elapsed() > GONE_TIMEOUT {
                return Err(io::Error::other("its processes do not stand still"));
            }
            thread::sleep(INTERVAL);
        }
        Ok(())
    }

    /// Kills all its processes, also those that are being started.
    pub(super) fn kill(&self) -> io::Result<()> {
        fs::write(self.0.join("cgroup.kill"), "1")
    }

    /// Removes it as soon as its processes are gone.
    pub(super) fn remove(&self) -> io::Result<()> {
        let began = Instant::now();
        loop {
            match fs::remove_dir(&self.0) {
                Err(error)
                    if error.kind() == io::ErrorKind::ResourceBusy
                        && began.elapsed() < GONE_TIMEOUT =>
                {
                    thread::sleep(INTERVAL);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                removed => return removed,
            }
        }
    }
}
