//! Checks whether this machine can host nodes, with hints for what is missing.
//!
//! What the project could not test is reported as `untested`, never as `ok`. Everything is read
//! through a [`Root`], so that a test can simulate any machine.

mod firmware;
mod interrupts;
mod isolation;
mod kernel;
mod module;
mod programs;
mod resources;

use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_driver::Driver;
use serde::Serialize;

/// Suitability of a machine, in one respect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As on machines where nodes were tested.
    Ok,
    /// Nodes can be started, but lack something that others have.
    Limited,
    /// Possibly suitable: untested, or unknown.
    Untested,
    /// Nodes cannot be started.
    Bad,
}

impl Verdict {
    /// The verdict in output.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Untested => "untested",
            Self::Bad => "bad",
        }
    }
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(rename = "MachineFinding"))]
pub struct Finding {
    /// The subject of the check.
    pub subject: &'static str,
    /// The suitability.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do, if it is not ok.
    pub hint: Option<String>,
}

impl Finding {
    fn ok(subject: &'static str, found: impl Into<String>) -> Self {
        Self {
            subject,
            verdict: Verdict::Ok,
            found: found.into(),
            hint: None,
        }
    }

    fn limited(subject: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::other(Verdict::Limited, subject, found.into(), hint.into())
    }

    fn untested(subject: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::other(Verdict::Untested, subject, found.into(), hint.into())
    }

    fn bad(subject: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::other(Verdict::Bad, subject, found.into(), hint.into())
    }

    fn other(verdict: Verdict, subject: &'static str, found: String, hint: String) -> Self {
        Self {
            subject,
            verdict,
            found,
            hint: Some(hint),
        }
    }
}

/// Values from the module, if it is loaded.
#[derive(Clone, Copy, Debug)]
struct FromModule {
    x2apic: bool,
    virtualizes: bool,
    low_total: u64,
    low_free: u64,
}

/// Checks the machine in every respect. Uses the module if it is loaded; changes nothing.
#[must_use]
pub fn check(root: &Root) -> Vec<Finding> {
    let opened = Driver::open();
    let machine = opened
        .as_ref()
        .ok()
        .and_then(|driver| driver.machine().ok());
    let from_module = machine.map(|(machine, _)| FromModule {
        x2apic: machine.flags & insula_abi::MACHINE_X2APIC != 0,
        virtualizes: machine.flags & insula_abi::MACHINE_VIRTUALIZES != 0,
        low_total: machine.lowmem_total,
        low_free: machine.lowmem_free,
    });
    examine(root, &opened.map(drop), from_module)
}

fn examine(root: &Root, opened: &Result<(), Error>, module: Option<FromModule>) -> Vec<Finding> {
    let loaded = !matches!(opened, Err(error) if error.kind == Kind::NoModule);
    vec![
        resources::cores(root),
        resources::hyper_threads(root),
        resources::memory(root),
        interrupts::apic_mode(root, module),
        interrupts::iommu(root),
        interrupts::remapping(root),
        isolation::isolation(root, module),
        kernel::version(root),
        kernel::configuration(root),
        module::module(root, opened),
        module::lockdown(root, loaded),
        firmware::kind(root),
        firmware::secure_boot(root, loaded),
        firmware::low_memory(root, module),
        programs::programs(root),
    ]
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::*;

    /// The emulated machine on which nodes are tested.
    fn good() -> Tree {
        let config = "CONFIG_MODULES=y\nCONFIG_KALLSYMS=y\nCONFIG_HOTPLUG_CPU=y\n\
                      CONFIG_CONTIG_ALLOC=y\nCONFIG_KPROBES=y\n";
        Tree::new(&[
            ("/sys/devices/system/cpu/online", "0-3"),
            (
                "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
                "0",
            ),
            (
                "/sys/devices/system/cpu/cpu1/topology/thread_siblings_list",
                "1",
            ),
            (
                "/sys/devices/system/cpu/cpu2/topology/thread_siblings_list",
                "2",
            ),
            (
                "/sys/devices/system/cpu/cpu3/topology/thread_siblings_list",
                "3",
            ),
            (
                "/proc/meminfo",
                "MemTotal: 4000000 kB\nMemAvailable: 3000000 kB\n",
            ),
            ("/proc/cpuinfo", "flags\t: fpu lm apic\n"),
            ("/proc/cmdline", "root=/dev/sda\n"),
            ("/proc/interrupts", " 24: 0 PCI-MSI 0-edge nvme\n"),
            ("/proc/sys/kernel/osrelease", "6.1.0-1-amd64\n"),
            ("/proc/sys/kernel/modules_disabled", "0\n"),
            ("/boot/config-6.1.0-1-amd64", config),
            (
                "/lib/modules/6.1.0-1-amd64/modules.dep",
                "extra/insula.ko:\n",
            ),
            (
                "/sys/kernel/security/lockdown",
                "[none] integrity confidentiality\n",
            ),
            ("/sys/firmware/memmap/0/start", "0x0\n"),
            ("/sys/firmware/memmap/0/end", "0x9fbff\n"),
            ("/sys/firmware/memmap/0/type", "System RAM\n"),
            ("/usr/sbin/ip", ""),
            ("/usr/sbin/nft", ""),
            ("/usr/bin/qemu-storage-daemon", ""),
            ("/usr/libexec/virtiofsd", ""),
        ])
    }

    /// The module, which failed to open.
    pub(super) fn failed(kind: Kind) -> Result<(), Error> {
        Err(Error::of(kind, "it cannot be opened"))
    }

    fn worst(findings: &[Finding]) -> Verdict {
        findings
            .iter()
            .map(|finding| finding.verdict)
            .max()
            .unwrap()
    }

    fn report(findings: &[Finding]) -> String {
        let line = |f: &Finding| {
            let hint = f.hint.as_deref().unwrap_or("-");
            format!("{}: {}: {} | {hint}", f.subject, f.verdict.word(), f.found)
        };
        findings.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_good_machine() {
        let findings = examine(&good().root(), &failed(Kind::NoModule), None);
        assert_eq!(worst(&findings), Verdict::Ok);
        insta::assert_snapshot!(report(&findings));
    }

    #[test]
    fn a_good_machine_with_the_module() {
        let module = FromModule {
            x2apic: false,
            virtualizes: false,
            low_total: 0x80000,
            low_free: 0x40000,
        };
        let findings = examine(&good().root(), &Ok(()), Some(module));
        assert_eq!(worst(&findings), Verdict::Ok);
        let low = findings
            .iter()
            .find(|one| one.subject == "memory below 1 MiB")
            .unwrap();
        assert!(low.found.contains("256K of 512K free"), "{}", low.found);
    }

    #[test]
    fn an_untested_machine() {
        let tree = good();
        tree.add(&[
            (
                "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
                "0-1",
            ),
            ("/proc/cpuinfo", "flags\t: fpu lm apic x2apic\n"),
            ("/proc/interrupts", " 24: 0 IR-PCI-MSI 0-edge nvme\n"),
            ("/sys/class/iommu/dmar0/x", ""),
            ("/proc/sys/kernel/osrelease", "6.5.0\n"),
            ("/sys/firmware/efi/efivars/x", ""),
        ]);
        std::fs::remove_file(tree.root().path("/sys/kernel/security/lockdown")).unwrap();
        let module = FromModule {
            x2apic: true,
            virtualizes: true,
            low_total: 0x80000,
            low_free: 0x80000,
        };
        let findings = examine(&tree.root(), &Ok(()), Some(module));
        assert_eq!(worst(&findings), Verdict::Untested);
        insta::assert_snapshot!(report(&findings));
    }

    #[test]
    fn an_unsuitable_machine() {
        let tree = good();
        tree.add(&[
            ("/sys/devices/system/cpu/online", "0"),
            (
                "/proc/meminfo",
                "MemTotal: 100000 kB\nMemAvailable: 30000 kB\n",
            ),
            (
                "/boot/config-6.1.0-1-amd64",
                "CONFIG_MODULES=y\n# CONFIG_KPROBES is not set\n",
            ),
            (
                "/lib/modules/6.1.0-1-amd64/modules.dep",
                "kernel/fs/ext4/ext4.ko:\n",
            ),
            (
                "/sys/kernel/security/lockdown",
                "none [integrity] confidentiality\n",
            ),
            ("/sys/firmware/memmap/0/end", "0x12fff\n"),
            (
                "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c",
                "\u{6}\0\0\0\u{1}",
            ),
        ]);
        let findings = examine(&tree.root(), &failed(Kind::NoModule), None);
        assert_eq!(worst(&findings), Verdict::Bad);
        insta::assert_snapshot!(report(&findings));
    }

    #[test]
    fn an_empty_tree_does_not_panic_and_is_bad() {
        let findings = examine(&Tree::new(&[]).root(), &failed(Kind::NoPrivilege), None);
        assert_eq!(worst(&findings), Verdict::Bad);
    }
}
