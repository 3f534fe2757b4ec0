//! `struct boot_params`, read back field by field.

mod support;

use insula_boot::{Chunk, Layout, NodeDescription, lay_out};
use support::{GIB, LOW, MIB, kernel, node, piece_at, read, read_u8, read_u32, read_u64};

const CHUNKS: [Chunk; 2] = [
    LOW,
    Chunk {
        start: 6 * GIB,
        size: 128 * MIB,
    },
];

fn laid_out(initrd_size: u64) -> Layout {
    let kernel = kernel(52 * MIB);
    let node = NodeDescription {
        initrd_size,
        ..node(&kernel, &CHUNKS)
    };
    lay_out(&node).expect("fits")
}

/// A number in two 32-bit fields.
fn split_field(layout: &Layout, low: u64, high: u64) -> u64 {
    let field = |offset| u64::from(read_u32(layout, layout.argument + offset));
    field(low) | field(high) << 32
}

#[test]
fn points_to_everything() {
    let layout = laid_out(5 * MIB + 17);
    assert!(
        layout.argument > 4 * GIB,
        "the test is to see the upper halves"
    );
    assert_eq!(split_field(&layout, 0x218, 0x0c0), layout.initrd);
    assert_eq!(split_field(&layout, 0x21c, 0x0c4), 5 * MIB + 17);
    let command_line = piece_at(&layout, split_field(&layout, 0x228, 0x0c8));
    assert_eq!(
        command_line,
        [layout.command_line.as_bytes(), b"\0"].concat()
    );
    let rsdp = read_u64(&layout, layout.argument + 0x070);
    assert_eq!(read(&layout, rsdp, 8), b"RSD PTR ");
}

#[test]
fn has_the_loaders_fields() {
    let layout = laid_out(0);
    let byte = |offset| read_u8(&layout, layout.argument + offset);
    assert_eq!(byte(0x210), 0xff, "type_of_loader");
    assert_eq!(
        byte(0x211),
        1,
        "loadflags: LOADED_HIGH and none of the kernel's own"
    );
    assert_eq!(byte(0x1ef), 0, "sentinel");
    assert_eq!(
        read(&layout, layout.argument + 0x1fa, 2),
        [0xff, 0xff],
        "vid_mode"
    );
}

#[test]
fn without_initrd() {
    let layout = laid_out(0);
    assert_eq!(layout.initrd, 0);
    assert_eq!(split_field(&layout, 0x218, 0x0c0), 0);
    assert_eq!(split_field(&layout, 0x21c, 0x0c4), 0);
}

#[test]
fn has_the_kernels_header_and_nothing_else() {
    let layout = laid_out(5 * MIB);
    let page = piece_at(&layout, layout.argument);
    assert_eq!(page.len(), 4096);
    assert_eq!(&page[0x202..0x206], b"HdrS");
    assert_eq!(&page[0x238..0x23c], 2047u32.to_le_bytes());
    let before_the_rsdp = [&page[..0x058], &page[0x060..0x070]].concat();
    assert!(
        before_the_rsdp.iter().all(|byte| *byte == 0),
        "no screen, no APM"
    );
    assert!(
        page[0x0cc..0x1e8].iter().all(|byte| *byte == 0),
        "no EDID, no EFI"
    );
    assert!(
        page[0x26c..0x2d0].iter().all(|byte| *byte == 0),
        "nothing behind the header"
    );
}
