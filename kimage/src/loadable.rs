//! What a loader needs to know of a kernel image of any format.

use serde::{Deserialize, Serialize};

/// Format of a kernel image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum Format {
    /// The boot protocol's format: a real-mode part, then a protected-mode part that decompresses
    /// the kernel.
    BzImage,
    /// The kernel itself, decompressed: an ELF executable.
    Elf,
    /// Insula's lightweight kernel, also an ELF executable.
    Lwk,
}

/// A part of the file and its place in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Segment {
    /// Offset in the file, in bytes.
    pub file_offset: u64,
    /// Offset from the load address, in bytes.
    pub load_offset: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// What a loader needs to know to load a kernel and enter it in 64-bit mode.
///
/// The loader chooses the load address, a multiple of [`alignment`](Self::alignment), anywhere in
/// memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loadable {
    /// Format of the inspected file.
    pub format: Format,
    /// The kernel's release, as `uname -r` prints it.
    pub release: String,
    /// The setup header, which the boot protocol requires at offset 0x1f1 of `struct boot_params`
    /// ("64-bit boot protocol" in the kernel's Documentation/arch/x86/boot.rst). A bzImage has its
    /// own; for an ELF file, which has none, a minimal equivalent is generated.
    pub setup_header: Vec<u8>,
    /// Offset of the 64-bit entry point from the load address, in bytes.
    pub entry_offset: u64,
    /// Alignment of the load address in bytes; a power of two.
    pub alignment: u64,
    /// Bytes from the load address that must be free RAM; those not covered by
    /// [`segments`](Self::segments) must be zero for an ELF file and may be anything for a bzImage.
    pub footprint: u64,
    /// The segments to copy, in ascending order, disjoint, all within the footprint.
    pub segments: Vec<Segment>,
}

/// Largest kernel that is taken for one: it must fit in the 2 GiB that the kernel's code reaches.
const FOOTPRINT_MAX: u64 = 2 << 30;

impl Loadable {
    /// Whether what its fields promise is so: for one that was read from a file, not from a kernel.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let mut end = 0;
        let in_order = self.segments.iter().all(|segment| {
            let follows = segment.load_offset >= end;
            let Some(after) = segment.load_offset.checked_add(segment.size) else {
                return false;
            };
            end = after;
            follows && end <= self.footprint
        });
        in_order
            && self.footprint <= FOOTPRINT_MAX
            && self.entry_offset < self.footprint
            && self.alignment.is_power_of_two()
            && self.alignment <= FOOTPRINT_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loadable(segments: &[(u64, u64)]) -> Loadable {
        let segment = |&(load_offset, size)| Segment {
            file_offset: 0,
            load_offset,
            size,
        };
        Loadable {
            format: Format::Elf,
            release: String::new(),
            setup_header: Vec::new(),
            entry_offset: 0x10,
            alignment: 2 << 20,
            footprint: 0x5000,
            segments: segments.iter().map(segment).collect(),
        }
    }

    #[test]
    fn segments_are_in_order_and_within_the_footprint() {
        assert!(loadable(&[(0, 0x1000), (0x1000, 0x4000)]).is_valid());
        assert!(!loadable(&[(0, 0x5001)]).is_valid());
        assert!(!loadable(&[(0x1000, 0x1000), (0, 0x1000)]).is_valid());
        assert!(!loadable(&[(u64::MAX, 2)]).is_valid());
    }

    #[test]
    fn other_fields_are_checked() {
        let changed = |change: fn(&mut Loadable)| {
            let mut loadable = loadable(&[(0, 0x1000)]);
            change(&mut loadable);
            loadable.is_valid()
        };
        assert!(!changed(|one| one.entry_offset = 0x5000));
        assert!(!changed(|one| one.alignment = 3));
        assert!(!changed(|one| one.alignment = 1 << 63));
        assert!(!changed(|one| one.footprint = 1 << 40));
    }
}
