//! Checks of the firmware.

use insula_base::root::Root;
use insula_base::units::Size;
use insula_node::memory::{LOW_END, LOW_FIRST, LOW_SIZE};

use super::{Finding, FromModule};

const MEMMAP: &str = "/sys/firmware/memmap";
const EFI: &str = "/sys/firmware/efi";
/// `EFI_GLOBAL_VARIABLE` of the UEFI specification, section 3.3.
const SECURE_BOOT: &str = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// Size of the trampoline from which the first core of every node is started.
const TRAMPOLINE: u64 = 4096;

pub(super) fn kind(root: &Root) -> Finding {
    if root.exists(EFI) {
        return Finding::untested(
            "firmware",
            "UEFI",
            "starting nodes beside a base booted by UEFI is untested; for a tested setup boot in \
             BIOS \
             (legacy) mode",
        );
    }
    Finding::ok("firmware", "BIOS")
}

pub(super) fn secure_boot(root: &Root, loaded: bool) -> Finding {
    const SUBJECT: &str = "Secure Boot";
    if !root.exists(EFI) {
        return Finding::ok(SUBJECT, "none, the firmware is a BIOS");
    }
    // Four bytes of attributes, then the value: Documentation/filesystems/efivarfs.rst.
    let variable = std::fs::read(root.path(&format!("{EFI}/efivars/{SECURE_BOOT}")));
    match variable.as_deref() {
        Ok([_, _, _, _, 1]) if loaded => Finding::untested(
            SUBJECT,
            "on; the module is loaded nevertheless",
            "starting nodes under Secure Boot is untested",
        ),
        Ok([_, _, _, _, 1]) => Finding::bad(
            SUBJECT,
            "on",
            "only signed modules load: sign insula.ko with a key that is enrolled \
             (`mokutil --import`), or disable Secure Boot in the firmware",
        ),
        Ok(_) => Finding::ok(SUBJECT, "off"),
        Err(_) => Finding::ok(SUBJECT, "off (the firmware has no such variable)"),
    }
}

pub(super) fn low_memory(root: &Root, module: Option<FromModule>) -> Finding {
    const SUBJECT: &str = "memory below 1 MiB";
    if let Some(FromModule {
        low_total,
        low_free,
        ..
    }) = module
    {
        let found = format!("{} of {} free", Size(low_free), Size(low_total));
        return low_memory_finding(SUBJECT, found, low_total);
    }
    let entries = root.names(MEMMAP);
    if entries.is_empty() {
        return Finding::untested(
            SUBJECT,
            format!("unknown: {MEMMAP} is missing"),
            "the module reports on loading if there is too little",
        );
    }
    let ram: u64 = entries
        .iter()
        .filter_map(|entry| low_ram(root, entry))
        .sum();
    low_memory_finding(
        SUBJECT,
        format!("{} of RAM in the firmware's map", Size(ram)),
        ram,
    )
}

fn low_memory_finding(subject: &'static str, found: String, size: u64) -> Finding {
    let nodes = size.saturating_sub(TRAMPOLINE) / LOW_SIZE;
    if nodes == 0 {
        let needed = Size(TRAMPOLINE + LOW_SIZE);
        let hint = format!(
            "cores are started there, {needed} are needed: look for a firmware setting that \
             frees some (legacy option ROMs, EBDA), or use another machine"
        );
        return Finding::bad(subject, found, hint);
    }
    Finding::ok(subject, format!("{found}, for up to {nodes} nodes"))
}

/// Bytes of RAM of one entry of the firmware's map in the range that nodes can use
/// (`Documentation/ABI/testing/sysfs-firmware-memmap`).
fn low_ram(root: &Root, entry: &str) -> Option<u64> {
    let text = |file: &str| root.text(&format!("{MEMMAP}/{entry}/{file}")).ok();
    let address = |file| u64::from_str_radix(text(file)?.strip_prefix("0x")?, 16).ok();
    if text("type")? != "System RAM" {
        return None;
    }
    let first = address("start")?.max(LOW_FIRST).next_multiple_of(4096);
    let end = address("end")?.saturating_add(1).min(LOW_END);
    Some((end - end % 4096).saturating_sub(first))
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::super::Verdict;
    use super::*;

    fn map(entries: &[(&str, &str, &str)]) -> Tree {
        let tree = Tree::new(&[]);
        for (index, (start, end, kind)) in entries.iter().enumerate() {
            for (file, text) in [("start", start), ("end", end), ("type", kind)] {
                tree.add(&[(&format!("{MEMMAP}/{index}/{file}"), text)]);
            }
        }
        tree
    }

    #[test]
    fn only_ram_between_64_and_640_kib_counts() {
        let tree = map(&[
            ("0x0", "0x9fbff", "System RAM"),
            ("0x9fc00", "0x9ffff", "Reserved"),
            ("0x100000", "0xbfffffff", "System RAM"),
            ("invalid", "0x1000", "System RAM"),
        ]);
        let finding = low_memory(&tree.root(), None);
        assert_eq!(finding.verdict, Verdict::Ok);
        assert!(
            finding.found.starts_with("572K of RAM"),
            "{}",
            finding.found
        );
    }

    #[test]
    fn too_little_is_bad() {
        let tree = map(&[("0x0", "0x18fff", "System RAM")]);
        assert_eq!(low_memory(&tree.root(), None).verdict, Verdict::Bad);
        let tree = map(&[("0x0", "0x19fff", "System RAM")]);
        assert_eq!(low_memory(&tree.root(), None).verdict, Verdict::Ok);
    }

    #[test]
    fn secure_boot_by_the_variables_last_byte() {
        let tree = Tree::new(&[("/sys/firmware/efi/efivars/x", "")]);
        assert_eq!(secure_boot(&tree.root(), false).verdict, Verdict::Ok);
        let path = format!("{EFI}/efivars/{SECURE_BOOT}");
        tree.add(&[(&path, "\u{6}\0\0\0\u{1}")]);
        assert_eq!(secure_boot(&tree.root(), false).verdict, Verdict::Bad);
        assert_eq!(secure_boot(&tree.root(), true).verdict, Verdict::Untested);
        tree.add(&[(&path, "\u{6}\0\0\0\0")]);
        assert_eq!(secure_boot(&tree.root(), false).verdict, Verdict::Ok);
    }
}
