//! What a loader needs to know of a kernel image of any format.

use serde::{Deserialize, Serialize};

/// Format of a kernel image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
