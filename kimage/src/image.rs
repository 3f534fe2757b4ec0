//! A kernel image, whatever its format.

use crate::error::ImageError;
use crate::loadable::Loadable;
use crate::{bzimage, elf, payload};
use std::borrow::Cow;

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
