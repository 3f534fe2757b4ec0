//! Checksums of metadata (Documentation/filesystems/ext4/checksums.rst of Linux).

/// CRC-32C, as the feature `metadata_csum` has it: neither begun nor ended with an inversion, so that it
/// goes on over several pieces.
pub(super) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    /// Polynomial of Castagnoli, reflected.
    const TABLE: [u32; 256] = table(0x82f6_3b78);
    bytes.iter().fold(seed, |crc, byte| {
        TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8
    })
}

/// CRC-16, as the feature `uninit_bg` has it.
pub(super) fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    const TABLE: [u32; 256] = table(0xa001);
    bytes.iter().fold(seed, |crc, byte| {
        TABLE[usize::from(crc as u8 ^ byte)] as u16 ^ crc >> 8
    })
}

const fn table(polynomial: u32) -> [u32; 256] {
    let mut table = [0; 256];
    let mut at = 0;
    while at < table.len() {
        let (mut crc, mut bit) = (at as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ polynomial
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    #[test]
    fn check_values() {
        // Those of the catalogue of parametrised CRC algorithms, for "123456789".
        assert_eq!(!super::crc32c(!0, b"123456789"), 0xe306_9283);
        assert_eq!(super::crc16(0, b"123456789"), 0xbb3d);
    }
}
