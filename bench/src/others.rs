//! Load of the host by other programs during a measurement.
//!
//! The load average cannot tell: most of it is the measurement's own. It is the kernel's count of
//! its cores' busy time, minus that of this process and its children.

use std::io;
use std::time::Instant;

use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::unistd::{SysconfVar, sysconf};

/// A period of time, from its start on.
pub struct Others {
    began: Instant,
    busy_s: f64,
    own_s: f64,
}

impl Others {
    /// Starts a period.
    ///
    /// # Errors
    /// When the kernel does not report its times.
    pub fn begin() -> io::Result<Self> {
        Ok(Self {
            began: Instant::now(),
            busy_s: busy_s()?,
            own_s: own_s()?,
        })
    }

    /// Cores that others have kept busy since then, on average: other programs of this computer,
    /// and its host's if it is a virtual machine (steal). Children count once they have ended.
    ///
    /// # Errors
    /// When the kernel does not report its times.
    pub fn end(&self) -> io::Result<f64> {
        let passed_s = self.began.elapsed().as_secs_f64();
        let (busy_s, own_s) = (busy_s()? - self.busy_s, own_s()? - self.own_s);
        Ok(((busy_s - own_s) / passed_s).max(0.0))
    }
}

fn own_s() -> io::Result<f64> {
    let of = |usage: Usage| usage.user_time() + usage.system_time();
    let own = of(getrusage(UsageWho::RUSAGE_SELF)?);
    let children = of(getrusage(UsageWho::RUSAGE_CHILDREN)?);
    Ok((own + children).num_microseconds() as f64 / 1e6)
}

fn busy_s() -> io::Result<f64> {
    let per_second = sysconf(SysconfVar::CLK_TCK)?.unwrap_or(100);
    let text = std::fs::read_to_string("/proc/stat")?;
    let ticks =
        busy_ticks(&text).ok_or_else(|| io::Error::other("/proc/stat is not understood"))?;
    Ok(ticks as f64 / per_second as f64)
}

/// Time of all cores without idle and iowait; guests' time is in users' (proc(5)).
fn busy_ticks(stat: &str) -> Option<u64> {
    const IDLE: usize = 3;
    const IOWAIT: usize = 4;
    const STEAL: usize = 7;
    let numbers = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks = numbers.split_ascii_whitespace().take(STEAL + 1);
    let busy = ticks
        .enumerate()
        .filter(|(index, _)| ![IDLE, IOWAIT].contains(index));
    busy.map(|(_, ticks)| ticks.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_count_once_and_idle_time_not_at_all() {
        let stat = "cpu  1 20 300 4000 50000 600000 7000000 80000000 5 6\ncpu0 1 1 1 1\n";
        assert_eq!(busy_ticks(stat), Some(87_600_321));
        assert_eq!(busy_ticks("intr 1 2 3"), None);
    }

    #[test]
    fn own_work_is_own() {
        let others = Others::begin().unwrap();
        while own_s().unwrap() < others.own_s + 0.05 {
            std::hint::black_box(&others);
        }
        let cores = std::thread::available_parallelism().unwrap().get() as f64;
        assert!(others.end().unwrap() <= cores);
    }
}
