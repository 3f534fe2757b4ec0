//! Circumstances of a measurement.

use std::fs;

use serde::{Deserialize, Serialize};
use testbed::host::machine::{Accelerator, Emulator, Machine};
use testbed::host::packages::PackageError;
use testbed::host::tool::Tool;

use crate::sources;

/// Circumstances of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Circumstances {
    /// Date and time, in UTC.
    pub date: String,
    /// Commit of the project, marked if the sources had been changed since.
    pub commit: String,
    /// The host's processor, and its number of cores.
    pub processor: String,
    /// Load average of the last minute at the start: beyond the number of cores, other programs
    /// take part of the time. It includes earlier measurements and builds.
    pub load: String,
    /// Cores that other programs kept busy meanwhile, on average.
    pub others: f64,
    /// The emulator and its version.
    pub emulator: String,
    /// Emulated machine.
    pub machine: String,
    /// Whether the machine was emulated: true unless KVM executes it.
    pub emulated: bool,
}

impl Circumstances {
    /// Current circumstances.
    ///
    /// # Errors
    /// When QEMU is not installed.
    pub fn now(machine: &Machine) -> Result<Self, PackageError> {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let (cpus, memory, base) = (machine.cpus, machine.memory_mib, machine.kernel);
        let (how, emulated) = match (machine.emulator, machine.accelerator) {
            (Emulator::Bochs, _) => {
                let ticks = machine.bochs_ticks_per_ms;
                (
                    format!("all cores at once, {ticks} instructions each are 1 ms"),
                    true,
                )
            }
            (_, accelerator) => (accelerator.to_string(), accelerator != Accelerator::Kvm),
        };
        Ok(Self {
            date: Tool::new("date")
                .args(["-u", "+%Y-%m-%d %H:%M UTC"])
                .run()?
                .trim()
                .to_owned(),
            commit: sources::commit(),
            processor: processor(&read("/proc/cpuinfo")),
            load: load().unwrap_or_default(),
            others: 0.0,
            emulator: machine.emulator.version(&mut |_| {})?,
            machine: format!("{how}, {cpus} cores, {memory} MiB, base Debian {base} cloud"),
            emulated,
        })
    }
}

/// Load average of the last minute, as the kernel writes it.
pub(crate) fn load() -> Option<String> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split(' ').next().map(str::to_owned)
}

fn processor(cpuinfo: &str) -> String {
    let names: Vec<_> = cpuinfo
        .lines()
        .filter_map(|line| line.strip_prefix("model name"))
        .collect();
    let name = names.first().unwrap_or(&"unknown");
    let name = name.trim_start_matches([' ', '\t', ':']);
    format!("{name}, {} cores", names.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_named_and_counted() {
        let text =
            "processor\t: 0\nmodel name\t: Some CPU\n\nprocessor\t: 1\nmodel name\t: Some CPU\n";
        assert_eq!(processor(text), "Some CPU, 2 cores");
    }
}
