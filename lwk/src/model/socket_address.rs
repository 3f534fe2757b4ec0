//! Addresses of sockets, as programs have them (ip(7)) and as network servers do
//! (`abi/include/insula_net.h`).

use insula_abi::net::NONE;

use crate::model::errno::Errno;

/// `AF_UNSPEC`.
const UNSPECIFIED: u16 = 0;
/// `AF_INET`.
pub const INET: u16 = 2;
/// Size of `struct sockaddr_in`.
pub const SIZE: usize = 16;
/// Largest size of any address (`struct sockaddr_storage`).
pub const SIZE_MAX: u64 = 128;

/// Reads an address of a program. `AF_UNSPEC` is none.
///
/// # Errors
/// [`Errno::EINVAL`] if it is too short, [`Errno::EAFNOSUPPORT`] if it is of another family.
pub fn read(bytes: &[u8]) -> Result<u64, Errno> {
    let (family, rest) = bytes.split_first_chunk().ok_or(Errno::EINVAL)?;
    match (u16::from_le_bytes(*family), rest) {
        (UNSPECIFIED, _) => Ok(NONE),
        (INET, [port @ .., a, b, c, d, _, _, _, _, _, _, _, _]) if port.len() == 2 => {
            let address = u32::from_be_bytes([*a, *b, *c, *d]);
            let port = u16::from_be_bytes([port[0], port[1]]);
            Ok(u64::from(address) << 16 | u64::from(port))
        }
        (INET, _) => Err(Errno::EINVAL),
        _ => Err(Errno::EAFNOSUPPORT),
    }
}

/// Returns an address as programs have it.
#[must_use]
pub fn to_bytes(address: u64) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    bytes[..2].copy_from_slice(&INET.to_le_bytes());
    bytes[2..4].copy_from_slice(&(address as u16).to_be_bytes());
    bytes[4..8].copy_from_slice(&((address >> 16) as u32).to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        let address = 0x0a00_0001_1f90;
        let bytes = to_bytes(address);
        assert_eq!(bytes[..8], [2, 0, 0x1f, 0x90, 10, 0, 0, 1]);
        assert_eq!(read(&bytes), Ok(address));
        assert_eq!(read(&bytes[..8]), Err(Errno::EINVAL));
        assert_eq!(read(&[2]), Err(Errno::EINVAL));
        assert_eq!(read(&[0, 0]), Ok(NONE));
        assert_eq!(read(&[10, 0, 0, 0]), Err(Errno::EAFNOSUPPORT));
    }
}
