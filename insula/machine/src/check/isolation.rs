//! Check of what nodes can be confined by.

use insula_base::root::Root;

use super::interrupts::has_flag;
use super::{Finding, FromModule};

const SUBJECT: &str = "isolation";

/// Which kinds of isolation there are.
pub(super) fn isolation(root: &Root, module: Option<FromModule>) -> Finding {
    let cpuinfo = root.text("/proc/cpuinfo").unwrap_or_default();
    let lacking = ["svm", "npt", "x2apic"].into_iter();
    let lacking: Vec<_> = lacking.filter(|flag| !has_flag(&cpuinfo, flag)).collect();
    match (module.map(|module| module.virtualizes), lacking.as_slice()) {
        (Some(true), _) | (None, []) => Finding::untested(
            SUBJECT,
            "direct, vmm",
            "nodes of isolation `direct` do not use virtualization; `vmm` is tested on an emulated \
             processor only",
        ),
        (_, []) => Finding::ok(SUBJECT, "direct; firmware has disabled virtualization"),
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
}
