//! State of the base that must not change: cores, memory, interrupts and taint.

use std::collections::BTreeSet;
use std::fs;

use super::Finding;

/// Bits of /proc/sys/kernel/tainted that loading any module of ours sets (kernel:
/// Documentation/admin-guide/tainted-kernels.rst): built out of tree, not signed.
const TAINT_OF_MODULE: u64 = 1 << 12 | 1 << 13;

/// State of the base that nodes must leave unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseState {
    /// Online cores, as the kernel lists them.
    pub online: String,
    /// Present cores.
    pub present: String,
    /// MemTotal of /proc/meminfo, in KiB.
    pub memory_kib: u64,
    /// Lines of /proc/interrupts, without their counts.
    pub interrupts: BTreeSet<String>,
    /// Loaded modules.
    pub modules: BTreeSet<String>,
    /// Taint bits, without those that our module sets on loading.
    pub taint: u64,
}

impl BaseState {
    /// Reads the current state.
    ///
    /// # Errors
    /// When a file of /proc or /sys cannot be read.
    pub fn capture() -> Result<Self, Finding> {
        let taint: u64 = read("/proc/sys/kernel/tainted")?.trim().parse()?;
        Ok(Self {
            online: read("/sys/devices/system/cpu/online")?.trim().to_owned(),
            present: read("/sys/devices/system/cpu/present")?.trim().to_owned(),
            memory_kib: memory_total_kib(&read("/proc/meminfo")?)?,
            interrupts: interrupt_lines(&read("/proc/interrupts")?),
            modules: first_words(&read("/proc/modules")?),
            taint: taint & !TAINT_OF_MODULE,
        })
    }

    /// Compares with an earlier state.
    ///
    /// # Errors
    /// When they differ; lists the differences.
    pub fn assert_same(&self, earlier: &Self) -> Result<(), Finding> {
        let mut differences = Vec::new();
        let mut compare = |what: &str, earlier: &dyn ToString, now: &dyn ToString| {
            let (earlier, now) = (earlier.to_string(), now.to_string());
            if earlier != now {
                differences.push(format!("{what}: was {earlier}, is {now}"));
            }
        };
        compare("online cores", &earlier.online, &self.online);
        compare("present cores", &earlier.present, &self.present);
        compare("MemTotal in KiB", &earlier.memory_kib, &self.memory_kib);
        compare("taint", &earlier.taint, &self.taint);
        differences.extend(set_difference(
            "interrupt",
            &earlier.interrupts,
            &self.interrupts,
        ));
        differences.extend(set_difference("module", &earlier.modules, &self.modules));
        let text = || format!("the base has changed: {}", differences.join("; "));
        Finding::unless(differences.is_empty(), text)
    }
}

fn read(path: &str) -> Result<String, Finding> {
    fs::read_to_string(path).map_err(|error| Finding::new(format!("{path}: {error}")))
}

fn memory_total_kib(meminfo: &str) -> Result<u64, Finding> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    Ok(number
        .ok_or_else(|| Finding::new("/proc/meminfo has no MemTotal"))?
        .parse()?)
}

/// Name and description of each line, without its counts, whose number the heading gives. Without
/// the numbers of message interrupts of PCI functions behind a port, which can be given to nodes: a
/// driver that is bound again gets the next free numbers.
fn interrupt_lines(text: &str) -> BTreeSet<String> {
    let mut lines = text.lines();
    let cpus = lines
        .next()
        .map_or(0, |heading| heading.split_whitespace().count());
    let name = |line: &str| {
        let mut words = line.split_whitespace();
        let label = words.next().unwrap_or_default();
        let is_count = |word: &&str| word.bytes().all(|byte| byte.is_ascii_digit());
        let counts = words.clone().take(cpus).take_while(is_count).count();
        let description: Vec<_> = words.skip(counts).collect();
        let label = (!comes_from_behind_a_port(&description)).then_some(label);
        label
            .into_iter()
            .chain(description)
            .collect::<Vec<_>>()
            .join(" ")
    };
    lines.map(name).collect()
}

/// Whether the interrupt is of a function behind a port. Its chip is named after the function
/// (`PCI-MSIX-0000:01:00.0`), or the number within the chip has bus and function from its bit 11 on
/// (kernel: `pci_msi_domain_calc_hwirq()`).
fn comes_from_behind_a_port(description: &[&str]) -> bool {
    let [chip, number, ..] = description else {
        return false;
    };
    let Some(function) = chip.strip_prefix("PCI-MSI") else {
        return false;
    };
    let bus = match function.split(':').nth(1) {
        Some(bus) => u32::from_str_radix(bus, 16).ok(),
        None => number.split('-').next().and_then(|number| {
            let number: u32 = number.parse().ok()?;
            Some(number >> 19 & 0xff)
        }),
    };
    bus.is_some_and(|bus| bus != 0)
}

fn first_words(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

fn set_difference<'a>(
    what: &'a str,
    earlier: &'a BTreeSet<String>,
    now: &'a BTreeSet<String>,
) -> impl Iterator<Item = String> + 'a {
    let lost = earlier
        .difference(now)
        .map(move |name| format!("{what} `{name}` is missing"));
    let new = now
        .difference(earlier)
        .map(move |name| format!("{what} `{name}` is new"));
    lost.chain(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERRUPTS: &str = "           CPU0       CPU1
  0:         73          0   IO-APIC   2-edge      timer
 24:          0         28   PCI-MSI 16384-edge      nvme0q0
LOC:        531        509   Local timer interrupts
ERR:          0
";

    fn state() -> BaseState {
        BaseState {
            online: "0-3".into(),
            present: "0-3".into(),
            memory_kib: 4_000_000,
            interrupts: interrupt_lines(INTERRUPTS),
            modules: first_words("virtio 20480 2 - Live 0x0\n"),
            taint: 0,
        }
    }

    #[test]
    fn interrupts_are_named_without_counts() {
        let names: Vec<_> = interrupt_lines(INTERRUPTS).into_iter().collect();
        let expected = [
            "0: IO-APIC 2-edge timer",
            "24: PCI-MSI 16384-edge nvme0q0",
            "ERR:",
            "LOC: Local timer interrupts",
        ];
        assert_eq!(names, expected);
        // A core fewer, other counts: the same lines.
        let other = INTERRUPTS
            .replace("       CPU1", "")
            .replace("          0   ", "   ");
        let other = other
            .replace("         28   ", "   ")
            .replace("        509   ", "   ");
        assert_eq!(interrupt_lines(&other), interrupt_lines(INTERRUPTS));
    }

    #[test]
    fn only_functions_behind_ports_may_change_their_numbers() {
        for (chip, is) in [
            ("PCI-MSI 16384-edge", false),
            ("PCI-MSI 524288-edge", true),
            ("PCI-MSIX-0000:00:01.0 0-edge", false),
            ("PCI-MSIX-0000:01:00.0 1-edge", true),
            ("PCI-MSI-0000:00:03.0 0-edge", false),
            ("IO-APIC 2-edge", false),
            ("insula 600000-edge", false),
        ] {
            let description: Vec<_> = chip.split(' ').collect();
            assert_eq!(comes_from_behind_a_port(&description), is, "{chip}");
        }
    }

    #[test]
    fn same_state_is_accepted() {
        state().assert_same(&state()).unwrap();
    }

    #[test]
    fn each_difference_is_listed() {
        let mut now = state();
        now.online = "0-2".into();
        now.memory_kib -= 2048;
        now.taint = 1 << 9;
        now.interrupts.insert("30: insula".into());
        now.modules.clear();
        let text = now.assert_same(&state()).unwrap_err().to_string();
        for part in [
            "was 0-3, is 0-2",
            "MemTotal",
            "taint",
            "`30: insula` is new",
            "`virtio` is missing",
        ] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    }

    #[test]
    fn memory_total_is_read() {
        assert_eq!(
            memory_total_kib("MemTotal:        4020412 kB\nMemFree: 1 kB\n").unwrap(),
            4_020_412
        );
        assert!(memory_total_kib("MemFree: 1 kB\n").is_err());
    }
}
