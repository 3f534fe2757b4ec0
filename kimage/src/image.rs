//! Kernel images of any format.

use crate::error::ImageError;
use crate::loadable::Loadable;
use crate::{bzimage, elf, payload};
use std::borrow::Cow;

/// Reads what a loader needs to know of a kernel image: a bzImage or an ELF `vmlinux`,
/// distinguished by content.
///
/// # Errors
/// [`ImageError`] when the file is not a kernel, is damaged, or cannot be started in 64-bit mode at
/// an address of the loader's choice. Without error, the kernel can be loaded by copying its
/// segments.
pub fn inspect(file: &[u8]) -> Result<Loadable, ImageError> {
    if elf::is_elf(file) {
        elf::inspect(file)
    } else {
        bzimage::Header::parse(file)?.loadable()
    }
}

/// The ELF file `vmlinux`: `file` itself if it is one, else the decompressed payload of a bzImage.
///
/// The ELF file's own bytes may be followed by the relocation table for the bzImage's decompressor.
///
/// # Errors
/// [`ImageError`] when the file is not a kernel, is damaged, has a compression other than gzip,
/// bzip2, lzma, xz, lz4 or zstd, or would be larger than any kernel.
pub fn vmlinux(file: &[u8]) -> Result<Cow<'_, [u8]>, ImageError> {
    let elf = if elf::is_elf(file) {
        Cow::Borrowed(file)
    } else {
        payload::unpack(bzimage::Header::parse(file)?.payload()?)?
    };
    elf::Vmlinux::parse(&elf)?;
    Ok(elf)
}
