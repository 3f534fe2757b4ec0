//! What a loader reads from a kernel's setup header.
//!
//! Source: the kernel's Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header". Offsets are those in
//! `struct boot_params` (arch/x86/include/uapi/asm/bootparam.h), where the header begins at 0x1f1.

use crate::LayoutError;

/// Where the header begins in `struct boot_params`.
pub(crate) const HEADER: usize = 0x1f1;
/// Where it must end, at the latest.
const HEADER_LIMIT: usize = 0x290;
/// End of the last field that is read or written here, `init_size`.
const HEADER_LEAST: usize = 0x264;

const MAGIC: usize = 0x202;
const CMDLINE_SIZE: usize = 0x238;
const PREF_ADDRESS: usize = 0x258;

/// A kernel's setup header, found long enough to be read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SetupHeader<'a> {
    bytes: &'a [u8],
}

impl<'a> SetupHeader<'a> {
    /// Takes the header as [`kimage::Loadable`] has it.
    pub(crate) fn of(kernel: &'a kimage::Loadable) -> Result<Self, LayoutError> {
        let bytes = kernel.setup_header.as_slice();
        let header = SetupHeader { bytes };
        let end = HEADER + bytes.len();
        if !(HEADER_LEAST..=HEADER_LIMIT).contains(&end) || header.field(MAGIC) != *b"HdrS" {
            return Err(LayoutError::BadKernel {
                what: "its setup header is none",
            });
        }
        Ok(header)
    }

    /// All of it.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Longest command line that the kernel takes, in bytes without the terminating NUL.
    pub(crate) fn command_line_max(&self) -> usize {
        u32::from_le_bytes(self.field(CMDLINE_SIZE)) as usize
    }

    /// Lowest address to load it at: from a lower one it would move up to this, over what is there.
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
