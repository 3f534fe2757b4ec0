//! The log of Insula's lightweight kernel: the same ring as Linux', with fixed structures.
//!
//! Its image is an ELF file with a symbol table and needs no type information: the layout defined
//! by `lwk/src/hw/log.rs` is repeated here. A test there reads its log with this.

use super::layout::{LayoutError, LogLayout, Structures, banner};
use super::liveness::LivenessLayout;
use crate::elf::{LWK_BANNER, Vmlinux};

/// `system_state` of a kernel that has powered off.
const OFF: u32 = 1;

/// The layout, if the image is the lightweight kernel's.
pub(super) fn layout(vmlinux: &[u8]) -> Result<Option<LogLayout>, LayoutError> {
    let image = Vmlinux::parse(vmlinux)?;
    let Some(banner_address) = image.symbol(LWK_BANNER) else {
        return Ok(None);
    };
    let address = |name| image.symbol(name).ok_or(LayoutError::NoSymbol(name));
    Ok(Some(LogLayout {
        text: address("_text")?,
        end: address("_end")?,
        banner_address,
        banner: banner(vmlinux, banner_address)?,
        prb: address("prb")?,
        rings: vec![address("printk_rb_static")?],
        panic_cpu: address("panic_cpu")?,
        page_offset_base: None,
        structures: STRUCTURES,
        liveness: Some(LivenessLayout {
            per_cpu_offset: address("lwk_resched_count_at")?,
            resched_count: 0,
            system_state: address("system_state")?,
            halt: OFF,
            in_program: Some(address("lwk_in_program")?),
        }),
    }))
}

/// `Ring`, `Descriptor` and `Info` of `lwk/src/hw/log.rs`.
const STRUCTURES: Structures = Structures {
    ring_size: 48,
    count_bits: 0,
    size_bits: 4,
    descs: 8,
    infos: 16,
    data: 24,
    head_id: 32,
    tail_id: 40,
    desc_size: 24,
    state_var: 0,
    begin: 8,
    next: 16,
    info_size: 24,
    seq: 0,
    ts_nsec: 8,
    text_len: 16,
    facility: 18,
    level_bit: 8 * 19,
    level_bits: 3,
    caller_id: 20,
};
