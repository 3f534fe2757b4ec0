//! Checks of local APICs, IOMMU and interrupt remapping.

use insula_base::root::Root;
use insula_node::device;

use super::{Finding, FromModule};

/// Nodes run in both modes; which is in use, the module knows.
pub(super) fn apic_mode(root: &Root, module: Option<FromModule>) -> Finding {
    let capable = has_flag(&root.text("/proc/cpuinfo").unwrap_or_default(), "x2apic");
    let disabled = has_word(&root.text("/proc/cmdline").unwrap_or_default(), "nox2apic");
    let found = match module.map(|module| module.x2apic) {
        Some(true) => "x2APIC",
        None if capable && !disabled => "xAPIC or x2APIC; the loaded module shows which",
        Some(false) | None => "xAPIC",
    };
    Finding::ok("APIC mode", found)
}

pub(super) fn has_flag(cpuinfo: &str, flag: &str) -> bool {
    let mut lines = cpuinfo.lines().filter(|line| line.starts_with("flags"));
    lines.next().is_some_and(|line| has_word(line, flag))
}

fn has_word(text: &str, word: &str) -> bool {
    text.split_whitespace().any(|one| one == word)
}

pub(super) fn iommu(root: &Root) -> Finding {
    let units = root.names("/sys/class/iommu");
    let tables = ["DMAR", "IVRS"]
        .into_iter()
        .filter(|table| has_table(root, table));
    let tables: Vec<_> = tables.collect();
    match (units.as_slice(), tables.as_slice()) {
        ([], []) => Finding::ok("IOMMU", "none"),
        ([], tables) => Finding::ok(
            "IOMMU",
            format!("not in use ({} present)", tables.join(", ")),
        ),
        (units, _) => Finding::untested(
            "IOMMU",
            format!("in use ({})", units.join(", ")),
            "nodes without devices do not use it; it restricts the DMA of nodes' devices to their \
             nodes' \
             memory, which is tested on an emulated IOMMU only",
        ),
    }
}

fn has_table(root: &Root, table: &str) -> bool {
    root.exists(&format!("/sys/firmware/acpi/tables/{table}"))
}

pub(super) fn remapping(root: &Root) -> Finding {
    const SUBJECT: &str = "interrupt remapping";
    match root.text("/proc/interrupts") {
        Ok(_) if device::interrupts_are_remapped(root) => Finding::untested(
            SUBJECT,
            "on: devices can be passed through to confined nodes only",
            "nodes without devices do not use it; it blocks interrupts that a node's kernel programs, \
             so that devices are refused to nodes that are not confined (--isolation vmm): boot the \
             base with `intremap=off` on its command line to pass them through",
        ),
        Ok(_) => Finding::ok(SUBJECT, "off"),
        Err(error) => Finding::untested(
            SUBJECT,
            format!("/proc/interrupts cannot be read: {error}"),
            "mount proc at /proc",
        ),
    }
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::*;

    #[test]
    fn x2apic_is_reported_by_the_module_or_guessed() {
        let tree = Tree::new(&[("/proc/cpuinfo", "flags\t: lm x2apic\nflags\t: lm x2apic\n")]);
        let module = |x2apic| {
            Some(FromModule {
                x2apic,
                virtualizes: false,
                low_total: 0,
                low_free: 0,
            })
        };
        let found = |module| apic_mode(&tree.root(), module).found;
        assert!(found(None).starts_with("xAPIC or x2APIC"));
        assert_eq!(found(module(false)), "xAPIC");
        assert_eq!(found(module(true)), "x2APIC");
        tree.add(&[("/proc/cmdline", "quiet nox2apic")]);
        assert_eq!(found(None), "xAPIC");
    }

    #[test]
    fn an_unused_iommu_is_ok() {
        let tree = Tree::new(&[("/sys/firmware/acpi/tables/DMAR", "")]);
        let finding = iommu(&tree.root());
        assert_eq!(finding, Finding::ok("IOMMU", "not in use (DMAR present)"));
    }
}
