//! I/O ports that programs may use (the I/O permission bitmap of the task state segment).

use super::per_core;

/// Ports that can be given to programs: those below this number. Beyond are those of cards, whose
/// place the base chooses.
pub const PORTS: u16 = 0xd00;
/// Bytes of the bitmap: one more follows those that count (Intel SDM volume 1, 19.5.2).
pub(super) const BITMAP_SIZE: usize = PORTS as usize / 8 + 1;

/// A set of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSet {
    /// A bit is clear for a port of the set.
    denied: [u8; BITMAP_SIZE],
}

impl Default for PortSet {
    fn default() -> Self {
        Self {
            denied: [u8::MAX; BITMAP_SIZE],
        }
    }
}

impl PortSet {
    /// Adds the ports from `first` up to, and without, `end`, or removes them. Those that no program
    /// can be given stay out.
    pub fn set(&mut self, first: u16, end: u16, is_in: bool) {
        for port in first..end.min(PORTS) {
            let (byte, bit) = (&mut self.denied[usize::from(port / 8)], 1 << (port % 8));
            match is_in {
                true => *byte &= !bit,
                false => *byte |= bit,
            }
        }
    }

    /// Whether a port is in it.
    #[must_use]
    pub fn has(&self, port: u16) -> bool {
        port < PORTS && self.denied[usize::from(port / 8)] & 1 << (port % 8) == 0
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.denied.iter().all(|byte| *byte == u8::MAX)
    }

    pub(super) fn bitmap(&self) -> &[u8; BITMAP_SIZE] {
        &self.denied
    }
}

/// Lets the programs that the calling core enters from now on use these ports, and no others.
pub fn permit(ports: Option<&PortSet>) {
    per_core::permit_ports(ports);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_added_and_removed() {
        let mut set = PortSet::default();
        assert!(set.is_empty());
        set.set(0xcf9, 0xcfa, true);
        set.set(0x60, 0x65, true);
        let has = |set: &PortSet| (0..=u16::MAX).filter(|port| set.has(*port)).count();
        assert_eq!(has(&set), 6);
        assert!(set.has(0xcf9) && set.has(0x60) && set.has(0x64) && !set.has(0x65));
        set.set(0x61, 0x64, false);
        assert!(set.has(0x60) && !set.has(0x61) && !set.has(0x63) && set.has(0x64));
        set.set(0, u16::MAX, true);
        assert_eq!(has(&set), usize::from(PORTS));
        set.set(0, u16::MAX, false);
        assert!(set.is_empty());
    }

    /// The processor reads two bytes for each access: the last must deny.
    #[test]
    fn the_byte_behind_the_last_port_denies() {
        let mut set = PortSet::default();
        set.set(0, u16::MAX, true);
        assert_eq!(set.bitmap()[BITMAP_SIZE - 1], u8::MAX);
    }
}
