//! A kernel's setup header.
//!
//! Source: the kernel's Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header". Offsets are
//! those in `struct boot_params` (arch/x86/include/uapi/asm/bootparam.h), where the header starts
//! at 0x1f1.

use crate::LayoutError;

/// Offset of the header in `struct boot_params`.
pub(crate) const HEADER: usize = 0x1f1;
/// Maximum end of the header.
const HEADER_LIMIT: usize = 0x290;
/// Minimum end of the header: behind `init_size`, the last field used here.
const HEADER_MIN: usize = 0x264;

const MAGIC: usize = 0x202;
const CMDLINE_SIZE: usize = 0x238;
const PREF_ADDRESS: usize = 0x258;

/// A kernel's setup header, checked for length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SetupHeader<'a> {
    bytes: &'a [u8],
}

impl<'a> SetupHeader<'a> {
    /// The header of a [`kimage::Loadable`].
    pub(crate) fn of(kernel: &'a kimage::Loadable) -> Result<Self, LayoutError> {
        let bytes = kernel.setup_header.as_slice();
        let header = SetupHeader { bytes };
        let end = HEADER + bytes.len();
        if !(HEADER_MIN..=HEADER_LIMIT).contains(&end) || header.field(MAGIC) != *b"HdrS" {
            return Err(LayoutError::InvalidKernel {
                what: "its setup header is invalid",
            });
        }
        Ok(header)
    }

    /// The header's bytes.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Maximum length of the command line, in bytes without the terminating NUL.
    pub(crate) fn command_line_max(&self) -> usize {
        u32::from_le_bytes(self.field(CMDLINE_SIZE)) as usize
    }

    /// Lowest load address: from a lower one the kernel would relocate itself to this one, over
    /// other contents.
    pub(crate) fn load_address_min(&self) -> u64 {
        u64::from_le_bytes(self.field(PREF_ADDRESS))
    }

    fn field<const N: usize>(&self, offset: usize) -> [u8; N] {
        let start = offset - HEADER;
        let bytes = self.bytes.get(start..start + N);
        bytes
            .and_then(|field| field.try_into().ok())
            .unwrap_or([0; N])
    }
}
