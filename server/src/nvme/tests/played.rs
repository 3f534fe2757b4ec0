//! A controller that is played: its registers, and a disk in memory. It checks what a driver has to keep to.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use nix::errno::Errno;

use crate::pci::{Device, DeviceMemory};

const PAGE: u64 = 4096;
/// Registers that it has, and bytes from one doorbell to the next.
const SIZE: usize = 0x2000;
const DISTANCE: usize = 8;
pub(super) const BLOCKS: u64 = 4096;

/// What it does wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fault {
    #[default]
    None,
    /// It is never ready.
    NeverReady,
    /// It does not complete commands of I/O.
    Silent,
    /// It completes a command of I/O only when it is waited for.
    Late,
    /// It reports a fatal error in place of completing one.
    Fatal,
    /// It disappears in place of completing one.
    Gone,
    /// It completes a command that there is none of.
    WrongNumber,
    /// It fails commands that begin with this block.
    FailsBlock(u64),
    /// It fails commands of I/O with this status.
    Status(u8, u8),
}

/// What kind of controller it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) block_shift: u8,
    /// Most bytes of a command, as the controller says it.
    pub(super) transfer_shift: u8,
    pub(super) has_cache: bool,
    pub(super) can_write_zeroes: bool,
    pub(super) entries: u16,
    pub(super) metadata: u16,
    pub(super) namespaces: u32,
    pub(super) can_interrupt: bool,
}

impl Default for Kind {
    fn default() -> Self {
        Self {
            block_shift: 9,
            transfer_shift: 5,
            has_cache: true,
            can_write_zeroes: true,
            entries: 8,
            metadata: 0,
            namespaces: 1,
            can_interrupt: true,
        }
    }
}

/// A queue, as the controller sees it.
#[derive(Clone, Copy, Debug, Default)]
struct Circle {
    start: u64,
    entries: u16,
    at: u16,
    /// Of completions.
    phase: bool,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) kind: Kind,
    pub(super) fault: Fault,
    pub(super) disk: Vec<u8>,
    /// Operations of I/O, and how many blocks they were for.
    pub(super) log: Vec<(u8, u32)>,
    memory: BTreeMap<u64, Vec<u8>>,
    next: u64,
    registers: BTreeMap<usize, u32>,
    submissions: [Circle; 2],
    completions: [Circle; 2],
    pub(super) has_dma: bool,
    is_gone: bool,
    pub(super) was_shut_down: bool,
    has_interrupt: bool,
    /// Most commands of I/O that it was given at once.
    pub(super) most_at_once: usize,
    /// What it will complete late.
    late: Vec<(u16, (u8, u8))>,
    /// How often an interrupt was waited for.
    pub(super) waits: u32,
}

/// A handle of the controller.
#[derive(Clone, Debug)]
pub(super) struct Played(pub(super) Rc<RefCell<World>>);

#[derive(Debug)]
pub(super) struct PlayedMemory {
    world: Rc<RefCell<World>>,
    address: u64,
}

impl Played {
    pub(super) fn new(kind: Kind) -> Self {
        Self(Rc::new(RefCell::new(World {
            kind,
            fault: Fault::None,
            disk: vec![0; (BLOCKS as usize) << kind.block_shift],
            log: Vec::new(),
            memory: BTreeMap::new(),
            next: 0x1_2345_0000,
            registers: BTreeMap::new(),
            submissions: Default::default(),
            completions: Default::default(),
            has_dma: false,
            is_gone: false,
            was_shut_down: false,
            has_interrupt: false,
            most_at_once: 0,
            late: Vec::new(),
            waits: 0,
        })))
    }

    pub(super) fn set_fault(&self, fault: Fault) {
        self.0.borrow_mut().fault = fault;
    }

    /// Whether it may access memory, or is enabled.
    pub(super) fn is_active(&self) -> bool {
        let world = self.0.borrow();
        world.has_dma || world.register(0x14) & 1 != 0
    }
}

impl World {
    fn register(&self, at: usize) -> u32 {
        self.registers.get(&at).copied().unwrap_or_default()
    }

    fn address_in(&self, at: usize) -> u64 {
        u64::from(self.register(at + 4)) << 32 | u64::from(self.register(at))
    }

    /// Memory at a device address: the rest of its block.
    fn at(&mut self, address: u64) -> &mut [u8] {
        assert!(self.has_dma, "it may not access memory");
        let (start, bytes) = self.memory.range_mut(..=address).next_back().unwrap();
        &mut bytes[(address - start) as usize..]
    }

    fn configure(&mut self, value: u32) {
        let old = self.register(0x14);
        self.registers.insert(0x14, value);
        if value & 1 != 0 && old & 1 == 0 {
            assert_eq!(value >> 4 & 0x7f, 0, "pages of 4 KiB, commands of NVM");
            assert_eq!(value >> 16 & 0xff, 0x46, "sizes of entries");
            let sizes = self.register(0x24);
            let part = |start: u64, size: u32| Circle {
                start,
                entries: size as u16 + 1,
                at: 0,
                phase: true,
            };
            self.submissions[0] = part(self.address_in(0x28), sizes & 0xfff);
            self.completions[0] = part(self.address_in(0x30), sizes >> 16);
        }
        let is_ready = value & 1 != 0 && self.fault != Fault::NeverReady;
        let shutdown = match value >> 14 & 3 {
            0 => 0,
            _ => 2 << 2,
        };
        self.was_shut_down |= shutdown != 0;
        self.registers.insert(0x1c, u32::from(is_ready) | shutdown);
    }

    fn ring(&mut self, doorbell: usize, value: u16) {
        let queue = doorbell / 2;
        if doorbell % 2 == 1 {
            assert_eq!(value, self.completions[queue].at, "each is taken");
            return;
        }
        let mut given = 0;
        while self.submissions[queue].at != value {
            given += 1;
            let circle = &mut self.submissions[queue];
            assert!(value < circle.entries);
            let at = circle.start + 64 * u64::from(circle.at);
            circle.at = (circle.at + 1) % circle.entries;
            let command: [u8; 64] = self.at(at)[..64].try_into().unwrap();
            let word = |at: usize| u32::from_le_bytes(command[at..at + 4].try_into().unwrap());
            let status = match queue {
                0 => self.administer(&word),
                _ => self.serve(&word),
            };
            self.complete(queue, (word(0) >> 16) as u16, status);
        }
        if queue == 1 {
            self.most_at_once = self.most_at_once.max(given);
        }
    }

    fn complete(&mut self, queue: usize, number: u16, (kind, code): (u8, u8)) {
        let number = match (queue, self.fault) {
            (1, Fault::Silent) => return,
            (1, Fault::Late) => return self.late.push((number, (kind, code))),
            (1, Fault::Gone) => return self.is_gone = true,
            (1, Fault::Fatal) => {
                self.registers.insert(0x1c, 3);
                return;
            }
            (1, Fault::WrongNumber) => number.wrapping_add(1),
            _ => number,
        };
        self.put(queue, number, (kind, code));
    }

    fn put(&mut self, queue: usize, number: u16, (kind, code): (u8, u8)) {
        let circle = &mut self.completions[queue];
        let (at, phase) = (circle.start + 16 * u64::from(circle.at), circle.phase);
        circle.at = (circle.at + 1) % circle.entries;
        circle.phase ^= circle.at == 0;
        let status = u32::from(kind) << 25 | u32::from(code) << 17;
        let last = status | u32::from(phase) << 16 | u32::from(number);
        self.at(at)[12..16].copy_from_slice(&last.to_le_bytes());
    }

    /// Commands of administration.
    fn administer(&mut self, word: &impl Fn(usize) -> u32) -> (u8, u8) {
        let data = u64::from(word(28)) << 32 | u64::from(word(24));
        let circle = |phase| Circle {
            start: data,
            entries: (word(40) >> 16) as u16 + 1,
            at: 0,
            phase,
        };
        match word(0) as u8 {
            0x06 => {
                let structure = self.structure(word(40), word(4));
                self.at(data)[..4096].copy_from_slice(&structure);
            }
            0x09 => assert_eq!((word(40), word(44)), (7, 0)),
            0x05 => {
                let flags = 1 | u32::from(self.has_interrupt) << 1;
                assert_eq!((word(40) as u16, word(44)), (1, flags));
                self.completions[1] = circle(true);
            }
            0x01 => {
                assert_eq!((word(40) as u16, word(44)), (1, 1 << 16 | 1));
                assert!(self.completions[1].entries > 0);
                self.submissions[1] = circle(false);
            }
            opcode => panic!("command {opcode:#x}"),
        }
        assert!(circle(true).entries <= self.kind.entries);
        (0, 0)
    }

    fn structure(&self, structure: u32, namespace: u32) -> [u8; 4096] {
        let mut bytes = [0; 4096];
        match structure {
            0 => {
                assert_eq!(namespace, 1);
                bytes[..8].copy_from_slice(&BLOCKS.to_le_bytes());
                // Its second format.
                bytes[26] = 1;
                bytes[132..134].copy_from_slice(&self.kind.metadata.to_le_bytes());
                bytes[134] = self.kind.block_shift;
            }
            1 => {
                bytes[4..24].copy_from_slice(b"serial-1            ");
                bytes[24..34].copy_from_slice(b"A disk    ");
                bytes[34..64].fill(b' ');
                bytes[77] = self.kind.transfer_shift;
                bytes[520] = u8::from(self.kind.can_write_zeroes) << 3;
                bytes[525] = u8::from(self.kind.has_cache);
            }
            2 => bytes[..4].copy_from_slice(&self.kind.namespaces.to_le_bytes()),
            other => panic!("structure {other}"),
        }
        bytes
    }

    /// Commands of I/O.
    fn serve(&mut self, word: &impl Fn(usize) -> u32) -> (u8, u8) {
        if let Fault::Status(kind, code) = self.fault {
            return (kind, code);
        }
        let (opcode, count) = (word(0) as u8, (word(48) & 0xffff) + 1);
        assert_eq!(word(4), 1, "the namespace");
        let (start, bytes) = (
            (u64::from(word(44)) << 32 | u64::from(word(40))) << self.kind.block_shift,
            (count as usize) << self.kind.block_shift,
        );
        if self.fault == Fault::FailsBlock(start >> self.kind.block_shift) {
            return (0, 6);
        }
        let range = start as usize..start as usize + bytes;
        match opcode {
            0x00 => self.log.push((opcode, 0)),
            _ => self.log.push((opcode, count)),
        }
        match opcode {
            0x00 => {}
            0x08 => self.disk[range].fill(0),
            0x01 | 0x02 => {
                assert!(bytes <= (PAGE as usize) << self.kind.transfer_shift);
                let first = u64::from(word(28)) << 32 | u64::from(word(24));
                let second = u64::from(word(36)) << 32 | u64::from(word(32));
                self.transfer(opcode == 0x01, range, (first, second));
            }
            opcode => panic!("command {opcode:#x}"),
        }
        (0, 0)
    }

    /// Moves bytes page by page.
    fn transfer(&mut self, is_write: bool, range: std::ops::Range<usize>, data: (u64, u64)) {
        let pages = range.len().div_ceil(PAGE as usize);
        for page in 0..pages {
            let address = match (page, pages) {
                (0, _) => data.0,
                (1, 2) => data.1,
                _ => {
                    let entry = &self.at(data.1)[8 * (page - 1)..][..8];
                    u64::from_le_bytes(entry.try_into().unwrap())
                }
            };
            assert!(address != 0 && address.is_multiple_of(PAGE));
            let at = range.start + page * PAGE as usize;
            let part = at..range.end.min(at + PAGE as usize);
            if is_write {
                let bytes = self.at(address)[..part.len()].to_vec();
                self.disk[part].copy_from_slice(&bytes);
            } else {
                let bytes = self.disk[part].to_vec();
                self.at(address)[..bytes.len()].copy_from_slice(&bytes);
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
        match offset {
            _ if world.is_gone => u32::MAX,
            0x00 => 1 << 24 | u32::from(world.kind.entries - 1),
            // NVM, and doorbells of 8 bytes.
            0x04 => 1 << 5 | 1,
            offset => world.register(offset),
        }
    }

    fn write(&mut self, offset: usize, value: u32) {
        let mut world = self.0.borrow_mut();
        match offset {
            0x14 => world.configure(value),
            0x1000.. => world.ring((offset - 0x1000) / DISTANCE, value as u16),
            _ => {
                world.registers.insert(offset, value);
            }
        }
    }

    fn enable_dma(&mut self, is_on: bool) -> Result<(), Errno> {
        self.0.borrow_mut().has_dma = is_on;
        Ok(())
    }

    fn allocate(&mut self, bytes: usize) -> Result<PlayedMemory, Errno> {
        let mut world = self.0.borrow_mut();
        let address = world.next;
        world.memory.insert(address, vec![0; bytes]);
        world.next += bytes.next_multiple_of(PAGE as usize) as u64 + PAGE;
        Ok(PlayedMemory {
            world: Rc::clone(&self.0),
            address,
        })
    }

    fn enable_interrupt(&mut self) -> bool {
        let mut world = self.0.borrow_mut();
        world.has_interrupt = world.kind.can_interrupt;
        world.has_interrupt
    }

    fn wait(&mut self, _: Duration) {
        let mut world = self.0.borrow_mut();
        assert!(world.has_interrupt);
        world.waits += 1;
        for (number, status) in std::mem::take(&mut world.late).into_iter().rev() {
            world.put(1, number, status);
        }
    }
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
