//! The bzImage format: Documentation/arch/x86/boot.rst of the kernel, "The Real-Mode Kernel Header"
//! and "64-bit Boot Protocol". Offsets below are those of its table.

use crate::bytes::{length, u16_at, u32_at};
use crate::error::ImageError;
use crate::loadable::{Format, Loadable, Segment};
use crate::part::{leading_release, part};

/// Unit of the real-mode part's size.
const SECTOR: u64 = 512;
/// Offset of the setup header in the file and in `struct boot_params`.
pub(crate) const SETUP_HEADER: usize = 0x1f1;
/// `boot_flag` of every bootable image.
pub(crate) const BOOT_FLAG: u16 = 0xaa55;
/// `header`: the magic number that tells a kernel from a boot sector.
pub(crate) const MAGIC: [u8; 4] = *b"HdrS";
/// Oldest protocol version with `xloadflags`.
const OLDEST_VERSION: u16 = 0x020c;
/// End of `init_size`, the last header field needed here.
const NEEDED_END: usize = 0x264;
/// Start of `edd_mbr_sig_buffer`, the field of `struct boot_params` after the setup header.
const SETUP_HEADER_END_MAX: usize = 0x290;
/// The 64-bit entry point, from the start of the protected-mode part.
const ENTRY_64: u64 = 0x200;

/// `loadflags`: the protected-mode part is loaded to high memory (a bzImage, not a zImage).
pub(crate) const LOADED_HIGH: u8 = 1 << 0;
/// `xloadflags`: there is a 64-bit entry point.
pub(crate) const XLF_KERNEL_64: u16 = 1 << 0;
/// `xloadflags`: kernel, boot_params, command line and initrd may lie above 4 GiB.
pub(crate) const XLF_CAN_BE_LOADED_ABOVE_4G: u16 = 1 << 1;

/// A bzImage whose header and size have been checked.
pub(crate) struct Header<'a> {
    file: &'a [u8],
    /// End of the setup header in the file.
    setup_header_end: usize,
    /// Start of the protected-mode part in the file.
    protected_mode_start: u64,
    /// Size of the protected-mode part in bytes.
    protected_mode_size: u64,
}

impl<'a> Header<'a> {
    /// Checks that `file` is a complete bzImage with a 64-bit entry point.
    pub(crate) fn parse(file: &'a [u8]) -> Result<Self, ImageError> {
        if u16_at(file, 0x1fe) != Some(BOOT_FLAG) || file.get(0x202..0x206) != Some(&MAGIC[..]) {
            return Err(ImageError::NotAKernel);
        }
        let header = part(file, "header", 0, NEEDED_END as u64)?;
        let version = u16_at(header, 0x206).unwrap_or_default();
        if version < OLDEST_VERSION {
            return Err(ImageError::OldProtocol { version });
        }
        // The byte at 0x201 is the operand of the jump over the header, which gives its end,
        // counted from 0x202.
        let setup_header_end = 0x202 + usize::from(header[0x201]);
        if !(NEEDED_END..=SETUP_HEADER_END_MAX).contains(&setup_header_end) {
            return Err(ImageError::Malformed {
                what: "its setup header has a wrong size",
            });
        }
        // Zero means four: boot.rst, for very old images.
        let setup_sectors = match header[SETUP_HEADER] {
            0 => 4,
            sectors => u64::from(sectors),
        };
        let protected_mode_start = (setup_sectors + 1) * SECTOR;
        let protected_mode_size = 16 * u64::from(u32_at(header, 0x1f4).unwrap_or_default());
        if setup_header_end as u64 > protected_mode_start || protected_mode_size <= ENTRY_64 {
            return Err(ImageError::Malformed {
                what: "its parts are too small",
            });
        }
        part(
            file,
            "protected-mode part",
            protected_mode_start,
            protected_mode_size,
        )?;
        Ok(Self {
            file,
            setup_header_end,
            protected_mode_start,
            protected_mode_size,
        })
    }

    /// What a loader needs to know.
    pub(crate) fn loadable(&self) -> Result<Loadable, ImageError> {
        self.check_flags()?;
        let alignment = u64::from(self.u32(0x230));
        if !alignment.is_power_of_two() || alignment < 4096 {
            return Err(ImageError::Malformed {
                what: "its alignment is not a power of two",
            });
        }
        Ok(Loadable {
            format: Format::BzImage,
            release: self.release()?,
            setup_header: self.file[SETUP_HEADER..self.setup_header_end].to_vec(),
            entry_offset: ENTRY_64,
            alignment,
            footprint: u64::from(self.u32(0x260)).max(self.protected_mode_size),
            segments: vec![Segment {
                file_offset: self.protected_mode_start,
                load_offset: 0,
                size: self.protected_mode_size,
            }],
        })
    }

    /// The compressed kernel: `payload_offset` and `payload_length` of the header.
    pub(crate) fn payload(&self) -> Result<&'a [u8], ImageError> {
        let offset = u64::from(self.u32(0x248));
        let size = u64::from(self.u32(0x24c));
        if size == 0 || offset + size > self.protected_mode_size {
            return Err(ImageError::Malformed {
                what: "its payload is outside of it",
            });
        }
        part(
            self.file,
            "payload",
            self.protected_mode_start + offset,
            size,
        )
    }

    fn check_flags(&self) -> Result<(), ImageError> {
        let unsuitable = |what| Err(ImageError::Unsuitable { what });
        let xloadflags = u16_at(self.file, 0x236).unwrap_or_default();
        if xloadflags & XLF_KERNEL_64 == 0 {
            return unsuitable("has no 64-bit entry point");
        }
        if self.file[0x234] == 0 || xloadflags & XLF_CAN_BE_LOADED_ABOVE_4G == 0 {
            return unsuitable("cannot be loaded at any address");
        }
        if self.file[0x211] & LOADED_HIGH == 0 {
            return unsuitable("is a zImage");
        }
        Ok(())
    }

    /// `kernel_version` plus 0x200 is the offset of a line whose first word is the release.
    fn release(&self) -> Result<String, ImageError> {
        let pointer = usize::from(u16_at(self.file, 0x20e).unwrap_or_default());
        let real_mode_part = &self.file[..self.protected_mode_start as usize];
        let text = if pointer == 0 {
            None
        } else {
            real_mode_part.get(pointer + 0x200..)
        };
        leading_release(text.unwrap_or_default())
    }

    /// A field of the header, which `parse` has checked to be complete.
    fn u32(&self, offset: usize) -> u32 {
        debug_assert!(offset + 4 <= NEEDED_END && length(self.file) >= NEEDED_END as u64);
        u32_at(self.file, offset).unwrap_or_default()
    }
}
