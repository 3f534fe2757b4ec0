//! A card that is played: its registers and queues. What is sent comes back to it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use nix::errno::Errno;

use crate::pci::{Device, DeviceMemory, SmallRegisters};

/// Where it has its registers.
pub(super) const COMMON: usize = 0;
pub(super) const CARD: usize = 0x100;
pub(super) const NOTIFY: usize = 0x200;
pub(super) const DISTANCE: usize = 4;
const SIZE: usize = 0x1000;
/// Flag of a descriptor: the device writes it.
const WRITES: u16 = 2;

/// What it does wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fault {
    #[default]
    None,
    /// It lacks registers of virtio 1.0.
    Legacy,
    /// It refuses the driver's features.
    Refuses,
    /// It is never reset.
    Stuck,
    /// It uses a descriptor that it was not given.
    WrongNumber,
    /// It has written more than there is room for.
    WrongLength,
    /// It gives up.
    NeedsReset,
    /// It has no messages.
    NoMessages,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ring {
    size: u16,
    parts: [u64; 3],
    is_enabled: bool,
    available: u16,
    used: u16,
}

#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) fault: Fault,
    pub(super) status: u8,
    pub(super) has_dma: bool,
    selected: usize,
    feature_half: u32,
    features: [u32; 2],
    rings: [Ring; 2],
    /// Message of each queue, and how often it has interrupted.
    messages: [u16; 2],
    pub(super) interrupts: u32,
    memory: BTreeMap<u64, Vec<u8>>,
}

/// A handle of the card.
#[derive(Clone, Debug, Default)]
pub(super) struct Played(pub(super) Rc<RefCell<World>>);

impl World {
    fn bytes(&mut self, address: u64, length: usize) -> &mut [u8] {
        let (start, block) = self.memory.range_mut(..=address).next_back().unwrap();
        let at = (address - start) as usize;
        &mut block[at..at + length]
    }

    fn word16(&mut self, address: u64) -> u16 {
        u16::from_le_bytes(self.bytes(address, 2).try_into().unwrap())
    }

    /// Takes the next available descriptor of a queue: its number, address and length.
    fn take(&mut self, queue: usize) -> Option<(u16, u64, usize)> {
        let Ring {
            size,
            parts,
            available,
            ..
        } = self.rings[queue];
        let [descriptors, ring, _] = parts;
        if self.word16(ring + 2) == available {
            return None;
        }
        let number = self.word16(ring + 4 + 2 * u64::from(available % size));
        assert!(number < size);
        self.rings[queue].available = available.wrapping_add(1);
        let descriptor: [u8; 16] = self
            .bytes(descriptors + 16 * u64::from(number), 16)
            .try_into()
            .unwrap();
        let part = |at: usize| u32::from_le_bytes(descriptor[at..at + 4].try_into().unwrap());
        let address = u64::from(part(4)) << 32 | u64::from(part(0));
        let is_written = part(12) as u16 & WRITES != 0;
        assert_eq!(is_written, queue == 0);
        Some((number, address, part(8) as usize))
    }

    fn put_used(&mut self, queue: usize, number: u16, length: usize) {
        let Ring {
            size, parts, used, ..
        } = self.rings[queue];
        let mut element = [0; 8];
        element[..4].copy_from_slice(&u32::from(number).to_le_bytes());
        element[4..].copy_from_slice(&(length as u32).to_le_bytes());
        let at = parts[2] + 4 + 8 * u64::from(used % size);
        self.bytes(at, 8).copy_from_slice(&element);
        let used = used.wrapping_add(1);
        self.rings[queue].used = used;
        self.bytes(parts[2] + 2, 2)
            .copy_from_slice(&used.to_le_bytes());
        const NO_INTERRUPT: u16 = 1;
        if self.word16(parts[1]) & NO_INTERRUPT == 0 {
            assert_eq!((queue, self.messages[queue]), (0, 1));
            self.interrupts += 1;
        }
    }

    /// Has all frames that are sent arrive.
    fn work(&mut self) {
        assert!(self.has_dma && self.status & 4 != 0);
        assert!(self.rings.iter().all(|ring| ring.is_enabled));
        while let Some((number, from, length)) = self.take(1) {
            let frame = self.bytes(from, length).to_vec();
            assert_eq!(frame[..12], [0; 12]);
            self.put_used(1, number, 0);
            let Some((number, to, room)) = self.take(0) else {
                continue;
            };
            assert!(length <= room);
            self.bytes(to, length).copy_from_slice(&frame);
            match self.fault {
                Fault::WrongNumber => self.put_used(0, 999, length),
                Fault::WrongLength => self.put_used(0, number, 4096),
                Fault::NeedsReset => self.status |= 64,
                _ => self.put_used(0, number, length),
            }
        }
    }
}

impl Device for Played {
    type Memory = PlayedMemory;

    fn size(&self) -> usize {
        SIZE
    }

    fn read(&self, offset: usize) -> u32 {
        let world = self.0.borrow();
        match (offset, world.feature_half, world.fault) {
            (0x04, 0, _) => 1 << 5 | 1 << 15,
            (0x04, _, Fault::Legacy) => 0,
            (0x04, ..) => 1,
            _ => panic!("read of {offset:#x}"),
        }
    }

    fn write(&mut self, offset: usize, value: u32) {
        let mut world = self.0.borrow_mut();
        let half = world.feature_half as usize;
        let selected = world.selected;
        match offset {
            0x00 | 0x08 => world.feature_half = value,
            0x0c => world.features[half] = value,
            0x20..0x38 => {
                let part = &mut world.rings[selected].parts[(offset - 0x20) / 8];
                let shift = if offset.is_multiple_of(8) { 0 } else { 32 };
                *part |= u64::from(value) << shift;
            }
            _ => panic!("write to {offset:#x}"),
        }
    }

    fn enable_dma(&mut self, is_on: bool) -> Result<(), Errno> {
        self.0.borrow_mut().has_dma = is_on;
        Ok(())
    }

    fn allocate(&mut self, bytes: usize) -> Result<PlayedMemory, Errno> {
        let mut world = self.0.borrow_mut();
        let address = 0x1_0000_0000 + 0x10_0000 * world.memory.len() as u64;
        world.memory.insert(address, vec![0; bytes]);
        Ok(PlayedMemory {
            world: Rc::clone(&self.0),
            address,
        })
    }
}

impl SmallRegisters for Played {
    fn read8(&self, offset: usize) -> u8 {
        match offset {
            0x14 => self.0.borrow().status,
            CARD.. => [2, 0, 0, 0, 0, 9][offset - CARD],
            _ => panic!("read of {offset:#x}"),
        }
    }

    fn write8(&mut self, offset: usize, value: u8) {
        assert_eq!(offset, 0x14);
        let mut world = self.0.borrow_mut();
        world.status = match (world.fault, value) {
            (Fault::Stuck, _) => 1,
            (Fault::Refuses, 11) => 3,
            _ => value,
        };
        if value & 8 != 0 {
            assert_eq!(world.features, [1 << 5, 1]);
        }
    }

    fn read16(&self, offset: usize) -> u16 {
        match offset {
            0x18 => 512,
            // Messages are counted from 1 here, 0 is none.
            0x1a => {
                let world = self.0.borrow();
                world.messages[world.selected].wrapping_sub(1)
            }
            0x1e => self.0.borrow().selected as u16,
            _ => panic!("read of {offset:#x}"),
        }
    }

    fn write16(&mut self, offset: usize, value: u16) {
        let mut world = self.0.borrow_mut();
        let selected = world.selected;
        match offset {
            0x16 => world.selected = value.into(),
            0x18 => world.rings[selected].size = value,
            0x1a if world.fault == Fault::NoMessages => {}
            0x1a => world.messages[selected] = value.wrapping_add(1),
            0x1c => world.rings[selected].is_enabled = value == 1,
            NOTIFY.. => {
                assert_eq!(offset, NOTIFY + DISTANCE * usize::from(value));
                world.work();
            }
            _ => panic!("write to {offset:#x}"),
        }
    }
}

#[derive(Debug)]
pub(super) struct PlayedMemory {
    world: Rc<RefCell<World>>,
    address: u64,
}

impl DeviceMemory for PlayedMemory {
    fn device_address(&self) -> u64 {
        self.address
    }

    fn read(&self, at: usize, to: &mut [u8]) {
        let world = self.world.borrow();
        to.copy_from_slice(&world.memory[&self.address][at..at + to.len()]);
    }

    fn write(&mut self, at: usize, from: &[u8]) {
        let mut world = self.world.borrow_mut();
        let bytes = world.memory.get_mut(&self.address).unwrap();
        bytes[at..at + from.len()].copy_from_slice(from);
    }

    fn word(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        self.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn set_word(&mut self, at: usize, value: u32) {
        self.write(at, &value.to_le_bytes());
    }
}
