//! I/O ports. A confined node has none.
//!
//! A stock kernel looks for legacy devices at some ports, also where its tables say that there are none
//! (docs/src/node-view.md, "What a node still accesses of the machine"). There it finds what a machine
//! without the device returns. Other ports are a violation.

/// What an access to a port does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// There is no device: this is read, and writes are lost.
    Absent(u32),
    /// The node is reset.
    Reset,
    /// Not for a node.
    Violation,
}

/// Bits of a bus that nobody drives.
const FLOATING: u32 = u32::MAX;

/// Ports of devices that are absent, and what is read from them.
const ABSENT: [(core::ops::RangeInclusive<u16>, u32); 15] = [
    // Interrupt controllers, and their edge and level registers.
    (0x20..=0x21, FLOATING),
    (0xa0..=0xa1, FLOATING),
    (0x4d0..=0x4d1, FLOATING),
    // Timer: at 0, calibration (`quick_pit_calibrate` of Linux' arch/x86/kernel/tsc.c) fails at once.
    (0x40..=0x43, 0),
    // Keyboard controller, and the ports between its two: system control, timer gate.
    (0x60..=0x64, FLOATING),
    // Real-time clock: at 0, no update is in progress for which Linux would wait.
    (0x70..=0x71, 0),
    // Delays and diagnostics.
    (0x80..=0x80, FLOATING),
    (0xed..=0xed, FLOATING),
    // Fast A20 gate and reset.
    (0x92..=0x92, FLOATING),
    // Super-I/O.
    (0x2e..=0x2f, FLOATING),
    (0x4e..=0x4f, FLOATING),
    // Serial ports.
    (0x2e8..=0x2ff, FLOATING),
    (0x3e8..=0x3ff, FLOATING),
    // PCI configuration; PM1 blocks and all else of a chipset are not in the list.
    (0xcf8..=0xcff, FLOATING),
    // VGA registers.
    (0x3b0..=0x3df, FLOATING),
];

/// Classifies a read of `port`.
#[must_use]
pub fn read(port: u16) -> Access {
    absent(port)
}

/// Classifies a write of `value`, of which the lowest byte counts, to `port`.
#[must_use]
pub fn write(port: u16, value: u32) -> Access {
    match (port, value as u8) {
        // Keyboard controller: pulse the reset line (with any of the other lines).
        (0x64, command) if command & 0xf1 == 0xf0 => Access::Reset,
        // Fast reset.
        (0x92, value) if value & 1 != 0 => Access::Reset,
        // Reset control register: a hard or soft reset when bit 2 is set.
        (0xcf9, value) if value & 4 != 0 => Access::Reset,
        _ => absent(port),
    }
}

fn absent(port: u16) -> Access {
    let found = ABSENT.iter().find(|(ports, _)| ports.contains(&port));
    found.map_or(Access::Violation, |&(_, value)| Access::Absent(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legacy_devices_are_absent() {
        assert_eq!(read(0x71), Access::Absent(0));
        assert_eq!(read(0x42), Access::Absent(0));
        assert_eq!(read(0xcfc), Access::Absent(FLOATING));
        assert_eq!(write(0x70, 0x8f), Access::Absent(0));
        assert_eq!(write(0xcf8, 0x8000_0000), Access::Absent(FLOATING));
    }

    #[test]
    fn every_way_to_reset_by_a_port_resets_the_node() {
        for (port, value) in [
            (0x64, 0xfe),
            (0x64, 0xf0),
            (0x92, 0x01),
            (0xcf9, 0x06),
            (0xcf9, 0x0e),
        ] {
            assert_eq!(write(port, value), Access::Reset, "{port:#x} {value:#x}");
        }
        assert_eq!(write(0x64, 0xd1), Access::Absent(FLOATING));
        assert_eq!(write(0xcf9, 0x02), Access::Absent(FLOATING));
    }

    #[test]
    fn everything_else_is_a_violation() {
        let allowed = (0..=u16::MAX).filter(|&port| read(port) != Access::Violation);
        assert_eq!(
            allowed.count(),
            ABSENT.iter().map(|(ports, _)| ports.len()).sum::<usize>()
        );
        // The base's ACPI registers of QEMU's machines, and a disk controller.
        for port in [0x604, 0xb000, 0x1f0, 0xb2, 0x505] {
            assert_eq!(read(port), Access::Violation);
            assert_eq!(write(port, 0), Access::Violation);
        }
    }
}
