//! What must be known of an image to read its kernel's log.

use super::liveness::LivenessLayout;
use super::lwk;
use super::placement::Placement;
use crate::btf::{Btf, BtfError, LookupError};
use crate::elf::Vmlinux;
use crate::error::ImageError;
use crate::symbols::{SymbolError, Symbols};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest `linux_banner` that is compared: Debian's have 200 bytes.
const BANNER_MAX: usize = 512;

/// Why the layout of a kernel's log cannot be read from its image.
#[derive(Debug, Error)]
pub enum LayoutError {
    /// The file is not a `vmlinux`.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Its symbols cannot be read.
    #[error(transparent)]
    Symbols(#[from] SymbolError),
    /// Its type information cannot be read.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// It has no such symbol.
    #[error(
        "the kernel has no symbol {0}: its log cannot be read; use one built with \
         CONFIG_KALLSYMS_ALL"
    )]
    NoSymbol(&'static str),
    /// Its types are not those of a supported log.
    #[error("{0}: its log cannot be read; use one of Linux 5.10 to 6.12")]
    Type(#[from] LookupError),
    /// The banner is not at its symbol.
    #[error("the kernel's banner is missing; copy or install the kernel again")]
    NoBanner,
}

/// What must be known of an image to read its kernel's log: a few addresses and offsets.
///
/// Meant to be stored with the image, so that reading a log needs neither the image nor its
/// symbols.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLayout {
    /// Link addresses of the image's start and end.
    pub(super) text: u64,
    pub(super) end: u64,
    /// Link address and text of `linux_banner`.
    pub(super) banner_address: u64,
    pub(super) banner: String,
    /// Link address of `prb`, the pointer to the ring in use.
    pub(super) prb: u64,
    /// Link addresses of the rings that it may point to.
    pub(super) rings: Vec<u64>,
    /// Link address of `panic_cpu`.
    pub(super) panic_cpu: u64,
    /// Link address of `page_offset_base`, the variable with the start of the direct map.
    pub(super) page_offset_base: Option<u64>,
    pub(super) structures: Structures,
    /// Where the kernel's liveness is read; `None` for kernels that do not show it.
    #[serde(default)]
    pub(super) liveness: Option<LivenessLayout>,
}

/// Offsets and sizes in bytes, by the kernel's own names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Structures {
    /// `struct printk_ringbuffer`.
    pub(super) ring_size: usize,
    pub(super) count_bits: usize,
    pub(super) descs: usize,
    pub(super) infos: usize,
    pub(super) tail_id: usize,
    pub(super) head_id: usize,
    pub(super) size_bits: usize,
    pub(super) data: usize,
    /// `struct prb_desc`.
    pub(super) desc_size: usize,
    pub(super) state_var: usize,
    pub(super) begin: usize,
    pub(super) next: usize,
    /// `struct printk_info`.
    pub(super) info_size: usize,
    pub(super) seq: usize,
    pub(super) ts_nsec: usize,
    pub(super) text_len: usize,
    pub(super) facility: usize,
    pub(super) caller_id: usize,
    /// `level`: offset and size in bits.
    pub(super) level_bit: usize,
    pub(super) level_bits: usize,
}

impl LogLayout {
    /// The link addresses of the image, from `_text` to `_end`.
    pub(crate) fn image(&self) -> std::ops::Range<u64> {
        self.text..self.end
    }

    /// The placement of a kernel of this layout whose image is at these physical and virtual
    /// addresses; `None` if none can be there.
    #[must_use]
    pub fn placement(&self, physical: u64, address: u64) -> Option<Placement> {
        let virtual_offset = address.checked_sub(self.text)?;
        Some(Placement {
            physical,
            virtual_offset,
        })
    }

    /// Reads the layout from the ELF file `vmlinux` (see [`vmlinux`](crate::vmlinux)).
    ///
    /// # Errors
    /// [`LayoutError`] when the file is not a `vmlinux`, has no symbols or type information, or has
    /// an unknown kind of log.
    pub fn from_vmlinux(vmlinux: &[u8]) -> Result<Self, LayoutError> {
        if let Some(layout) = lwk::layout(vmlinux)? {
            return Ok(layout);
        }
        let symbols = Symbols::from_vmlinux(vmlinux)?;
        let btf = Btf::from_vmlinux(vmlinux)?;
        let address = |name| symbols.address(name).ok_or(LayoutError::NoSymbol(name));
        let banner_address = address("linux_banner")?;
        Ok(Self {
            text: address("_text")?,
            end: address("_end")?,
            banner_address,
            banner: banner(vmlinux, banner_address)?,
            prb: address("prb")?,
            rings: vec![address("printk_rb_static")?, address("printk_rb_dynamic")?],
            panic_cpu: address("panic_cpu")?,
            page_offset_base: symbols.address("page_offset_base"),
            structures: Structures::from_btf(&btf)?,
            liveness: LivenessLayout::find(&symbols, &btf),
        })
    }
}

impl Structures {
    fn from_btf(btf: &Btf) -> Result<Self, LookupError> {
        let size = |structure: &str| Ok(btf.size_of(structure)? as usize);
        let offset = |structure: &str, member: &str| Ok(btf.offset_of(structure, member)? as usize);
        let ring = |member| offset("printk_ringbuffer", member);
        let desc = |member| offset("prb_desc", member);
        let info = |member| offset("printk_info", member);
        // (Addresses have 64 bits wherever this runs: the casts below do not truncate.)
        let level = btf.field("printk_info", "level")?;
        Ok(Self {
            ring_size: size("printk_ringbuffer")?,
            count_bits: ring("desc_ring.count_bits")?,
            descs: ring("desc_ring.descs")?,
            infos: ring("desc_ring.infos")?,
            tail_id: ring("desc_ring.tail_id")?,
            head_id: ring("desc_ring.head_id")?,
            size_bits: ring("text_data_ring.size_bits")?,
            data: ring("text_data_ring.data")?,
            desc_size: size("prb_desc")?,
            state_var: desc("state_var")?,
            begin: desc("text_blk_lpos.begin")?,
            next: desc("text_blk_lpos.next")?,
            info_size: size("printk_info")?,
            seq: info("seq")?,
            ts_nsec: info("ts_nsec")?,
            text_len: info("text_len")?,
            facility: info("facility")?,
            caller_id: info("caller_id")?,
            level_bit: level.bit_offset as usize,
            level_bits: level.bit_size as usize,
        })
    }
}

/// The text of the kernel's banner at link address `address`.
pub(super) fn banner(vmlinux: &[u8], address: u64) -> Result<String, LayoutError> {
    let image = Vmlinux::parse(vmlinux)?;
    let bytes = image.bytes_from(address).ok_or(LayoutError::NoBanner)?;
    let end = memchr::memchr(0, &bytes[..bytes.len().min(BANNER_MAX)]).filter(|&end| end > 0);
    let text = end.and_then(|end| str::from_utf8(&bytes[..end]).ok());
    text.map(str::to_owned).ok_or(LayoutError::NoBanner)
}
