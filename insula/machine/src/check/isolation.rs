//! Check of what nodes can be confined by.

use insula_base::root::Root;

use super::interrupts::has_flag;
use super::{Finding, FromModule};

const SUBJECT: &str = "isolation";

/// Flags of /proc/cpuinfo that the monitor needs, on processors of AMD and of Intel.
const SVM: &[&str] = &["svm", "npt", "x2apic"];
const VMX: &[&str] = &["vmx", "ept", "vpid", "x2apic"];
/// Of its line of VMX's features.
const VMX_FEATURES: &[&str] = &["unrestricted_guest", "vnmi", "preemption_timer"];

/// What the processors lack. Linux shows no `vmx` where firmware has disabled it.
fn lacking(cpuinfo: &str) -> Vec<&'static str> {
    let is_intel = cpuinfo.contains("GenuineIntel");
    let flags = if is_intel { VMX } else { SVM };
    let lacking = flags.iter().filter(|flag| !has_flag(cpuinfo, flag));
    let mut lacking: Vec<_> = lacking.copied().collect();
    if is_intel && lacking.is_empty() {
        let features = VMX_FEATURES.iter();
        lacking.extend(features.filter(|feature| !has_vmx_feature(cpuinfo, feature)));
    }
    lacking
}

fn has_vmx_feature(cpuinfo: &str, wanted: &str) -> bool {
    let line = cpuinfo.lines().find(|line| line.starts_with("vmx flags"));
    line.is_some_and(|line| line.split_whitespace().any(|flag| flag == wanted))
}

/// Which kinds of isolation there are.
pub(super) fn isolation(root: &Root, module: Option<FromModule>) -> Finding {
    let cpuinfo = root.text("/proc/cpuinfo").unwrap_or_default();
    let lacking = lacking(&cpuinfo);
    match (module.map(|module| module.virtualizes), lacking.as_slice()) {
        (Some(true), _) | (None, []) => Finding::untested(
            SUBJECT,
            "direct, vmm",
            "nodes of isolation `direct` do not use virtualization; `vmm` is tested on an emulated \
             processor only",
        ),
        (_, []) => Finding::ok(SUBJECT, "direct; firmware has disabled virtualization"),
        (_, ["vmx", ..]) => {
            let found = "direct; the processors lack vmx, or firmware has disabled it";
            Finding::ok(SUBJECT, found)
        }
        (_, lacking) => {
            let found = format!("direct; the processors lack {}", lacking.join(", "));
            Finding::ok(SUBJECT, found)
        }
    }
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::*;

    fn module(virtualizes: bool) -> Option<FromModule> {
        Some(FromModule {
            x2apic: false,
            virtualizes,
            low_total: 0,
            low_free: 0,
        })
    }

    #[test]
    fn what_is_lacking_is_named() {
        let tree = Tree::new(&[("/proc/cpuinfo", "flags\t: lm svm npt x2apic\n")]);
        assert_eq!(isolation(&tree.root(), module(true)).found, "direct, vmm");
        assert_eq!(isolation(&tree.root(), None).found, "direct, vmm");
        let disabled = isolation(&tree.root(), module(false));
        assert!(disabled.found.contains("firmware"), "{}", disabled.found);
        let tree = Tree::new(&[("/proc/cpuinfo", "flags\t: lm svm npt\n")]);
        let without = isolation(&tree.root(), module(false));
        assert!(without.found.ends_with("lack x2apic"), "{}", without.found);
    }

    /// As Linux writes it for a processor of Intel.
    fn intel(flags: &str, features: &str) -> String {
        format!("vendor_id\t: GenuineIntel\nflags\t\t: lm {flags}\nvmx flags\t: {features}\n")
    }

    #[test]
    fn intels_processors_need_other_features() {
        let found = |cpuinfo: &str, virtualizes| {
            let tree = Tree::new(&[("/proc/cpuinfo", cpuinfo)]);
            isolation(&tree.root(), module(virtualizes)).found
        };
        let features = "vnmi preemption_timer unrestricted_guest";
        let all = intel("vmx ept vpid x2apic", features);
        assert_eq!(found(&all, true), "direct, vmm");
        assert!(found(&intel("x2apic", ""), false).ends_with("firmware has disabled it"));
        let without = found(
            &intel("vmx ept vpid x2apic", "vnmi preemption_timer"),
            false,
        );
        assert!(without.ends_with("lack unrestricted_guest"), "{without}");
    }
}
