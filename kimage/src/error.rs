//! Why a kernel image is refused.

use thiserror::Error;

/// Why a kernel image was refused.
#[derive(Debug, Error)]
pub enum ImageError {
    /// Not a kernel.
    #[error(
        "the file is neither a bzImage nor an ELF vmlinux for x86-64; use a kernel such as \
         /boot/vmlinuz-<release>"
    )]
    NotAKernel,
    /// The file is truncated.
    #[error(
        "the kernel is truncated: its {what} needs {needed} bytes, the file has {size}; copy or \
         install the kernel again"
    )]
    Truncated {
        /// The part that extends beyond the end.
        what: &'static str,
        /// Least size of the file in bytes.
        needed: u64,
        /// Its actual size in bytes.
        size: u64,
    },
    /// Boot protocol before 2.12, the first with flags for 64-bit entries.
    #[error(
        "the kernel has boot protocol {}.{:02}, at least 2.12 (Linux 3.8) is needed; use a newer \
         kernel",
        version >> 8,
        version & 0xff
    )]
    OldProtocol {
        /// Its version: major in the high byte, minor in the low.
        version: u16,
    },
    /// The kernel's configuration does not allow starting it.
    #[error(
        "the kernel {what}; use one built with CONFIG_X86_64 and CONFIG_RELOCATABLE, like Debian's"
    )]
    Unsuitable {
        /// What it is or lacks, as the end of a sentence.
        what: &'static str,
    },
    /// A field has a value that no kernel build produces.
    #[error("the kernel is damaged: {what}; copy or install the kernel again")]
    Malformed {
        /// The error, as the end of a sentence.
        what: &'static str,
    },
    /// The kernel has an unsupported compression.
    #[error(
        "the kernel is compressed with {0}; supported are gzip, bzip2, lzma, xz, lz4 and zstd: \
         use a kernel built with one of them, like Debian's, or its vmlinux"
    )]
    UnknownCompression(&'static str),
    /// The compressed kernel is damaged.
    #[error(
        "the kernel's {compression} data cannot be decompressed: {source}; copy or install the \
         kernel again"
    )]
    Unpack {
        /// Name of the compression.
        compression: &'static str,
        /// The decoder's error.
        source: std::io::Error,
    },
    /// The ELF structure is inconsistent.
    #[error("the kernel's ELF structure is damaged: {0}; copy or install the kernel again")]
    Elf(#[from] object::read::Error),
}
