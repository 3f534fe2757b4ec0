//! Decompressing the kernel in a bzImage.
//!
//! The build (scripts/Makefile.lib of the kernel) compresses `vmlinux.bin` with one of seven
//! programs and, except for gzip, whose format already has it, appends the decompressed size as a
//! 32-bit number (`size_append`). So the last four bytes are always the size, on which the boot
//! code relies.

use crate::bytes::{length, u32_at};
use crate::error::ImageError;
use std::borrow::Cow;
use std::io::{self, ErrorKind, Read};

/// Limit on the decompressed size: Debian's largest kernel is below 100 MiB.
const UNPACKED_MAX: u64 = 512 << 20;
/// Largest window of a zstd stream, as a power of two: that of the build's setting
/// (`ZSTD_WINDOWSIZE_MAX` of lib/decompress_unzstd.c).
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// Memory limit of an xz or lzma decoder, in KiB; the build's dictionaries are 32 MiB.
const LZMA_MEMORY_MAX_KIB: u32 = 256 << 10;
/// Size of the appended size.
const SIZE_TRAILER: usize = 4;

/// Error of a stream with fewer or more bytes than expected.
const WRONG_SIZE: &str = "it does not have the size in the image";

/// Compression of a payload, by its first bytes: `compressed_formats` of lib/decompress.c.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Bzip2,
    Lzma,
    Xz,
    Lz4,
    Zstd,
}

impl Compression {
    fn detect(payload: &[u8]) -> Result<Self, ImageError> {
        const MAGICS: [(&[u8], Compression); 7] = [
            (b"\x7fELF", Compression::None),
            (b"\x1f\x8b", Compression::Gzip),
            (b"BZh", Compression::Bzip2),
            (b"\x5d\x00\x00", Compression::Lzma),
            (b"\xfd7zXZ\x00", Compression::Xz),
            (&LZ4_LEGACY_MAGIC, Compression::Lz4),
            (b"\x28\xb5\x2f\xfd", Compression::Zstd),
        ];
        if payload.starts_with(b"\x89LZO") {
            return Err(ImageError::UnknownCompression("lzo"));
        }
        let known = MAGICS.iter().find(|(magic, _)| payload.starts_with(magic));
        known
            .map(|&(_, compression)| compression)
            .ok_or(ImageError::UnknownCompression("an unknown compression"))
    }

    fn name(self) -> &'static str {
        match self {
            Self::None => "unpacked",
            Self::Gzip => "gzip",
            Self::Bzip2 => "bzip2",
            Self::Lzma => "lzma",
            Self::Xz => "xz",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// Decompresses a payload of any known compression.
pub(crate) fn unpack(payload: &[u8]) -> Result<Cow<'_, [u8]>, ImageError> {
    let compression = Compression::detect(payload)?;
    if compression == Compression::None {
        return Ok(Cow::Borrowed(payload));
    }
    let trailer = payload.len().saturating_sub(SIZE_TRAILER);
    let size = u64::from(u32_at(payload, trailer).unwrap_or_default());
    if size > UNPACKED_MAX {
        return Err(ImageError::Malformed {
            what: "its size is larger than a kernel can be",
        });
    }
    // gzip's own trailer is the size, a part of the stream.
    let stream = if compression == Compression::Gzip {
        payload
    } else {
        &payload[..trailer]
    };
    let unpacked = decode(compression, stream, size).map_err(|source| ImageError::Unpack {
        compression: compression.name(),
        source,
    })?;
    Ok(Cow::Owned(unpacked))
}

/// Decompresses `stream`, which must result in exactly `size` bytes.
fn decode(compression: Compression, stream: &[u8], size: u64) -> io::Result<Vec<u8>> {
    match compression {
        Compression::None => Ok(stream.to_vec()),
        Compression::Gzip => read_exactly(flate2::bufread::GzDecoder::new(stream), size),
        Compression::Bzip2 => read_exactly(bzip2::bufread::BzDecoder::new(stream), size),
        Compression::Lzma => {
            let decoder = lzma_rust2::LzmaReader::new_mem_limit(stream, LZMA_MEMORY_MAX_KIB, None)?;
            read_exactly(decoder, size)
        }
        Compression::Xz => {
            let decoder = lzma_rust2::XzReader::new_mem_limit(stream, false, LZMA_MEMORY_MAX_KIB);
            read_exactly(decoder, size)
        }
        Compression::Lz4 => decode_lz4_legacy(stream, size),
        Compression::Zstd => read_exactly(zstd_decoder(stream)?, size),
    }
}

/// Decompresses the file of a loadable module, of which distributions have gzip, xz and zstd ones.
/// An uncompressed one is returned as it is.
///
/// # Errors
/// When it has another compression, is damaged, or is larger than a kernel can be.
pub fn unpack_module(file: &[u8]) -> Result<Cow<'_, [u8]>, ImageError> {
    let compression = Compression::detect(file)?;
    let unpacked = match compression {
        Compression::None => return Ok(Cow::Borrowed(file)),
        Compression::Gzip => read_all(flate2::bufread::GzDecoder::new(file)),
        Compression::Xz => {
            let decoder = lzma_rust2::XzReader::new_mem_limit(file, false, LZMA_MEMORY_MAX_KIB);
            read_all(decoder)
        }
        Compression::Zstd => zstd_decoder(file).and_then(read_all),
        other => return Err(ImageError::UnknownCompression(other.name())),
    };
    unpacked
        .map(Cow::Owned)
        .map_err(|source| ImageError::Unpack {
            compression: compression.name(),
            source,
        })
}

/// Reads everything from `decoder`.
fn read_all(decoder: impl Read) -> io::Result<Vec<u8>> {
    let mut unpacked = Vec::new();
    decoder.take(UNPACKED_MAX + 1).read_to_end(&mut unpacked)?;
    match length(&unpacked) > UNPACKED_MAX {
        true => Err(damaged("it is larger than a kernel can be")),
        false => Ok(unpacked),
    }
}

/// Reads everything from `decoder`, at most one byte more than the expected `size`.
fn read_exactly(decoder: impl Read, size: u64) -> io::Result<Vec<u8>> {
    let mut unpacked = Vec::with_capacity(size as usize + 1);
    decoder.take(size + 1).read_to_end(&mut unpacked)?;
    if length(&unpacked) != size {
        return Err(damaged(WRONG_SIZE));
    }
    Ok(unpacked)
}

/// Decompresses one zstd frame, and verifies its checksum at its end.
fn zstd_decoder(stream: &[u8]) -> io::Result<impl Read> {
    let mut decoder = zstd::Decoder::with_buffer(stream)?.single_frame();
    decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
    Ok(decoder)
}

/// Magic number of the legacy lz4 format, which the kernel's build uses (`lz4 -l`).
const LZ4_LEGACY_MAGIC: [u8; 4] = 0x184c_2102_u32.to_le_bytes();
/// Decompressed size of every block of that format but the last
/// (`LZ4_DEFAULT_UNCOMPRESSED_CHUNK_SIZE`).
const LZ4_LEGACY_BLOCK: usize = 8 << 20;

/// Decompresses the legacy lz4 format like lib/decompress_unlz4.c of the kernel: blocks, each
/// preceded by its compressed size; the magic number may be repeated before any of them.
fn decode_lz4_legacy(stream: &[u8], size: u64) -> io::Result<Vec<u8>> {
    let mut unpacked = Vec::new();
    let mut block = vec![0; LZ4_LEGACY_BLOCK];
    let mut rest = stream;
    while let Some((head, tail)) = rest.split_first_chunk::<4>() {
        rest = tail;
        if *head == LZ4_LEGACY_MAGIC {
            continue;
        }
        let packed_size = u32::from_le_bytes(*head) as usize;
        let (packed, tail) = rest
            .split_at_checked(packed_size)
            .ok_or_else(|| damaged("a block is truncated"))?;
        rest = tail;
        let block_size = lz4_flex::block::decompress_into(packed, &mut block)
            .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        unpacked.extend_from_slice(&block[..block_size]);
        if length(&unpacked) > size {
            break;
        }
    }
    if length(&unpacked) == size {
        Ok(unpacked)
    } else {
        Err(damaged(WRONG_SIZE))
    }
}

fn damaged(what: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}
