//! The permission map of MSRs. Ports need none: all of them exit.
//!
//! Source: Intel SDM volume 3, 25.6.9 "MSR-Bitmap Address".

use core::sync::atomic::{AtomicU8, Ordering};

use crate::policy::msr::{self, Access};

/// First registers of the two ranges of 8192 that the map has; all others exit.
const RANGES: [u32; 2] = [0, 0xc000_0000];
const RANGE_REGISTERS: usize = 8192;
/// Bytes of a range, for reading or for writing.
const RANGE_BYTES: usize = RANGE_REGISTERS / 8;
/// Offset of the bits for writing from those for reading.
const WRITE: usize = RANGES.len() * RANGE_BYTES;

/// One bit for each register, set if reading it exits, and one for writing.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct MsrMap([AtomicU8; 0x1000]);

/// The map of all guests.
pub static MSR_MAP: MsrMap = MsrMap::new();

impl MsrMap {
    /// Asks the policy only about registers that it lists: this is evaluated by the compiler.
    const fn new() -> Self {
        let mut map = [0xff; 0x1000];
        let mut list = 0;
        while list < msr::LISTED.len() {
            let mut range = 0;
            while range < msr::LISTED[list].len() {
                let (first, last) = msr::LISTED[list][range];
                let mut register = first;
                while register <= last {
                    if let Some((byte, bit)) = place(register) {
                        let read = matches!(msr::read(register), Access::Pass) as u8;
                        let write = matches!(msr::write(register), Access::Pass) as u8;
                        map[byte] &= !(read << bit);
                        map[WRITE + byte] &= !(write << bit);
                    }
                    register += 1;
                }
                range += 1;
            }
            list += 1;
        }
        let mut bytes = [const { AtomicU8::new(0) }; 0x1000];
        let mut byte = 0;
        while byte < map.len() {
            bytes[byte] = AtomicU8::new(map[byte]);
            byte += 1;
        }
        Self(bytes)
    }

    /// Has those registers exit, too, that show which core it is.
    pub fn disguise(&self) {
        for (register, read, write) in msr::DISGUISED {
            if let Some((byte, bit)) = place(register) {
                self.0[byte].fetch_or(u8::from(read) << bit, Ordering::Relaxed);
                self.0[WRITE + byte].fetch_or(u8::from(write) << bit, Ordering::Relaxed);
            }
        }
    }

    /// Physical and virtual address are offset alike: its virtual address.
    #[must_use]
    pub fn address(&'static self) -> u64 {
        self.0.as_ptr() as u64
    }
}

/// Byte of the map and bit in it for reading a register; `None` for one that always exits.
const fn place(register: u32) -> Option<(usize, usize)> {
    let mut range = 0;
    while range < RANGES.len() {
        let number = register.wrapping_sub(RANGES[range]) as usize;
        if number < RANGE_REGISTERS {
            return Some((range * RANGE_BYTES + number / 8, number % 8));
        }
        range += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exits(register: u32, offset: usize) -> bool {
        exits_by(&MSR_MAP, register, offset)
    }

    fn exits_by(map: &MsrMap, register: u32, offset: usize) -> bool {
        let (byte, bit) = place(register).expect("in the map");
        map.0[offset + byte].load(Ordering::Relaxed) >> bit & 1 != 0
    }

    #[test]
    fn a_disguise_adds_exits() {
        let map = MsrMap::new();
        map.disguise();
        for register in [0x802, 0x80d, 0x6e0] {
            assert!(exits_by(&map, register, 0), "{register:#x}");
        }
        assert!(exits_by(&map, 0x6e0, WRITE));
        assert!(!exits_by(&map, 0x80b, WRITE) && !exits_by(&map, 0x838, WRITE));
    }

    #[test]
    fn exactly_what_passes_does_not_exit() {
        for register in RANGES.iter().flat_map(|&first| first..first + 8192) {
            assert_eq!(exits(register, 0), msr::read(register) != Access::Pass);
            assert_eq!(exits(register, WRITE), msr::write(register) != Access::Pass);
        }
    }

    #[test]
    fn bits_are_where_the_manual_has_them() {
        // Reading of low and high registers, then writing.
        assert_eq!(place(0), Some((0, 0)));
        assert_eq!(place(0x1fff), Some((0x3ff, 7)));
        assert_eq!(place(0xc000_0081), Some((0x410, 1)));
        assert_eq!(WRITE, 0x800);
        // The interrupt command register exits when written.
        let bit = |byte: usize| MSR_MAP.0[byte].load(Ordering::Relaxed) & 1;
        assert_eq!((bit(0x106), bit(0x906)), (0, 1));
    }

    /// What passes beyond the map would have to be read by the monitor: only registers of AMD do.
    #[test]
    fn all_of_intels_registers_have_a_place() {
        let listed = msr::LISTED.iter().flat_map(|list| list.iter());
        for register in listed.flat_map(|&(first, last)| first..=last) {
            assert!(
                place(register).is_some() || register >= 0xc000_2000,
                "{register:#x}"
            );
        }
    }
}
