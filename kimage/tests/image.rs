//! Kernel images: what a loader needs to know of them, and the `vmlinux` inside.

mod synthetic;

use kimage::{Format, ImageError, Segment, inspect, vmlinux};
use proptest::prelude::*;
use synthetic::bzimage::{REAL_MODE_SIZE, RELEASE, bzimage, packed, zstd};
use synthetic::image;
use synthetic::kallsyms::Order;

#[test]
fn bzimage_is_loaded_whole_and_entered_at_0x200() {
    let file = bzimage(&zstd(b"kernel"));
    let loadable = inspect(&file).unwrap();
    assert_eq!(loadable.format, Format::BzImage);
    assert_eq!(loadable.release, RELEASE);
    assert_eq!(loadable.entry_offset, 0x200);
    assert_eq!(loadable.alignment, 2 << 20);
    assert_eq!(loadable.footprint, 8 << 20);
    assert_eq!(loadable.setup_header, &file[0x1f1..0x26c]);
    let size = (file.len() - REAL_MODE_SIZE) as u64;
    assert_eq!(
        loadable.segments,
        [Segment {
            file_offset: 1024,
            load_offset: 0,
            size
        }]
    );
}

#[test]
fn a_signature_after_a_bzimage_is_ignored() {
    let mut file = bzimage(&zstd(b"kernel"));
    let unsigned = inspect(&file).unwrap();
    file.extend([0xaa; 1480]);
    assert_eq!(inspect(&file).unwrap(), unsigned);
}

#[test]
fn elf_is_loaded_by_physical_addresses() {
    let loadable = inspect(&image::vmlinux(Order::New)).unwrap();
    assert_eq!(loadable.format, Format::Elf);
    assert_eq!(loadable.release, "6.1.0-test-amd64");
    assert_eq!(loadable.entry_offset, 0x123);
    assert_eq!(loadable.alignment, 2 << 20);
    assert_eq!(loadable.footprint, image::END - image::TEXT);
    let text = Segment {
        file_offset: 0x1000,
        load_offset: 0,
        size: image::TEXT_SIZE as u64,
    };
    let data = Segment {
        file_offset: 0x9000,
        load_offset: 0x20_0000,
        size: image::DATA_SIZE as u64,
    };
    assert_eq!(loadable.segments, [text, data]);
}

#[test]
fn the_generated_header_of_an_elf_equals_a_bzimages() {
    let header = inspect(&image::vmlinux(Order::New)).unwrap().setup_header;
    let field = |offset: usize, size: usize| &header[offset - 0x1f1..][..size];
    assert_eq!(header.len(), 0x26c - 0x1f1);
    assert_eq!(usize::from(field(0x201, 1)[0]) + 0x202, 0x26c);
    assert_eq!(field(0x1fe, 2), 0xaa55_u16.to_le_bytes());
    assert_eq!(field(0x202, 4), b"HdrS");
    assert_eq!(field(0x206, 2), 0x020f_u16.to_le_bytes());
    assert_eq!(field(0x236, 2), 3_u16.to_le_bytes());
    assert_eq!(field(0x258, 8), 0x100_0000_u64.to_le_bytes());
    assert_eq!(field(0x260, 4), 0x30_0000_u32.to_le_bytes());
}

#[test]
fn the_description_survives_json() {
    let loadable = inspect(&image::vmlinux(Order::New)).unwrap();
    let json = serde_json::to_string(&loadable).unwrap();
    assert_eq!(
        serde_json::from_str::<kimage::Loadable>(&json).unwrap(),
        loadable
    );
}

#[test]
fn every_compression_unpacks_to_the_same() {
    let kernel = image::vmlinux(Order::Old);
    assert_eq!(vmlinux(&kernel).unwrap(), kernel);
    for (name, payload) in packed(&kernel) {
        let file = bzimage(&payload);
        assert_eq!(
            vmlinux(&file).unwrap_or_else(|error| panic!("{name}: {error}")),
            kernel,
            "{name}"
        );
    }
}

#[test]
fn lz4_blocks_of_8_mib_are_joined() {
    let mut kernel = image::vmlinux(Order::Old);
    kernel.resize(20 << 20, 0x5a);
    let (_, payload) = packed(&kernel).remove(4);
    assert_eq!(vmlinux(&bzimage(&payload)).unwrap(), kernel);
}

#[test]
fn the_stored_size_bounds_decompression() {
    let kernel = image::vmlinux(Order::Old);
    for (name, payload) in packed(&kernel) {
        for size in [
            0,
            1000,
            kernel.len() as u32 - 1,
            kernel.len() as u32 + 1,
            u32::MAX,
        ] {
            let mut payload = payload.clone();
            let trailer = payload.len() - 4;
            payload[trailer..].copy_from_slice(&size.to_le_bytes());
            assert!(vmlinux(&bzimage(&payload)).is_err(), "{name}, {size} bytes");
        }
    }
}

#[test]
fn unknown_compressions_are_named() {
    let error = vmlinux(&bzimage(b"\x89LZO\0\r\n\x1a\n")).unwrap_err();
    assert!(error.to_string().contains("lzo"), "{error}");
    assert!(matches!(
        vmlinux(&bzimage(b"whatever")),
        Err(ImageError::UnknownCompression(_))
    ));
}

#[test]
fn files_that_are_no_kernel_are_refused() {
    for file in [&b""[..], b"#!/bin/sh\n", b"\x7fELF", &[0; 4096]] {
        assert!(matches!(inspect(file), Err(ImageError::NotAKernel)));
        assert!(matches!(vmlinux(file), Err(ImageError::NotAKernel)));
    }
    // A program of user space.
    let mut program = image::vmlinux(Order::New);
    program[64 + 16..64 + 24].copy_from_slice(&0x40_0000_u64.to_le_bytes());
    program[120 + 16..120 + 24].copy_from_slice(&0x60_0000_u64.to_le_bytes());
    assert!(matches!(inspect(&program), Err(ImageError::NotAKernel)));
    assert!(matches!(vmlinux(&program), Err(ImageError::NotAKernel)));
}

#[test]
fn kernels_that_cannot_be_started_are_refused() {
    let good = bzimage(&zstd(b"kernel"));
    let with = |offset: usize, byte: u8| {
        let mut file = good.clone();
        file[offset] = byte;
        inspect(&file).unwrap_err()
    };
    assert!(matches!(
        with(0x206, 0x0b),
        ImageError::OldProtocol { version: 0x020b }
    ));
    assert!(
        matches!(with(0x236, 0x7e), ImageError::Unsuitable { .. }),
        "no 64-bit entry"
    );
    assert!(
        matches!(with(0x236, 0x7d), ImageError::Unsuitable { .. }),
        "not above 4 GiB"
    );
    assert!(
        matches!(with(0x234, 0), ImageError::Unsuitable { .. }),
        "not relocatable"
    );
    assert!(
        matches!(with(0x211, 0), ImageError::Unsuitable { .. }),
        "a zImage"
    );
    assert!(
        matches!(with(0x230, 1), ImageError::Malformed { .. }),
        "alignment"
    );
    assert!(
        matches!(with(0x201, 0x10), ImageError::Malformed { .. }),
        "short header"
    );
    assert!(
        matches!(with(0x201, 0xff), ImageError::Malformed { .. }),
        "long header"
    );
    assert!(
        matches!(with(0x1f6, 1), ImageError::Truncated { .. }),
        "larger than the file"
    );
    assert!(
        matches!(with(0x300, 0), ImageError::Malformed { .. }),
        "no release"
    );
}

#[test]
fn messages_name_the_missing_part() {
    let file = bzimage(&zstd(b"kernel"));
    let error = inspect(&file[..file.len() - 1]).unwrap_err();
    let size = file.len();
    let expected = format!(
        "its protected-mode part needs {size} bytes, the file has {}",
        size - 1
    );
    assert!(error.to_string().contains(&expected), "{error}");
}

proptest! {
    #[test]
    fn every_truncation_is_detected(cut in 1..1500_usize) {
        let file = bzimage(&zstd(&[7; 5000]));
        prop_assert!(inspect(&file[..file.len() - cut.min(file.len())]).is_err());
    }

    #[test]
    fn data_after_the_kernel_in_the_payload_is_harmless(
        relocations in prop::collection::vec(any::<u8>(), 1..5000),
    ) {
        let elf = [image::vmlinux(Order::New), relocations].concat();
        let file = bzimage(&elf);
        let unpacked = vmlinux(&file).unwrap();
        prop_assert_eq!(&unpacked, &elf);
        prop_assert_eq!(inspect(&unpacked).unwrap(), inspect(&image::vmlinux(Order::New)).unwrap());
    }
}
