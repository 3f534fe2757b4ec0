//! Test support: a fake kernel, and readers of a layout.
#![allow(dead_code, reason = "each test file uses its part")]

use insula_boot::{Chunk, Layout, NodeDescription};
use kimage::{Format, Loadable, Segment};

pub(crate) const PAGE: u64 = 4096;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// The lowest address at which [`kernel`] may be loaded.
pub(crate) const KERNEL_MIN: u64 = 16 * MIB;

pub(crate) const LOW: Chunk = Chunk {
    start: 0x50000,
    size: 0x10000,
};

/// A kernel with a header as of Linux 6.1 and arbitrary contents.
pub(crate) fn kernel(footprint: u64) -> Loadable {
    let mut header = vec![0u8; 0x26c - 0x1f1];
    let mut put = |offset: usize, bytes: &[u8]| {
        header[offset - 0x1f1..offset - 0x1f1 + bytes.len()].copy_from_slice(bytes);
    };
    put(0x1fe, &0xaa55u16.to_le_bytes());
    put(0x200, &[0xeb, 0x6a]);
    put(0x202, b"HdrS");
    put(0x206, &0x020fu16.to_le_bytes());
    put(0x211, &[0xff]);
    put(0x236, &0x007fu16.to_le_bytes());
    put(0x238, &2047u32.to_le_bytes());
    put(0x258, &KERNEL_MIN.to_le_bytes());
    put(0x260, &(footprint as u32).to_le_bytes());
    Loadable {
        format: Format::BzImage,
        release: "6.1.0-test".to_owned(),
        setup_header: header,
        entry_offset: 0x200,
        alignment: 2 * MIB,
        footprint,
        segments: vec![Segment {
            file_offset: 0x4000,
            load_offset: 0,
            size: footprint / 2,
        }],
    }
}

/// A node with `kernel` in `chunks`.
pub(crate) fn node<'a>(kernel: &'a Loadable, chunks: &'a [Chunk]) -> NodeDescription<'a> {
    NodeDescription {
        kernel,
        initrd_size: 5 * MIB + 17,
        command_line: "quiet",
        cpus: &[1, 2],
        spare_cpus: &[],
        chunks,
        buses: &[],
        trampoline: 0x9a000,
        tsc_khz: 2_500_000,
        channels_size: 5 * PAGE,
        persistent: &[],
        is_confined: false,
        random_seed: &[],
    }
}

/// The bytes at `address` as the node sees them; zero where the layout has none.
pub(crate) fn read(layout: &Layout, address: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    for piece in &layout.pieces {
        for (index, byte) in bytes.iter_mut().enumerate() {
            let offset = (address + index as u64).wrapping_sub(piece.address);
            if let Some(found) = usize::try_from(offset)
                .ok()
                .and_then(|offset| piece.bytes.get(offset))
            {
                *byte = *found;
            }
        }
    }
    bytes
}

pub(crate) fn read_u8(layout: &Layout, address: u64) -> u8 {
    read(layout, address, 1)[0]
}

pub(crate) fn read_u32(layout: &Layout, address: u64) -> u32 {
    u32::from_le_bytes(read(layout, address, 4).try_into().expect("4 bytes"))
}

pub(crate) fn read_u64(layout: &Layout, address: u64) -> u64 {
    u64::from_le_bytes(read(layout, address, 8).try_into().expect("8 bytes"))
}

/// The piece at `address`.
pub(crate) fn piece_at(layout: &Layout, address: u64) -> &[u8] {
    let piece = layout.pieces.iter().find(|piece| piece.address == address);
    &piece.expect("a piece there").bytes
}
