//! Bounds-checked reading of little-endian integers from untrusted bytes.

/// The `N` bytes at `offset`, or `None` where `bytes` ends before them.
pub(crate) fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    let end = offset.checked_add(N)?;
    bytes.get(offset..end)?.try_into().ok()
}

/// The 16-bit integer at `offset`.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    array_at(bytes, offset).map(u16::from_le_bytes)
}

/// The 32-bit integer at `offset`.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array_at(bytes, offset).map(u32::from_le_bytes)
}

/// The 64-bit integer at `offset`.
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    array_at(bytes, offset).map(u64::from_le_bytes)
}

/// The size of `bytes` as the 64-bit number that file formats use.
pub(crate) fn length(bytes: &[u8]) -> u64 {
    bytes.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_little_endian() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(u16_at(&bytes, 0), Some(0x0201));
        assert_eq!(u32_at(&bytes, 5), Some(0x0908_0706));
        assert_eq!(u64_at(&bytes, 1), Some(0x0908_0706_0504_0302));
    }

    #[test]
    fn ends_where_the_bytes_end() {
        assert_eq!(u16_at(&[1], 0), None);
        assert_eq!(u32_at(&[1, 2, 3, 4], 1), None);
        assert_eq!(u64_at(&[0; 16], usize::MAX), None);
    }
}
