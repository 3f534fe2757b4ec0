//! A bzImage with any payload.

use std::io::Write;

/// Size of the real-mode part: two sectors.
pub const REAL_MODE_SIZE: usize = 1024;
/// Offset of the payload in the protected-mode part.
pub const PAYLOAD_OFFSET: usize = 0x400;
pub const RELEASE: &str = "6.1.0-test-amd64";

/// Names of compressions, and the payload compressed as by the build, appended size included.
pub fn packed(vmlinux: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let sized = |mut stream: Vec<u8>| {
        stream.extend((vmlinux.len() as u32).to_le_bytes());
        stream
    };
    vec![
        ("gzip", gzip(vmlinux)),
        ("bzip2", sized(bzip2(vmlinux))),
        ("lzma", sized(lzma(vmlinux))),
        ("xz", sized(xz(vmlinux))),
        ("lz4", sized(lz4_legacy(vmlinux))),
        ("zstd", sized(zstd(vmlinux))),
    ]
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn lzma(bytes: &[u8]) -> Vec<u8> {
    let options = lzma_rust2::LzmaOptions::with_preset(0);
    let mut encoder = lzma_rust2::LzmaWriter::new_use_header(Vec::new(), &options, None).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut options = lzma_rust2::XzOptions::with_preset(0);
    options.set_check_sum_type(lzma_rust2::CheckType::Crc32);
    options.prepend_pre_filter(lzma_rust2::FilterType::BcjX86, 0);
    let mut encoder = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn lz4_legacy(bytes: &[u8]) -> Vec<u8> {
    let mut stream = 0x184c_2102_u32.to_le_bytes().to_vec();
    for block in bytes.chunks(8 << 20) {
        let packed = lz4_flex::block::compress(block);
        stream.extend((packed.len() as u32).to_le_bytes());
        stream.extend(packed);
    }
    stream
}

pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

/// A bzImage with `payload`.
pub fn bzimage(payload: &[u8]) -> Vec<u8> {
    let protected_size = (PAYLOAD_OFFSET + payload.len()).next_multiple_of(16);
    let mut file = vec![0; REAL_MODE_SIZE + protected_size];
    let mut put =
        |offset: usize, field: &[u8]| file[offset..offset + field.len()].copy_from_slice(field);
    put(0x1f1, &[1]);
    put(0x1f4, &((protected_size / 16) as u32).to_le_bytes());
    put(0x1fe, &0xaa55_u16.to_le_bytes());
    put(0x200, &[0xeb, 0x6a]);
    put(0x202, b"HdrS");
    put(0x206, &0x020f_u16.to_le_bytes());
    put(0x20e, &0x100_u16.to_le_bytes());
    put(0x211, &[1]);
    put(0x230, &0x20_0000_u32.to_le_bytes());
    put(0x234, &[1, 21]);
    put(0x236, &0x7f_u16.to_le_bytes());
    put(0x248, &(PAYLOAD_OFFSET as u32).to_le_bytes());
    put(0x24c, &(payload.len() as u32).to_le_bytes());
    put(0x258, &0x100_0000_u64.to_le_bytes());
    put(0x260, &0x80_0000_u32.to_le_bytes());
    put(
        0x300,
        format!("{RELEASE} (someone@somewhere) #1 SMP\0").as_bytes(),
    );
    put(REAL_MODE_SIZE + PAYLOAD_OFFSET, payload);
    file
}
