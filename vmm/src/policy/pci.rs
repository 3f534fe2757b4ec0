//! PCI configuration space by I/O ports, "mechanism 1": where an access goes.
//!
//! What a node reads and writes there is memory of the monitor, made by the base: the functions' own
//! configuration space, by which one could interrupt the base's cores or change what the base relies on,
//! stays the base's. So all that is left to do is to find the word, and the bits that may change.
//!
//! Linux trusts the ports only if there is a host bridge on bus 0 (`pci_sanity_check` of
//! arch/x86/pci/direct.c): there is one, and nothing else of the machine.
//!
//! Source: PCI Local Bus Specification 3.0, section 3.2.2.3.2.

/// The ports: an address, then the data there. Each of four bytes.
pub const ADDRESS: u16 = 0xcf8;
/// See [`ADDRESS`].
pub const DATA: u16 = 0xcfc;
/// Bit of the address by which it is one of configuration space.
const ENABLED: u32 = 1 << 31;

/// The first words of the host bridge, whose address is 0: QEMU's generic one (docs/specs/pci-ids.rst), with
/// the class code of a host bridge.
pub const HOST_BRIDGE: [u32; 3] = [0x0008_1b36, 0, 0x0600_0000];

/// What an access to a port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The address, of which all bytes are accessed.
    Address,
    /// Bytes of configuration space.
    Data(Place),
    /// Nothing is there.
    Absent,
}

/// Bytes of a word of configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Bus, device and function, of 8, 5 and 3 bits.
    pub function: u32,
    /// Number of the word.
    pub word: usize,
    shift: u32,
    mask: u32,
}

/// Finds what `size` bytes at `port` are for, if `address` was written last. `None` for other ports.
#[must_use]
pub fn decode(port: u16, size: u8, address: u32) -> Option<Access> {
    let offset = port.checked_sub(ADDRESS).filter(|offset| *offset < 8)?;
    let (is_data, byte) = (offset >= 4, u32::from(offset % 4));
    let is_one_word = byte + u32::from(size) <= 4;
    Some(match is_data {
        false if byte == 0 && size == 4 => Access::Address,
        true if address & ENABLED != 0 && is_one_word => Access::Data(Place {
            function: address >> 8 & 0xffff,
            word: (address >> 2 & 0x3f) as usize,
            shift: 8 * byte,
            mask: u32::MAX >> (32 - 8 * u32::from(size)),
        }),
        _ => Access::Absent,
    })
}

impl Place {
    /// What is read, if the word has a value.
    #[must_use]
    pub const fn read(self, word: u32) -> u32 {
        word >> self.shift & self.mask
    }

    /// The word after a write, if it has a value and some bits of it can change.
    #[must_use]
    pub const fn written(self, word: u32, writable: u32, value: u32) -> u32 {
        let changes = writable & self.mask << self.shift;
        word & !changes | value << self.shift & changes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(port: u16, size: u8, address: u32) -> Place {
        match decode(port, size, address) {
            Some(Access::Data(place)) => place,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_address_names_a_function_and_a_word() {
        assert_eq!(decode(ADDRESS, 4, 0), Some(Access::Address));
        let found = place(DATA, 4, 0x8001_0a10);
        assert_eq!((found.function, found.word), (0x10a, 4));
        // The port by which Linux looks whether mechanism 2 is there; that of a reset is told before.
        assert_eq!(decode(0xcfb, 1, 0), Some(Access::Absent));
        assert_eq!(decode(DATA, 4, 0x0001_0a10), Some(Access::Absent));
        assert_eq!(decode(0xcfe, 4, 0x8001_0a10), Some(Access::Absent));
        assert_eq!(decode(0xd00, 4, 0x8001_0a10), None);
        assert_eq!(decode(0xcf7, 1, 0x8001_0a10), None);
    }

    #[test]
    fn bytes_are_those_of_the_word() {
        let word = 0x4433_2211;
        assert_eq!(place(DATA, 4, ENABLED).read(word), word);
        assert_eq!(place(DATA + 2, 2, ENABLED).read(word), 0x4433);
        assert_eq!(place(DATA + 1, 1, ENABLED).read(word), 0x22);
        let written =
            |port, size, writable, value| place(port, size, ENABLED).written(word, writable, value);
        assert_eq!(written(DATA + 1, 1, u32::MAX, 0xfff), 0x4433_ff11);
        assert_eq!(written(DATA, 4, 0xffff_0000, 0), 0x0000_2211);
        // A region of 16 KiB tells its size.
        assert_eq!(written(DATA, 4, 0xffff_c000, u32::MAX), 0xffff_e211);
    }

    proptest! {
        #[test]
        fn nothing_else_changes(
            port in 0xcf0_u16..0xd10, size in prop::sample::select(vec![1_u8, 2, 4]),
            address: u32, word: u32, writable: u32, value: u32,
        ) {
            if let Some(Access::Data(place)) = decode(port, size, address) {
                prop_assert!(place.word < 64);
                let after = place.written(word, writable, value);
                prop_assert_eq!((after ^ word) & !writable, 0);
                prop_assert_eq!(place.written(after, writable, value), after);
            }
        }
    }
}
