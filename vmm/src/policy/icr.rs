//! The interrupt command register: interrupts that the node's kernel sends to cores.
//!
//! Source: Intel SDM volume 3, 11.6.1 "Interrupt Command Register (ICR)", and 11.12.9 for x2APIC mode, in
//! which it is one MSR of 64 bits.

/// A destination that stands for all cores.
const BROADCAST: u32 = u32::MAX;
/// Logical ids of a cluster: one bit each.
const CLUSTER_BITS: u32 = 16;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// An interrupt with this vector.
    Fixed(u8),
    /// A non-maskable interrupt.
    Nmi,
    /// A reset, to wait for a start-up IPI.
    Init,
    /// A start at the page of this number.
    Startup(u8),
}

/// The cores that it is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The sender.
    Sender,
    /// All cores, with or without the sender.
    All {
        /// Whether the sender is one of them.
        with_sender: bool,
    },
    /// The core with this id.
    Physical(u32),
    /// Cores of a cluster (upper 16 bits), one for each of the lower 16 bits.
    Logical(u32),
}

/// What is done with a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing: it has no effect on a modern processor.
    Ignored,
    /// Send it to those cores of the node that are addressed.
    Send(Message, Destination),
    /// Send it to another kernel, whose doorbell it is.
    Ring {
        /// Physical id of the local APIC.
        apic_id: u32,
        /// The vector.
        vector: u8,
    },
    /// An interrupt for another kernel that is no doorbell. It may have been one: a doorbell moves when
    /// the other kernel moves its interrupt, and is then rung again (`kmod/arch/x86/doorbell.c`). So it
    /// is lost, and the node goes on.
    Dropped,
    /// Nothing that a node may send.
    Violation,
}

impl Destination {
    /// Reads it from a command.
    fn of(command: u64) -> Self {
        let id = (command >> 32) as u32;
        match (command >> 18 & 3, command & 1 << 11 != 0) {
            (1, _) => Self::Sender,
            (2, _) => Self::All { with_sender: true },
            (3, _) => Self::All { with_sender: false },
            (_, _) if id == BROADCAST => Self::All { with_sender: true },
            (_, false) => Self::Physical(id),
            (_, true) => Self::Logical(id),
        }
    }

    /// Whether a core is addressed by `sender`.
    #[must_use]
    pub fn includes(self, core: u32, sender: u32) -> bool {
        match self {
            Self::Sender => core == sender,
            Self::All { with_sender } => with_sender || core != sender,
            Self::Physical(id) => core == id,
            Self::Logical(id) => core >> 4 == id >> 16 && id & 1 << (core & 0xf) != 0,
        }
    }

    /// Whether only cores are addressed for which `is_own`. All cores are those of the node: a node sees
    /// no others.
    fn is_within(self, is_own: impl Fn(u32) -> bool) -> bool {
        match self {
            Self::Sender | Self::All { .. } => true,
            Self::Physical(id) => is_own(id),
            Self::Logical(id) => (0..CLUSTER_BITS)
                .filter(|bit| id & 1 << bit != 0)
                .all(|bit| is_own(id >> 16 << 4 | bit)),
        }
    }
}

/// Decides what is done with a command that the node's kernel writes: `is_own` tells cores of the node by
/// their APIC ids, `is_doorbell` whether a core and vector are one that it may ring.
#[must_use]
pub fn decide(
    command: u64,
    is_own: impl Fn(u32) -> bool,
    is_doorbell: impl Fn(u32, u8) -> bool,
) -> Decision {
    let destination = Destination::of(command);
    let vector = command as u8;
    let is_within = destination.is_within(is_own);
    let message = match command >> 8 & 7 {
        // Lowest priority, which x2APIC mode lacks, is sent like a fixed one.
        0 | 1 => match (is_within, destination) {
            (false, Destination::Physical(apic_id)) if is_doorbell(apic_id, vector) => {
                return Decision::Ring { apic_id, vector };
            }
            (false, _) => return Decision::Dropped,
            (true, _) => Message::Fixed(vector),
        },
        4 => Message::Nmi,
        // A level that is not asserted: only processors before the Pentium 4 knew it.
        5 if command & 1 << 14 == 0 => return Decision::Ignored,
        5 => Message::Init,
        6 => Message::Startup(vector),
        _ => return Decision::Violation,
    };
    match is_within {
        true => Decision::Send(message, destination),
        false => Decision::Violation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASSERT: u64 = 1 << 14;

    fn is_own(apic_id: u32) -> bool {
        (2..4).contains(&apic_id)
    }

    fn decided(command: u64) -> Decision {
        decide(command, is_own, |apic_id, vector| {
            (apic_id, vector) == (0, 0x33)
        })
    }

    fn to(apic_id: u64, command: u64) -> u64 {
        apic_id << 32 | ASSERT | command
    }

    #[test]
    fn cores_of_the_node_are_reached() {
        let physical = Destination::Physical(3);
        assert_eq!(
            decided(to(3, 0xfd)),
            Decision::Send(Message::Fixed(0xfd), physical)
        );
        assert_eq!(
            decided(to(3, 0x400)),
            Decision::Send(Message::Nmi, physical)
        );
        assert_eq!(
            decided(to(3, 0x500)),
            Decision::Send(Message::Init, physical)
        );
        assert_eq!(
            decided(to(3, 0x69a)),
            Decision::Send(Message::Startup(0x9a), physical)
        );
        assert_eq!(decided(3 << 32 | 1 << 15 | 0x500), Decision::Ignored);
    }

    #[test]
    fn doorbells_are_rung_and_other_interrupts_of_other_kernels_dropped() {
        let (apic_id, vector) = (0, 0x33);
        assert_eq!(decided(to(0, 0x33)), Decision::Ring { apic_id, vector });
        assert_eq!(decided(to(0, 0x34)), Decision::Dropped);
        assert_eq!(decided(to(1, 0x33)), Decision::Dropped);
    }

    #[test]
    fn other_kernels_are_neither_reset_nor_stopped() {
        for mode in [0x200, 0x300, 0x400, 0x500, 0x600, 0x700] {
            assert_eq!(decided(to(0, mode)), Decision::Violation, "{mode:#x}");
            // Logical destination: the cluster of cores 0 to 15, all of them.
            assert_eq!(
                decided(to(0xffff, mode | 1 << 11)),
                Decision::Violation,
                "{mode:#x}"
            );
        }
    }

    #[test]
    fn all_cores_are_those_of_the_node() {
        let all = Destination::All { with_sender: true };
        for command in [to(u64::from(BROADCAST), 0x400), to(0, 0x400 | 2 << 18)] {
            assert_eq!(decided(command), Decision::Send(Message::Nmi, all));
        }
        let others = Destination::All { with_sender: false };
        assert!(others.includes(3, 2) && !others.includes(2, 2));
        assert!(Destination::Sender.includes(2, 2) && !Destination::Sender.includes(3, 2));
    }

    #[test]
    fn logical_ids_name_cores_of_a_cluster() {
        let both = Destination::Logical(0b1100);
        assert!(both.includes(2, 0) && both.includes(3, 0) && !both.includes(4, 0));
        assert_eq!(
            decided(to(0b1100, 0x400 | 1 << 11)),
            Decision::Send(Message::Nmi, both)
        );
        assert_eq!(decided(to(0b1110, 0x400 | 1 << 11)), Decision::Violation);
        // Cluster 1 begins at core 16.
        assert!(Destination::Logical(1 << 16 | 1).includes(16, 0));
    }

    /// Whatever is written, only cores of the node, or a doorbell, are reached.
    #[test]
    fn no_command_reaches_another_kernel() {
        let mut command = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..1_000_000 {
            command ^= command << 13;
            command ^= command >> 7;
            command ^= command << 17;
            // Half of them with a small id.
            let command = if command & 1 << 31 == 0 {
                command & 0xf_ffff_ffff
            } else {
                command
            };
            match decided(command) {
                Decision::Send(_, destination) => {
                    let all = matches!(destination, Destination::All { .. } | Destination::Sender);
                    let foreign =
                        (0..64).find(|&core| destination.includes(core, 2) && !is_own(core));
                    assert!(all || foreign.is_none(), "{command:#x} reaches {foreign:?}");
                }
                Decision::Ring { apic_id, vector } => assert_eq!((apic_id, vector), (0, 0x33)),
                _ => {}
            }
        }
    }
}
