//! PCI functions that the testbed itself does not use, behind ports: to be given to nodes, or to be
//! refused.
//!
//! | address | what |
//! |---|---|
//! | 0000:01:00.0 | an NVMe controller with a disk of its own |
//! | 0000:02:00.0 | a virtio network card; QEMU itself, at 10.0.2.2, is the only peer and serves a file by TFTP |
//! | 0000:03:00.0, 0000:03:00.1 | two random number generators, which share a bus |
//! | 0000:04:00.0 | a device without MSI |
//! | 0000:05:00.0, 0000:06:00.0 | two virtio network cards, each the only peer of the other |

use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Size of the disk, in bytes. It is sparse.
pub(super) const DISK_BYTES: u64 = 128 << 20;
/// Size of the served file, in bytes.
const SERVED_BYTES: usize = 256 << 10;
/// Name of the served file.
pub const SERVED_FILE: &str = "served";

/// Spare devices of a machine, and what stands between them and its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpareDevices {
    /// None.
    #[default]
    None,
    /// Present, without an IOMMU.
    Plain,
    /// Behind an IOMMU (Intel's) that does not remap interrupts.
    BehindIommu,
    /// Behind an IOMMU that remaps interrupts as well.
    BehindRemapping,
    /// The same, and the base's kernel uses x2APIC mode, since interrupts are remapped to APIC ids
    /// of 32 bits, too. By TCG only with [`Emulator::Backports`](super::Emulator::Backports).
    BehindX2apic,
}

/// The text names no kind.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` are no spare devices; there are none, plain, iommu, remapping and x2apic")]
pub struct UnknownSpareDevices(String);

impl SpareDevices {
    const ALL: [Self; 5] = [
        Self::None,
        Self::Plain,
        Self::BehindIommu,
        Self::BehindRemapping,
        Self::BehindX2apic,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Plain => "plain",
            Self::BehindIommu => "iommu",
            Self::BehindRemapping => "remapping",
            Self::BehindX2apic => "x2apic",
        }
    }

    /// Arguments for QEMU that must precede all devices: an IOMMU only serves those that come after
    /// it.
    pub(super) fn iommu(self) -> Vec<String> {
        let words: &[&str] = match self {
            Self::None | Self::Plain => &[],
            Self::BehindIommu => &["-device", "intel-iommu,intremap=off"],
            Self::BehindRemapping => &["-device", "intel-iommu,intremap=on"],
            Self::BehindX2apic => &["-device", "intel-iommu,intremap=on,eim=on"],
        };
        words.iter().copied().map(str::to_owned).collect()
    }

    /// Arguments for QEMU: the devices, with an existing disk and folder.
    pub(super) fn words(self, disk: &Path, served: &Path) -> Vec<String> {
        if self == Self::None {
            return Vec::new();
        }
        // A comma would end the value, unless doubled.
        let text = |path: &Path| path.to_string_lossy().replace(',', ",,");
        let through_iommu = match self {
            Self::Plain | Self::None => "off",
            Self::BehindIommu | Self::BehindRemapping | Self::BehindX2apic => "on",
        };
        let device = |words: &str| ["-device".to_owned(), words.to_owned()];
        let port = |number: u32| {
            device(&format!(
                "pcie-root-port,id=port{number},chassis={number},slot={number}"
            ))
        };
        let drive = format!("if=none,id=spare,format=raw,file={}", text(disk));
        let netdev = |words: String| ["-netdev".to_owned(), words];
        let network = format!("user,id=spare-net,restrict=on,tftp={}", text(served));
        let hub_port = |name: &str| netdev(format!("hubport,hubid=1,id={name}"));
        let card = |port: u32, name: &str| {
            let words = format!("virtio-net-pci,bus=port{port},netdev={name},romfile=");
            device(&format!("{words},iommu_platform={through_iommu}"))
        };
        [
            port(1),
            port(2),
            port(3),
            port(4),
            port(5),
            port(6),
            ["-drive".to_owned(), drive],
            device("nvme,bus=port1,serial=spare,drive=spare"),
            netdev(network),
            hub_port("pair-one"),
            hub_port("pair-two"),
            // Takes all packets, so that none of the pair waits for the other: nobody may drive that.
            hub_port("pair-sink"),
            card(2, "spare-net"),
            card(5, "pair-one"),
            card(6, "pair-two"),
            device("virtio-rng-pci,bus=port3,addr=0.0,multifunction=on"),
            device("virtio-rng-pci,bus=port3,addr=0.1"),
            device("pci-testdev,bus=port4"),
        ]
        .concat()
    }
}

/// Content of the served file: the same on each machine, and no two blocks alike.
pub fn served_content() -> Vec<u8> {
    // A xorshift generator (Marsaglia, "Xorshift RNGs", 2003).
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..SERVED_BYTES / 8).flat_map(|_| next()).collect()
}

impl fmt::Display for SpareDevices {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for SpareDevices {
    type Err = UnknownSpareDevices;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| UnknownSpareDevices(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for kind in SpareDevices::ALL {
            assert_eq!(kind.name().parse::<SpareDevices>().unwrap(), kind);
        }
        assert!("many".parse::<SpareDevices>().is_err());
    }

    #[test]
    fn blocks_of_the_served_file_differ() {
        let content = served_content();
        let blocks: std::collections::BTreeSet<_> = content.chunks(512).collect();
        assert_eq!(blocks.len(), SERVED_BYTES / 512);
    }
}
