//! What a loader must know of a kernel image, whatever its format.

use crate::{bytes, bzimage, elf, payload};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use thiserror::Error;

/// Format of a kernel image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// The boot protocol's format: a real-mode part, then a protected-mode part that unpacks the kernel.
    BzImage,
    /// The kernel itself, unpacked: an ELF executable.
    Elf,
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

/// Why a kernel image was refused.
#[derive(Debug, Error)]
pub enum ImageError {
    /// Not a kernel at all.
    #[error(
        "the file is neither a bzImage nor an ELF vmlinux for x86-64; give a kernel such as /boot/vmlinuz-<release>"
    )]
    NotAKernel,
    /// The file ends early.
    #[error(
        "the kernel is truncated: its {what} needs {needed} bytes, the file has {size}; copy or install the kernel anew"
    )]
    Truncated {
        /// What lies, in part, beyond the end.
        what: &'static str,
        /// Size in bytes that the file should have at least.
        needed: u64,
        /// Size in bytes that it has.
        size: u64,
    },
    /// Boot protocol before 2.12, which first told of 64-bit entries.
    #[error(
        "the kernel speaks boot protocol {}.{:02}, at least 2.12 (Linux 3.8) is needed; use a newer kernel",
        version >> 8,
        version & 0xff
    )]
    OldProtocol {
        /// Its version: major in the high byte, minor in the low.
        version: u16,
    },
    /// The kernel was configured in a way that keeps it from being started by us.
    #[error(
        "the kernel {what}; use one that was built with CONFIG_X86_64 and CONFIG_RELOCATABLE, as Debian's are"
    )]
    Unsuitable {
        /// What it is or lacks, as the end of a sentence.
        what: &'static str,
    },
    /// A field has a value that no kernel build gives.
    #[error("the kernel is damaged: {what}; copy or install the kernel anew")]
    Malformed {
        /// What is wrong, as the end of a sentence.
        what: &'static str,
    },
    /// The kernel is packed in a way that is not known.
    #[error(
        "the kernel is packed with {0}; known are gzip, bzip2, lzma, xz, lz4 and zstd: \
         use a kernel built with one of them, as Debian's are, or give its vmlinux"
    )]
    UnknownCompression(&'static str),
    /// The packed kernel cannot be unpacked.
    #[error(
        "the kernel's {compression} data cannot be unpacked: {source}; copy or install the kernel anew"
    )]
    Unpack {
        /// Name of the compression.
        compression: &'static str,
        /// What the decoder says.
        source: std::io::Error,
    },
    /// The ELF structure does not hold together.
    #[error("the kernel's ELF structure is damaged: {0}; copy or install the kernel anew")]
    Elf(#[from] object::read::Error),
}

/// Reads what a loader must know of a kernel image: a bzImage or an ELF `vmlinux`, told apart by content.
///
/// # Errors
/// [`ImageError`] when the file is no kernel, is damaged, or cannot be started in 64-bit mode at an address of the
/// loader's choice. A file that was inspected without error can be placed by copying its segments.
pub fn inspect(file: &[u8]) -> Result<Loadable, ImageError> {
    if elf::is_elf(file) {
        elf::inspect(file)
    } else {
        bzimage::Header::parse(file)?.loadable()
    }
}

/// The ELF file `vmlinux`: `file` itself if it is one, else what a bzImage carries, unpacked.
///
/// After the ELF file's own bytes may follow the table of relocations that the bzImage's decompressor uses.
///
/// # Errors
/// [`ImageError`] when the file is no kernel, is damaged, is packed with something other than gzip, bzip2, lzma,
/// xz, lz4 or zstd, or would be larger than any kernel can be.
pub fn vmlinux(file: &[u8]) -> Result<Cow<'_, [u8]>, ImageError> {
    let elf = if elf::is_elf(file) {
        Cow::Borrowed(file)
    } else {
        payload::unpack(bzimage::Header::parse(file)?.payload()?)?
    };
    elf::Vmlinux::parse(&elf)?;
    Ok(elf)
}

/// Longest release that a kernel can have: `__NEW_UTS_LEN` of include/uapi/linux/utsname.h.
const RELEASE_MAX: usize = 64;

/// The release at the beginning of `text`: its first word.
pub(crate) fn leading_release(text: &[u8]) -> Result<String, ImageError> {
    let word = text
        .iter()
        .take(RELEASE_MAX + 1)
        .take_while(|byte| byte.is_ascii_graphic());
    let release: String = word.map(|&byte| char::from(byte)).collect();
    if release.is_empty() || release.len() > RELEASE_MAX {
        return Err(ImageError::Malformed {
            what: "it does not tell its release",
        });
    }
    Ok(release)
}

/// The part `start..start + size` of `file`, or the error that tells which part is missing.
pub(crate) fn part<'a>(
    file: &'a [u8],
    what: &'static str,
    start: u64,
    size: u64,
) -> Result<&'a [u8], ImageError> {
    let end = start.saturating_add(size);
    let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    range
        .and_then(|(start, end)| file.get(start..end))
        .ok_or(ImageError::Truncated {
            what,
            needed: end,
            size: bytes::length(file),
        })
}
