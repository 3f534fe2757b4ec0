//! The permission maps: which MSRs and ports exit.
//!
//! Source: AMD APM volume 2, 15.10 and 15.11.

use core::sync::atomic::{AtomicU8, Ordering};

use crate::policy::msr::{self, Access};

/// First registers of the three ranges of 8192 that the map has, 2 KiB each.
const RANGES: [u32; 3] = [0, 0xc000_0000, 0xc001_0000];
const RANGE_REGISTERS: usize = 8192;
const RANGE_BYTES: usize = RANGE_REGISTERS / 4;

/// MSRs: two bits each, for reading and writing, set if it exits.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct MsrMap([AtomicU8; 0x2000]);

/// Ports: one bit each, set if it exits.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct PortMap([u8; 0x3000]);

/// The map of all guests.
pub static MSR_MAP: MsrMap = MsrMap::new();
/// All ports exit.
pub static PORT_MAP: PortMap = PortMap([0xff; 0x3000]);

impl MsrMap {
    /// Asks the policy only about registers that it lists, of the 24,576: this is evaluated by the
    /// compiler.
    const fn new() -> Self {
        let mut map = [0xff; 0x2000];
        let mut list = 0;
        while list < msr::LISTED.len() {
            let mut range = 0;
            while range < msr::LISTED[list].len() {
                let (first, last) = msr::LISTED[list][range];
                let mut register = first;
                while register <= last {
                    let read = matches!(msr::read(register), Access::Pass) as u8;
                    let write = matches!(msr::write(register), Access::Pass) as u8;
                    if let Some((byte, shift)) = place(register) {
                        map[byte] &= !((read | write << 1) << shift);
                    }
                    register += 1;
                }
                range += 1;
            }
            list += 1;
        }
        let mut bytes = [const { AtomicU8::new(0) }; 0x2000];
        let mut byte = 0;
        while byte < map.len() {
            bytes[byte] = AtomicU8::new(map[byte]);
            byte += 1;
        }
        Self(bytes)
    }

    /// Has registers exit that show which core the guest's is, or its time: see [`msr::DISGUISED`].
    pub fn disguise(&self) {
        for (register, read, write) in msr::DISGUISED {
            if let Some((byte, shift)) = place(register) {
                let bits = u8::from(read) | u8::from(write) << 1;
                self.0[byte].fetch_or(bits << shift, Ordering::Relaxed);
            }
        }
    }

    /// Physical and virtual address are offset alike: its virtual address.
    #[must_use]
    pub fn address(&'static self) -> u64 {
        self.0.as_ptr() as u64
    }
}

/// Byte of the map, and shift in it, of a register's bits; `None` for one that always exits.
const fn place(register: u32) -> Option<(usize, usize)> {
    let mut range = 0;
    while range < RANGES.len() {
        let number = register.wrapping_sub(RANGES[range]) as usize;
        if number < RANGE_REGISTERS {
            return Some((range * RANGE_BYTES + number / 4, number % 4 * 2));
        }
        range += 1;
    }
    None
}

impl PortMap {
    /// Its virtual address.
    #[must_use]
    pub fn address(&'static self) -> u64 {
        self.0.as_ptr() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exits(register: u32, write: bool) -> bool {
        let (byte, shift) = place(register).expect("in the map");
        MSR_MAP.0[byte].load(Ordering::Relaxed) >> shift & 1 << u8::from(write) != 0
    }

    #[test]
    fn exactly_what_passes_does_not_exit() {
        for register in RANGES.iter().flat_map(|&first| first..first + 8192) {
            assert_eq!(exits(register, false), msr::read(register) != Access::Pass);
            assert_eq!(exits(register, true), msr::write(register) != Access::Pass);
        }
    }

    #[test]
    fn the_interrupt_command_register_exits_when_written() {
        assert!(exits(0x830, true) && !exits(0x830, false));
        assert!(!exits(0x80b, true));
    }

    #[test]
    fn a_disguise_adds_exits() {
        let map = MsrMap::new();
        map.disguise();
        let exits = |register, write| {
            let (byte, shift) = place(register).expect("in the map");
            map.0[byte].load(Ordering::Relaxed) >> shift & 1 << u8::from(write) != 0
        };
        assert!(exits(0x802, false) && exits(0x80d, false));
        assert!(exits(0x6e0, false) && exits(0x6e0, true));
        assert!(!exits(0x80b, true) && !exits(0x838, true));
    }

    #[test]
    fn every_port_exits() {
        assert!(PORT_MAP.0.iter().all(|&byte| byte == 0xff));
    }
}
