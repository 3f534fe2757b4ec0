//! A PCI function as a confined node has it.
//!
//! The node's configuration space is an image of the function's: what a kernel needs to find it and to choose
//! a driver. It can change what has no effect outside of the image: the place of the BARs, by which a kernel
//! learns their size, and the bits by which it enables the function, which is enabled anyway. Of the
//! capabilities it has those that tell of the device: PCI Express, those of its vendor (virtio), and messages
//! (MSI-X).
//!
//! Source: PCI Local Bus Specification 3.0, sections 6.1, 6.2.5, 6.7 and 6.8.2.

use insula_abi::monitor::{FUNCTION_CONFIG_WORDS, FUNCTION_MESSAGES};
use insula_boot::{Chunk, ConfinedFunction};

use super::PciAddress;
use super::function::{MSI_X, PAGE, capabilities};

/// Words of the image.
const COMMAND: usize = 1;
const HEADER_TYPE: usize = 3;
const BARS: std::ops::Range<usize> = 4..10;
const SUBSYSTEM: usize = 11;
const CAPABILITIES: usize = 13;
/// Of the command register: memory, DMA, no interrupt pin.
const ENABLES: u32 = 1 << 1 | 1 << 2 | 1 << 10;
/// Of the status register, in the same word: there are capabilities.
const HAS_CAPABILITIES: u32 = 1 << 20;
/// Of the header type: there are other functions.
const MULTIFUNCTION: u32 = 1 << 23;
/// Of a BAR: I/O ports; 64 bits; all that is not the address.
const BAR_PORTS: u32 = 1;
const BAR_64: u32 = 4;
const BAR_FLAGS: u32 = 0xf;
/// Ids of the capabilities that the node has, beside [`MSI_X`].
const VENDOR: u8 = 0x09;
const EXPRESS: u8 = 0x10;
/// Bytes of those whose length is fixed.
const MSI_X_SIZE: usize = 12;
const EXPRESS_SIZE: usize = 0x3c;
/// Of the messages' control, in the capability's first word: enabled, all masked.
const MESSAGE_ENABLES: u32 = 3 << 30;
/// Bytes of an entry of their table.
const MESSAGE_SIZE: u64 = 16;

/// A BAR: its address and size; neither if it has no place.
pub(super) type Bar = Option<(u64, u64)>;

/// Makes the image; `None` if the function has no messages (MSI-X) in a BAR.
///
/// `config` is its configuration space, `bars` has its BARs, of which those of 64 bits take two.
pub(super) fn describe(
    address: PciAddress,
    config: &[u8],
    bars: &[Bar; 6],
) -> Option<ConfinedFunction> {
    let real: [u32; FUNCTION_CONFIG_WORDS] = std::array::from_fn(|word| dword(config, 4 * word));
    let messages = capabilities(config).find(|&(id, _)| id == MSI_X)?.1;
    let (count, message_table) = message_table(config, messages, bars)?;
    let mut image = Image {
        config: [0; FUNCTION_CONFIG_WORDS],
        writable: [0; FUNCTION_CONFIG_WORDS],
    };
    for same in [0, 2, HEADER_TYPE, SUBSYSTEM] {
        image.config[same] = real[same];
    }
    image.config[HEADER_TYPE] &= !MULTIFUNCTION;
    image.config[COMMAND] = HAS_CAPABILITIES;
    image.writable[COMMAND] = ENABLES;
    image.add_bars(&real, bars);
    image.add_capabilities(config);
    let control = &mut image.config[messages / 4];
    *control = *control & 0xffff | (count - 1) << 16;
    image.writable[messages / 4] = MESSAGE_ENABLES;
    Some(ConfinedFunction {
        number: address.device << 3 | address.function,
        config: image.config,
        writable: image.writable,
        message_table,
        messages: count,
    })
}

/// Number of messages that the node has, and the pages of the function's table.
fn message_table(config: &[u8], capability: usize, bars: &[Bar; 6]) -> Option<(u32, Chunk)> {
    let count = (dword(config, capability) >> 16 & 0x7ff) + 1;
    let place = dword(config, capability + 4);
    let (start, size) = (*bars.get(place as usize & 7)?)?;
    let offset = u64::from(place & !7);
    let end = offset + u64::from(count) * MESSAGE_SIZE;
    let pages = (start + offset) & !(PAGE - 1)..(start + end).next_multiple_of(PAGE);
    (end <= size).then_some((
        count.min(FUNCTION_MESSAGES),
        Chunk {
            start: pages.start,
            size: pages.end - pages.start,
        },
    ))
}

struct Image {
    config: [u32; FUNCTION_CONFIG_WORDS],
    writable: [u32; FUNCTION_CONFIG_WORDS],
}

impl Image {
    /// The BARs in memory, at their places.
    fn add_bars(&mut self, real: &[u32; FUNCTION_CONFIG_WORDS], bars: &[Bar; 6]) {
        for (word, bar) in BARS.zip(bars) {
            let flags = real[word] & BAR_FLAGS;
            let Some((start, size)) = bar.filter(|_| flags & BAR_PORTS == 0) else {
                continue;
            };
            let sizing = !(size - 1);
            self.config[word] = start as u32 & !BAR_FLAGS | flags;
            self.writable[word] = sizing as u32 & !BAR_FLAGS;
            if flags & BAR_64 != 0 && word + 1 < BARS.end {
                self.config[word + 1] = (start >> 32) as u32;
                self.writable[word + 1] = (sizing >> 32) as u32;
            }
        }
    }

    /// The capabilities of the list above, in a list of their own.
    fn add_capabilities(&mut self, config: &[u8]) {
        let mut after = 0;
        let found: Vec<_> = capabilities(config).collect();
        for &(id, at) in found.iter().rev() {
            let size = match id {
                MSI_X => MSI_X_SIZE,
                EXPRESS => EXPRESS_SIZE,
                VENDOR => usize::from(config.get(at + 2).copied().unwrap_or_default()),
                _ => continue,
            };
            let words = at / 4..(at + size.max(4)).div_ceil(4).min(FUNCTION_CONFIG_WORDS);
            for word in words {
                self.config[word] = dword(config, 4 * word);
            }
            self.config[at / 4] = self.config[at / 4] & !0xff00 | after << 8;
            after = at as u32;
        }
        self.config[CAPABILITIES] = after;
    }
}

/// The word at an offset; 0 behind the end.
fn dword(config: &[u8], at: usize) -> u32 {
    let bytes = config.get(at..at + 4).and_then(|four| four.try_into().ok());
    u32::from_le_bytes(bytes.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function with capabilities for power, messages in its BAR 0, its vendor and PCI Express; that BAR has
    /// 64 bits, and BAR 2 ports.
    fn config() -> Vec<u8> {
        let mut config = vec![0; 256];
        let mut set = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        set(0, &[0x36, 0x1b, 0x10, 0, 0x06, 0x04, 0x10, 0x00]);
        set(8, &[2, 2, 8, 1, 0, 0, 0x80, 0]);
        set(0x10, &[0x04, 0, 0x80, 0xfe]);
        set(0x18, &[0x01, 0xc0, 0, 0]);
        set(0x34, &[0x40]);
        set(0x3c, &[11, 1]);
        set(0x40, &[0x01, 0x50, 0x23, 0]);
        set(
            0x50,
            &[0x11, 0x60, 0x40, 0x80, 0, 0x20, 0, 0, 0, 0x30, 0, 0],
        );
        set(0x60, &[0x09, 0x70, 0x08, 0x55, 1, 2, 3, 4]);
        set(0x70, &[0x10, 0, 0x02, 0]);
        config
    }

    const BARS: [Bar; 6] = [
        Some((0xfe80_0000, 0x4000)),
        None,
        Some((0xc000, 0x20)),
        None,
        None,
        None,
    ];

    fn described() -> ConfinedFunction {
        let address = "0000:01:02.3".parse().unwrap();
        describe(address, &config(), &BARS).unwrap()
    }

    #[test]
    fn the_image_tells_what_the_function_is_and_enables_nothing() {
        let function = described();
        assert_eq!(function.number, 2 << 3 | 3);
        assert_eq!(
            (function.config[0], function.config[2]),
            (0x0010_1b36, 0x0108_0202)
        );
        assert_eq!(function.config[1], HAS_CAPABILITIES);
        assert_eq!(function.config[3], 0, "it is alone");
        assert_eq!(function.config[15], 0, "no interrupt pin");
    }

    #[test]
    fn bars_have_their_place_and_tell_their_size() {
        let function = described();
        assert_eq!(function.config[4..6], [0xfe80_0004, 0]);
        assert_eq!(function.writable[4..6], [0xffff_c000, u32::MAX]);
        assert_eq!((function.config[6], function.writable[6]), (0, 0));
    }

    #[test]
    fn messages_are_limited_and_their_table_is_found() {
        let function = described();
        assert_eq!(function.messages, FUNCTION_MESSAGES);
        assert_eq!(function.config[0x50 / 4] >> 16, FUNCTION_MESSAGES - 1);
        assert_eq!(function.writable[0x50 / 4], MESSAGE_ENABLES);
        let table = Chunk {
            start: 0xfe80_2000,
            size: 0x1000,
        };
        assert_eq!(function.message_table, table);
        let without = &BARS.map(|_| None);
        assert_eq!(
            describe("01:00.0".parse().unwrap(), &config(), without),
            None
        );
    }

    #[test]
    fn only_harmless_capabilities_are_in_the_list() {
        let function = described();
        let bytes: Vec<u8> = function
            .config
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let found: Vec<_> = capabilities(&bytes).collect();
        assert_eq!(found, [(MSI_X, 0x50), (VENDOR, 0x60), (EXPRESS, 0x70)]);
        assert_eq!(function.config[0x40 / 4], 0);
        assert_eq!(function.config[0x64 / 4], 0x0403_0201);
    }

    #[test]
    fn nothing_else_can_be_changed() {
        let function = described();
        let changes = function
            .writable
            .iter()
            .zip(0..)
            .filter(|(bits, _)| **bits != 0);
        let changed: Vec<_> = changes.map(|(_, word)| word).collect();
        assert_eq!(changed, [1, 4, 5, 0x50 / 4]);
        assert_eq!(function.writable[1], ENABLES);
    }
}
