//! Measuring the load (proc(5), Documentation/accounting/psi.rst).

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::condition::Metric;
use crate::policy::Policy;

/// Number of probes of which the percentiles are taken.
const PROBES: usize = 60;
/// A probe that takes longer is ended, and counts as so long.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
const PROBE_POLL: Duration = Duration::from_millis(1);
/// State of an established connection in `/proc/net/tcp`.
const ESTABLISHED: &str = "01";

/// Measures for one policy.
#[derive(Debug)]
pub struct Measure<'a> {
    policy: &'a Policy,
    proc: PathBuf,
    /// Times of the last probes, in ms.
    probes: VecDeque<f64>,
}

impl<'a> Measure<'a> {
    /// Measures for a policy, with a file system as `/proc` is.
    #[must_use]
    pub fn new(policy: &'a Policy, proc: &Path) -> Self {
        Self {
            policy,
            proc: proc.to_owned(),
            probes: VecDeque::new(),
        }
    }

    /// The load now; `pid` is the program's process. What cannot be measured is missing.
    pub fn values(&mut self, pid: i32) -> BTreeMap<Metric, f64> {
        let mut values = BTreeMap::new();
        let pressures = [
            (Metric::PressureCpu, "cpu"),
            (Metric::PressureMemory, "memory"),
            (Metric::PressureIo, "io"),
        ];
        for (metric, name) in pressures {
            let text = self.read(&format!("pressure/{name}"));
            values.extend(text.and_then(|text| Some((metric, pressure(&text)?))));
        }
        let tasks = self.read("stat").and_then(|text| running(&text));
        values.extend(tasks.map(|tasks| (Metric::RunQueue, tasks)));
        if let Some(port) = self.policy.port {
            values.extend(
                self.connections(pid, port)
                    .map(|count| (Metric::Connections, count)),
            );
        }
        self.probe();
        for (metric, part) in [(Metric::LatencyP50Ms, 0.5), (Metric::LatencyP99Ms, 0.99)] {
            values.extend(percentile(&self.probes, part).map(|value| (metric, value)));
        }
        values
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.proc.join(name)).ok()
    }

    /// Connections of the process's network namespace.
    fn connections(&self, pid: i32, port: u16) -> Option<f64> {
        let tables = ["tcp", "tcp6"].map(|name| self.read(&format!("{pid}/net/{name}")));
        let tables: Vec<_> = tables.into_iter().flatten().collect();
        let count = tables
            .iter()
            .map(|table| established(table, port))
            .sum::<usize>();
        (!tables.is_empty()).then_some(count as f64)
    }

    /// Runs the probe. Of one that fails the time is not taken.
    fn probe(&mut self) {
        let Some((program, arguments)) = self.policy.probe.split_first() else {
            return;
        };
        if let Some(took) = probe_time(Command::new(program).args(arguments)) {
            if self.probes.len() == PROBES {
                self.probes.pop_front();
            }
            self.probes.push_back(took.as_secs_f64() * 1e3);
        }
    }
}

/// `some avg10` of a file of `/proc/pressure`, in percent.
fn pressure(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let word = line
        .split(' ')
        .find_map(|word| word.strip_prefix("avg10="))?;
    word.parse().ok()
}

/// `procs_running` of `/proc/stat`, without this process.
fn running(text: &str) -> Option<f64> {
    let count = text
        .lines()
        .find_map(|line| line.strip_prefix("procs_running "))?;
    let count: f64 = count.trim().parse().ok()?;
    Some((count - 1.0).max(0.0))
}

/// Number of established connections to a local port in a table as `/proc/net/tcp`.
fn established(table: &str, port: u16) -> usize {
    let lines = table.lines().skip(1);
    let is_one = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next().and_then(|local| local.rsplit(':').next());
        let local = local.and_then(|text| u16::from_str_radix(text, 16).ok());
        local == Some(port) && words.nth(1) == Some(ESTABLISHED)
    };
    lines.filter(is_one).count()
}

/// Time that a command takes; `None` if it fails.
fn probe_time(command: &mut Command) -> Option<Duration> {
    let null = || Stdio::null();
    let began = Instant::now();
    let mut child = command
        .stdin(null())
        .stdout(null())
        .stderr(null())
        .spawn()
        .ok()?;
    loop {
        match child.try_wait().ok()? {
            Some(status) => return status.success().then(|| began.elapsed()),
            None if began.elapsed() > PROBE_TIMEOUT => {
                // It may have ended just now.
                let _ = child.kill();
                let _ = child.wait();
                return Some(PROBE_TIMEOUT);
            }
            None => sleep(PROBE_POLL),
        }
    }
}

/// The value below which a part of all lies; `None` of none.
fn percentile(values: &VecDeque<f64>, part: f64) -> Option<f64> {
    let mut sorted: Vec<_> = values.iter().copied().collect();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() as f64 * part) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::policy;

    #[test]
    fn files_of_proc_are_read() {
        let cpu = "some avg10=1.53 avg60=0.87 avg300=0.73 total=20\nfull avg10=9.00 avg60=0.00\n";
        assert_eq!(pressure(cpu), Some(1.53));
        assert_eq!(pressure("full avg10=0.00\n"), None);
        assert_eq!(
            running("cpu  1 2\nprocs_running 3\nprocs_blocked 0\n"),
            Some(2.0)
        );
    }

    #[test]
    fn connections_to_the_port_are_counted() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr\n   \
             0: 00000000:0050 00000000:0000 0A 00000000:00000000 00\n   \
             1: 0100007F:0050 0100007F:D431 01 00000000:00000000 00\n   \
             2: 0100007F:D431 0100007F:0050 01 00000000:00000000 00\n";
        assert_eq!(established(table, 80), 1);
        assert_eq!(established(table, 0xd431), 1);
        assert_eq!(established(table, 81), 0);
    }

    #[test]
    fn percentiles() {
        let values: VecDeque<_> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&values, 0.5), Some(51.0));
        assert_eq!(percentile(&values, 0.99), Some(100.0));
        assert_eq!(percentile(&VecDeque::new(), 0.5), None);
    }

    #[test]
    fn what_cannot_be_measured_is_missing() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("pressure")).unwrap();
        fs::write(
            proc.path().join("pressure/io"),
            "some avg10=2.00 avg60=0.00\n",
        )
        .unwrap();
        let mut policy = policy(&["pressure-io > 1"], &[]);
        policy.port = Some(80);
        policy.probe = vec!["/nowhere/probe".to_owned()];
        let values = Measure::new(&policy, proc.path()).values(1);
        assert_eq!(values, [(Metric::PressureIo, 2.0)].into());
    }

    #[test]
    fn a_probe_takes_time() {
        let mut policy = policy(&["pressure-io > 1"], &[]);
        policy.probe = vec!["true".to_owned()];
        let values = Measure::new(&policy, Path::new("/nowhere")).values(1);
        assert!(values[&Metric::LatencyP50Ms] > 0.0);
        policy.probe = vec!["false".to_owned()];
        assert!(
            Measure::new(&policy, Path::new("/nowhere"))
                .values(1)
                .is_empty()
        );
    }
}
