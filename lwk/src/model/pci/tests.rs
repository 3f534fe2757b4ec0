use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

use insula_abi::pci::{PCI_MAPPINGS_MAX, PCI_MEMORY_MAX};

use crate::model::errno::Errno;
use crate::model::pci::claims::{Claims, Ready};
use crate::model::pci::config::*;
use crate::model::pci::function::*;
use crate::model::pci::msix::{TableEntry, mask, route};

const ADDRESS: u64 = 0x0100;
const PROCESS: u64 = 7;
const OTHER: u64 = 8;
const MS: u64 = 1_000_000;

/// Registers of a function, as a device has them.
#[derive(Debug)]
struct Registers {
    words: Vec<u32>,
    /// Which bits of each can be written.
    writable: Vec<u32>,
    resets: u32,
    /// It does not answer.
    is_away: bool,
}

#[derive(Clone, Debug)]
struct Fake(Rc<RefCell<Registers>>);

const POWER_AT: usize = 0x40 / 4;
const EXPRESS_AT: usize = 0x50 / 4;
const MESSAGES_AT: usize = 0x90 / 4;

impl Fake {
    /// An NVMe controller with a BAR of 16 KiB and 64 bits.
    fn new(has_reset: bool) -> Self {
        let (mut words, mut writable) = (vec![0; 1024], vec![0; 1024]);
        words[0] = 0x0010_1b36;
        words[1] = HAS_CAPABILITIES | 0x6;
        words[2] = 0x0108_0202;
        (words[4], words[5]) = (0x8000_0004, 0x1);
        words[0x34 / 4] = 0x40;
        words[POWER_AT] = 0x5001;
        words[EXPRESS_AT] = 0x9010;
        words[MESSAGES_AT] = 0x0040_0011;
        words[MESSAGES_AT + 1] = 0x2000;
        words[EXPRESS_AT + 1] = u32::from(has_reset) << 28;
        writable[1] = COMMAND_MASK;
        (writable[4], writable[5]) = (0xffff_c000, u32::MAX);
        writable[POWER_AT + 1] = 3;
        writable[MESSAGES_AT] = 0xc000_0000;
        Self(Rc::new(RefCell::new(Registers {
            words,
            writable,
            resets: 0,
            is_away: false,
        })))
    }

    fn word(&self, at: usize) -> u32 {
        self.0.borrow().words[at]
    }

    fn set(&self, at: usize, value: u32) {
        self.0.borrow_mut().words[at] = value;
    }

    fn is_away(&self, is_away: bool) {
        self.0.borrow_mut().is_away = is_away;
    }

    fn claims(&self) -> Claims<Self, u64> {
        let mut claims = Claims::new();
        claims.add(ADDRESS as u32, self.clone()).unwrap();
        claims
    }
}

impl Config for Fake {
    fn read(&self, offset: u16) -> u32 {
        let registers = self.0.borrow();
        match registers.is_away {
            true => u32::MAX,
            false => registers.words[usize::from(offset) / 4],
        }
    }

    fn write(&mut self, offset: u16, value: u32) {
        let mut registers = self.0.borrow_mut();
        let at = usize::from(offset) / 4;
        let writable = registers.writable[at];
        let kept = registers.words[at] & !writable;
        registers.words[at] = kept | value & writable;
        if at == EXPRESS_AT + 2 && value & BEGIN_RESET != 0 {
            registers.resets += 1;
            (registers.words[1], registers.words[4]) = (HAS_CAPABILITIES, 4);
            registers.words[MESSAGES_AT] &= !0xc000_0000;
            registers.words[5] = 0;
        }
    }
}

/// Claims the function. Returns when it was ready.
fn claim(claims: &mut Claims<Fake, u64>, process: u64, now_ns: u64) -> Result<u64, Errno> {
    claims.begin(ADDRESS, process, now_ns)?;
    let mut now_ns = now_ns;
    loop {
        match claims.step(ADDRESS, process, now_ns)? {
            Ready::Now => return Ok(now_ns),
            Ready::At(at_ns) => now_ns = at_ns,
        }
    }
}

#[test]
fn a_function_is_what_its_registers_say() {
    let mut fake = Fake::new(true);
    let function = Function::probe(ADDRESS as u32, &mut fake).unwrap();
    assert_eq!((function.vendor, function.device), (0x1b36, 0x0010));
    assert_eq!(function.class, 0x01_0802);
    let expected = Bar {
        start: 0x1_8000_0000,
        size: 16 << 10,
    };
    assert_eq!(function.bars[0], expected);
    assert!(function.bars[1..].iter().all(|bar| bar.size == 0));
    assert!(function.has_reset());
    assert_eq!(fake.word(4), 0x8000_0004, "its address is as before");
    assert_eq!(fake.word(1) & 0x6, 0, "it is quiet");
    fake.set(3, 0x0001_0000);
    assert!(Function::probe(0, &mut fake).is_none(), "a bridge");
    fake.is_away(true);
    assert!(Function::probe(0, &mut fake).is_none());
}

#[test]
fn capabilities_in_a_circle_have_an_end() {
    let mut fake = Fake::new(true);
    fake.set(POWER_AT, 0x4001);
    let function = Function::probe(ADDRESS as u32, &mut fake).unwrap();
    assert!(!function.has_reset());
}

#[test]
fn a_claim_resets_the_function_and_gives_it_its_address_back() {
    let fake = Fake::new(true);
    let mut claims = fake.claims();
    assert_eq!(claim(&mut claims, PROCESS, 0), Ok(100 * MS));
    assert_eq!(fake.0.borrow().resets, 1);
    assert_eq!((fake.word(4), fake.word(5)), (0x8000_0004, 1));
    assert_eq!(claim(&mut claims, OTHER, 0), Err(Errno::EBUSY));
    assert_eq!(claim(&mut claims, PROCESS, 0), Err(Errno::EBUSY));
    assert_eq!(claims.begin(1, PROCESS, 0), Err(Errno::ENODEV));
    assert!(claims.has_any(PROCESS) && !claims.has_any(OTHER));
}

#[test]
fn a_function_in_low_power_is_woken_first() {
    let fake = Fake::new(true);
    fake.set(POWER_AT + 1, 3);
    assert_eq!(claim(&mut fake.claims(), PROCESS, 0), Ok(110 * MS));
    assert_eq!(fake.word(POWER_AT + 1), 0);
}

#[test]
fn what_does_not_come_back_is_nobodys() {
    let fake = Fake::new(true);
    let mut claims = fake.claims();
    claims.begin(ADDRESS, PROCESS, 0).unwrap();
    claims.step(ADDRESS, PROCESS, 0).unwrap();
    claims.step(ADDRESS, PROCESS, 0).unwrap();
    fake.is_away(true);
    let step = claims.step(ADDRESS, PROCESS, 200 * MS);
    assert_eq!(step, Ok(Ready::At(201 * MS)));
    let step = claims.step(ADDRESS, PROCESS, 2000 * MS);
    assert_eq!(step, Err(Errno::EIO));
    fake.is_away(false);
    assert!(claim(&mut claims, OTHER, 0).is_ok());
}

#[test]
fn only_its_owner_uses_it_and_only_when_it_is_ready() {
    let fake = Fake::new(true);
    let mut claims = fake.claims();
    claims.begin(ADDRESS, PROCESS, 0).unwrap();
    assert_eq!(claims.granted(ADDRESS, PROCESS).err(), Some(Errno::EACCES));
    claims.release_all(PROCESS);
    claim(&mut claims, PROCESS, 0).unwrap();
    assert_eq!(claims.granted(ADDRESS, OTHER).err(), Some(Errno::EACCES));
    assert_eq!(claims.release(ADDRESS, OTHER), Err(Errno::EACCES));
    assert_eq!(claims.step(ADDRESS, OTHER, 0), Err(Errno::EACCES));
    claims.granted(ADDRESS, PROCESS).unwrap().enable(3);
    assert_eq!(fake.word(1) & 0x406, 0x406);
    assert_eq!(claims.release(ADDRESS, PROCESS), Ok(vec![]));
    assert_eq!(fake.word(1) & 0x6, 0);
}

#[test]
fn memory_is_returned_when_the_device_is_quiet() {
    let fake = Fake::new(true);
    let mut claims = fake.claims();
    claim(&mut claims, PROCESS, 0).unwrap();
    let memory = Arc::new(1);
    let mut grant = claims.granted(ADDRESS, PROCESS).unwrap();
    grant.enable(3);
    grant.keep(&memory, PCI_MEMORY_MAX).unwrap();
    assert_eq!(grant.keep(&memory, 1), Err(Errno::ENOMEM));
    assert_eq!(claims.release_all(PROCESS), vec![memory.clone()]);

    claim(&mut claims, PROCESS, 0).unwrap();
    let mut grant = claims.granted(ADDRESS, PROCESS).unwrap();
    grant.keep(&memory, 4096).unwrap();
    fake.set(EXPRESS_AT + 2, TRANSACTIONS_PENDING);
    assert_eq!(claims.release_all(PROCESS), [], "it is still in use");
    assert_eq!(Arc::strong_count(&memory), 2);
    claim(&mut claims, OTHER, 0).unwrap();
    assert_eq!(Arc::strong_count(&memory), 1, "the reset has ended that");
}

#[test]
fn a_bar_is_mapped_in_whole_pages_within_it() {
    let fake = Fake::new(true);
    let mut claims = fake.claims();
    claim(&mut claims, PROCESS, 0).unwrap();
    let mut grant = claims.granted(ADDRESS, PROCESS).unwrap();
    let place = |start, _| Arc::new(start);
    let mapped = grant.map(0, (0x1000, 0x3000), place);
    assert_eq!(mapped, Ok(Arc::new(0x1_8000_1000)));
    for (bar, offset, size) in [
        (0, 0, 0x5000),
        (0, 0x3000, 0x2000),
        (0, 0x800, 0x1000),
        (0, 0, 0x800),
        (0, 0, 0),
        (0, u64::MAX - 0xfff, 0x1000),
        (1, 0, 0x1000),
        (6, 0, 0x1000),
        (u64::MAX, 0, 0x1000),
    ] {
        let refused = grant.map(bar, (offset, size), place);
        assert_eq!(refused, Err(Errno::EINVAL), "{bar} {offset:#x} {size:#x}");
    }
    let kept: Vec<_> = (1..PCI_MAPPINGS_MAX as u64)
        .map(|_| grant.map(0, (0, 0x1000), place))
        .collect();
    assert_eq!(kept.iter().filter(|one| one.is_err()).count(), 0);
    assert_eq!(grant.map(0, (0, 0x1000), place), Err(Errno::ENOMEM));
}

#[test]
fn nobody_claims_what_another_one_has_mapped() {
    let fake = Fake::new(true);
    let mut claims = fake.claims();
    claim(&mut claims, PROCESS, 0).unwrap();
    let mut grant = claims.granted(ADDRESS, PROCESS).unwrap();
    let mapped = grant.map(0, (0, 0x1000), |start, _| Arc::new(start));
    claims.release_all(PROCESS);
    assert_eq!(claim(&mut claims, OTHER, 0), Err(Errno::EBUSY));
    claims.begin(ADDRESS, OTHER, 0).unwrap();
    assert_eq!(claims.step(ADDRESS, OTHER, 0), Ok(Ready::At(MS)));
    drop(mapped);
    assert!(claims.step(ADDRESS, OTHER, MS).is_ok());
}

#[test]
fn without_a_reset_dma_is_on_once() {
    let fake = Fake::new(false);
    let mut claims = fake.claims();
    assert_eq!(claim(&mut claims, PROCESS, 0), Ok(0));
    claims.release_all(PROCESS);
    claim(&mut claims, PROCESS, 0).unwrap();
    claims.granted(ADDRESS, PROCESS).unwrap().enable(3);
    claims.release_all(PROCESS);
    assert_eq!(claim(&mut claims, OTHER, 0), Err(Errno::EBUSY));
}

#[test]
fn configuration_space_is_read_in_aligned_parts() {
    let fake = Fake::new(true);
    let mut claims = fake.claims();
    claim(&mut claims, PROCESS, 0).unwrap();
    let grant = claims.granted(ADDRESS, PROCESS).unwrap();
    assert_eq!(grant.read(0, 4), Ok(0x0010_1b36));
    assert_eq!(grant.read(2, 2), Ok(0x0010));
    assert_eq!(grant.read(1, 1), Ok(0x1b));
    for (offset, size) in [
        (1, 2),
        (2, 4),
        (0, 0),
        (0, 3),
        (0, 8),
        (4096, 4),
        (u64::MAX, 1),
    ] {
        assert_eq!(
            grant.read(offset, size),
            Err(Errno::EINVAL),
            "{offset} {size}"
        );
    }
}

#[test]
fn a_message_has_an_entry_of_the_table_while_the_function_decodes() {
    let fake = Fake::new(true);
    let mut claims = fake.claims();
    claim(&mut claims, PROCESS, 0).unwrap();
    let mut grant = claims.granted(ADDRESS, PROCESS).unwrap();
    assert_eq!(grant.message(0), Err(Errno::EINVAL));
    grant.enable(1);
    assert_eq!(grant.message(0), Ok(0x1_8000_2000));
    assert_eq!(grant.message(31), Ok(0x1_8000_21f0));
    assert_eq!(fake.word(MESSAGES_AT) >> 30, 2);
    for number in [32, 65, u64::MAX] {
        assert_eq!(grant.message(number), Err(Errno::EINVAL), "{number}");
    }
    claims.release_all(PROCESS);
    claim(&mut claims, OTHER, 0).unwrap();
    assert_eq!(fake.word(MESSAGES_AT) >> 30, 0, "the reset has ended that");
}

#[test]
fn a_function_without_a_reset_begins_without_interrupts() {
    let fake = Fake::new(false);
    let mut claims = fake.claims();
    claim(&mut claims, PROCESS, 0).unwrap();
    let mut grant = claims.granted(ADDRESS, PROCESS).unwrap();
    grant.enable(1);
    grant.message(0).unwrap();
    claims.release_all(PROCESS);
    claim(&mut claims, OTHER, 0).unwrap();
    assert_eq!(fake.word(MESSAGES_AT) >> 30, 0);
}

#[test]
fn a_table_beyond_its_bar_is_not_used() {
    let at = |place| {
        let fake = Fake::new(true);
        fake.set(MESSAGES_AT + 1, place);
        let mut claims = fake.claims();
        claim(&mut claims, PROCESS, 0).unwrap();
        let mut grant = claims.granted(ADDRESS, PROCESS).unwrap();
        grant.enable(1);
        grant.message(0)
    };
    assert_eq!(at(0x3000), Ok(0x1_8000_3000));
    for place in [0x3c00, 0xffff_fff8, 1, 7] {
        assert_eq!(at(place), Err(Errno::EOPNOTSUPP), "{place:#x}");
    }
}

#[test]
fn a_message_is_masked_while_it_changes() {
    let mut written = vec![];
    struct Entry<'a>(&'a mut Vec<(u64, u32)>);
    impl TableEntry for Entry<'_> {
        fn write(&mut self, word: u64, value: u32) {
            self.0.push((word, value));
        }
    }
    let mut entry = Entry(&mut written);
    assert_eq!(route(&mut entry, 256, 0x41), Err(Errno::EOPNOTSUPP));
    route(&mut entry, 255, 0x41).unwrap();
    mask(&mut entry);
    let expected = [(3, 1), (0, 0xfeef_f000), (1, 0), (2, 0x41), (3, 0), (3, 1)];
    assert_eq!(written, expected);
}
