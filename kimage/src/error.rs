//! Why a kernel image is refused.

use thiserror::Error;

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
