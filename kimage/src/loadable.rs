//! What a loader must know of a kernel image, whatever its format.

use serde::{Deserialize, Serialize};

/// Format of a kernel image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// The boot protocol's format: a real-mode part, then a protected-mode part that unpacks the kernel.
    BzImage,
    /// The kernel itself, unpacked: an ELF executable.
    Elf,
    /// Insula's own lightweight kernel: the same kind of file.
    Lwk,
}

/// A piece of the file and where it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Where it begins in the file, in bytes.
    pub file_offset: u64,
    /// Where it goes, in bytes from the load address.
    pub load_offset: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// What a loader must know to place a kernel in memory and enter it in 64-bit mode.
///
/// The load address is the loader's choice, a multiple of [`alignment`](Self::alignment), at any height.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loadable {
    /// Format of the file that was inspected.
    pub format: Format,
    /// The kernel's release, as `uname -r` prints it on it.
    pub release: String,
    /// The setup header: what the boot protocol says to copy to offset 0x1f1 of `struct boot_params`
    /// ("64-bit boot protocol" in the kernel's Documentation/arch/x86/boot.rst). A bzImage brings its own; for an
    /// ELF file, which has none, a minimal one is made that says the same things.
    pub setup_header: Vec<u8>,
    /// The 64-bit entry point, in bytes from the load address.
    pub entry_offset: u64,
    /// Alignment that the load address needs, in bytes; a power of two.
    pub alignment: u64,
    /// Bytes from the load address on that must be free RAM; whatever [`segments`](Self::segments) leave of
    /// them must be zero for an ELF file and may be anything for a bzImage.
    pub footprint: u64,
    /// The pieces to copy, ascending, none overlapping another, all within the footprint.
    pub segments: Vec<Segment>,
}
