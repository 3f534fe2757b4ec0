//! PCI functions in sysfs (`Documentation/PCI/sysfs-pci.rst`).

use std::ops::RangeInclusive;
use std::path::PathBuf;

use insula_base::root::Root;
use insula_boot::Chunk;

use super::PciAddress;
use super::confined::Bar;

const DEVICES: &str = "/sys/bus/pci/devices";
/// Flags of a line of `resource`: `IORESOURCE_IO` and `IORESOURCE_MEM` of include/linux/ioport.h.
const IO: u64 = 0x100;
const MEMORY: u64 = 0x200;
/// Lines of `resource` with the function's own resources: six BARs and the ROM.
const OWN_RESOURCES: usize = 7;
pub(super) const PAGE: u64 = 4096;
/// Lines of `resource` with BARs.
const BARS: usize = 6;
/// Class code of bridges.
const BRIDGE: u32 = 0x06;
/// Offset of the capability list, and the ids of MSI and MSI-X (PCI Local Bus Specification 3.0,
/// sections 6.7 and 6.8).
const CAPABILITIES_OFFSET: usize = 0x34;
const MSI: u8 = 0x05;
pub(super) const MSI_X: u8 = 0x11;

/// A PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) address: PciAddress,
    /// Its path in sysfs, with all links resolved.
    pub(super) path: PathBuf,
    /// Class code, subclass and programming interface.
    pub(super) class: u32,
    pub(super) vendor: u32,
    pub(super) device: u32,
    /// The driver bound to it.
    pub(super) driver: Option<String>,
    /// Other functions on its bus.
    pub(super) neighbours: Vec<String>,
    /// Whether it is on a root bus, not behind a port.
    pub(super) on_root_bus: bool,
    /// Whether it has MSI or MSI-X.
    pub(super) has_messages: bool,
    /// Whether an IOMMU is in use for it.
    pub(super) has_iommu: bool,
    /// Whether it can be reset alone.
    pub(super) has_reset: bool,
}

impl Function {
    /// The function at `address`; `None` if it does not exist.
    pub(super) fn read(root: &Root, address: PciAddress) -> Option<Self> {
        let folder = format!("{DEVICES}/{address}");
        let path = root.path(&folder).canonicalize().ok()?;
        let number = |file: &str| {
            let text = root.text(&format!("{folder}/{file}")).ok()?;
            u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
        };
        let parent = path.parent().and_then(|parent| parent.file_name());
        let driver = root.path(&format!("{folder}/driver")).canonicalize().ok();
        Some(Self {
            address,
            class: number("class")?,
            vendor: number("vendor")?,
            device: number("device")?,
            driver: driver.and_then(|path| Some(path.file_name()?.to_str()?.to_owned())),
            neighbours: neighbours(root, address),
            on_root_bus: parent.is_none_or(|name| name.to_string_lossy().starts_with("pci")),
            has_messages: has_messages(&std::fs::read(path.join("config")).unwrap_or_default()),
            has_iommu: path.join("iommu_group").exists(),
            has_reset: has_reset(root, &folder),
            path,
        })
    }

    /// All functions, ascending.
    pub(super) fn all(root: &Root) -> Vec<Self> {
        let names = root.names(DEVICES);
        let addresses = names.iter().filter_map(|name| name.parse().ok());
        addresses
            .filter_map(|address| Self::read(root, address))
            .collect()
    }

    pub(super) fn is_bridge(&self) -> bool {
        self.class >> 16 == BRIDGE
    }

    fn resource_lines(&self) -> String {
        std::fs::read_to_string(self.path.join("resource")).unwrap_or_default()
    }

    /// Its configuration space.
    pub(super) fn config(&self) -> Vec<u8> {
        std::fs::read(self.path.join("config")).unwrap_or_default()
    }

    /// Its BARs, and their memory in whole pages.
    pub(super) fn bars(&self) -> ([Bar; BARS], Vec<Chunk>) {
        let text = self.resource_lines();
        let mut lines = text.lines().take(BARS).map(resource);
        let found: [_; BARS] = std::array::from_fn(|_| lines.next().flatten());
        let in_memory = found
            .iter()
            .flatten()
            .filter(|(.., flags)| flags & MEMORY != 0);
        let windows = in_memory.map(|(first, last, _)| (first & !(PAGE - 1), last | (PAGE - 1)));
        let bar = |(first, last, _)| (first, last - first + 1);
        (found.map(|one| one.map(bar)), merged(windows.collect()))
    }

    /// Its memory windows, in whole pages, and I/O ports.
    pub(super) fn resources(&self) -> (Vec<Chunk>, Vec<RangeInclusive<u16>>) {
        let text = self.resource_lines();
        let lines = text.lines().take(OWN_RESOURCES).filter_map(resource);
        let (mut windows, mut ports) = (Vec::new(), Vec::new());
        for (first, last, flags) in lines {
            if flags & MEMORY != 0 {
                windows.push((first & !(PAGE - 1), last | (PAGE - 1)));
            } else if let (true, Ok(first), Ok(last)) =
                (flags & IO != 0, first.try_into(), last.try_into())
            {
                ports.push(first..=last);
            }
        }
        (merged(windows), ports)
    }
}

/// First and last address and flags of an assigned resource.
fn resource(line: &str) -> Option<(u64, u64, u64)> {
    let mut words = line.split_whitespace();
    let mut next = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (first, last, flags) = (next()?, next()?, next()?);
    (first != 0 && first <= last).then_some((first, last, flags))
}

/// Merges ranges that overlap.
fn merged(mut ranges: Vec<(u64, u64)>) -> Vec<Chunk> {
    ranges.sort_unstable();
    let mut chunks: Vec<Chunk> = Vec::new();
    for (first, last) in ranges {
        match chunks.last_mut() {
            Some(before) if first < before.end() => {
                before.size = before.size.max(last - before.start + 1);
            }
            _ => chunks.push(Chunk {
                start: first,
                size: last - first + 1,
            }),
        }
    }
    chunks
}

/// Whether a reset method is enabled: `reset_method` lists the enabled ones, and kernels before
/// 5.15 do not have it.
fn has_reset(root: &Root, folder: &str) -> bool {
    let methods = root.text(&format!("{folder}/reset_method"));
    root.exists(&format!("{folder}/reset"))
        && methods.map_or(true, |methods| !methods.trim().is_empty())
}

fn neighbours(root: &Root, address: PciAddress) -> Vec<String> {
    let (own, prefix) = (address.to_string(), address.bus_prefix());
    let mut names = root.names(DEVICES);
    names.retain(|name| name.starts_with(&prefix) && *name != own);
    names
}

fn has_messages(config: &[u8]) -> bool {
    capabilities(config).any(|(id, _)| matches!(id, MSI | MSI_X))
}

/// Ids and offsets of the capabilities.
pub(super) fn capabilities(config: &[u8]) -> impl Iterator<Item = (u8, usize)> + '_ {
    let byte = |at: usize| config.get(at).copied().unwrap_or_default();
    let next = move |at: usize| Some(usize::from(byte(at) & !3)).filter(|at| *at >= 0x40);
    let offsets = std::iter::successors(next(CAPABILITIES_OFFSET), move |at| next(at + 1));
    // Bounds the list by the size of the configuration space.
    offsets.take(48).map(move |at| (byte(at), at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_ranges_are_merged() {
        let chunk = |start, size| Chunk { start, size };
        let found = merged(vec![
            (0x9000, 0x9fff),
            (0x1000, 0x1fff),
            (0x1000, 0x4fff),
            (0x5000, 0x5fff),
        ]);
        assert_eq!(
            found,
            [
                chunk(0x1000, 0x4000),
                chunk(0x5000, 0x1000),
                chunk(0x9000, 0x1000)
            ]
        );
    }

    #[test]
    fn capabilities_are_followed_and_a_loop_ends() {
        let mut config = vec![0; 256];
        (config[0x34], config[0x40], config[0x41]) = (0x40, 0x01, 0x50);
        assert!(!has_messages(&config));
        config[0x50] = MSI_X;
        assert!(has_messages(&config));
        (config[0x50], config[0x51]) = (0x10, 0x40);
        assert!(!has_messages(&config));
        assert!(!has_messages(&[]));
    }

    #[test]
    fn resources_without_a_place_do_not_count() {
        assert_eq!(
            resource("0x0000000000000000 0x0000000000003fff 0x0000000000140204"),
            None
        );
        let line = "0x00000000fe800000 0x00000000fe803fff 0x0000000000140204";
        assert_eq!(resource(line), Some((0xfe80_0000, 0xfe80_3fff, 0x14_0204)));
    }
}
