//! A block device for tests: in memory, it records what is written, and can lose it or fail.

use std::cell::RefCell;
use std::rc::Rc;

use nix::errno::Errno;

use super::{Access, BlockDevice, DeviceError, check};

const BLOCK: usize = 512;

/// What a device was asked for that matters after a crash.
#[derive(Clone, Debug)]
enum Event {
    Write(u64, Vec<u8>),
    Flush,
}

#[derive(Debug, Default)]
struct State {
    /// What was there when recording began.
    first: Vec<u8>,
    content: Vec<u8>,
    events: Vec<Event>,
    reads: usize,
    /// Accesses that still succeed, if not all do.
    left: Option<u64>,
}

/// A handle of the device. Clones are handles of the same one.
#[derive(Clone, Debug)]
pub(crate) struct Recorder(Rc<RefCell<State>>);

impl Recorder {
    pub(crate) fn new(content: &[u8]) -> Self {
        Self(Rc::new(RefCell::new(State {
            first: content.to_vec(),
            content: content.to_vec(),
            ..State::default()
        })))
    }

    /// Returns what was written, whether flushed or not.
    pub(crate) fn content(&self) -> Vec<u8> {
        self.0.borrow().content.clone()
    }

    /// Number of events so far.
    pub(crate) fn events(&self) -> usize {
        self.0.borrow().events.len()
    }

    /// Has writes and flushes fail after some more.
    pub(crate) fn fail_after(&self, accesses: u64) {
        self.0.borrow_mut().left = Some(accesses);
    }

    /// Returns what would be on the device after a crash behind so many events: all that was flushed,
    /// and of the rest any parts, written in any order. `atom` is the size of what is written whole.
    pub(crate) fn after_crash(&self, events: usize, atom: usize, seed: u64) -> Vec<u8> {
        let state = self.0.borrow();
        let events = &state.events[..events];
        let is_flush = |event: &Event| matches!(event, Event::Flush);
        let flushed = events.iter().rposition(is_flush).map_or(0, |at| at + 1);
        let mut content = state.first.clone();
        let mut put =
            |at: usize, bytes: &[u8]| content[at..at + bytes.len()].copy_from_slice(bytes);
        for event in &events[..flushed] {
            if let Event::Write(block, bytes) = event {
                put(*block as usize * BLOCK, bytes);
            }
        }
        let mut random = Random(seed | 1);
        let mut parts: Vec<(u64, usize, &[u8])> = Vec::new();
        for event in &events[flushed..] {
            let Event::Write(block, bytes) = event else {
                continue;
            };
            for (index, part) in bytes.chunks(atom).enumerate() {
                parts.push((random.next(), *block as usize * BLOCK + index * atom, part));
            }
        }
        parts.sort_by_key(|(order, ..)| *order);
        // Sometimes nearly all are lost, sometimes nearly none.
        let kept = random.next() % 101;
        for (_, at, part) in parts {
            if random.next() % 100 < kept {
                put(at, part);
            }
        }
        content
    }

    /// Returns what would be on the device after a crash behind so many events: all that was flushed, and
    /// of the rest the parts of `atom` bytes that `is_kept` chooses by their first byte's place and their
    /// content.
    pub(crate) fn after_crash_with(
        &self,
        events: usize,
        atom: usize,
        is_kept: impl Fn(usize, &[u8]) -> bool,
    ) -> Vec<u8> {
        let state = self.0.borrow();
        let events = &state.events[..events];
        let is_flush = |event: &Event| matches!(event, Event::Flush);
        let flushed = events.iter().rposition(is_flush).unwrap_or(0);
        let mut content = state.first.clone();
        for (index, event) in events.iter().enumerate() {
            let Event::Write(block, bytes) = event else {
                continue;
            };
            for (part, bytes) in bytes.chunks(atom).enumerate() {
                let at = *block as usize * BLOCK + part * atom;
                if index < flushed || is_kept(at, bytes) {
                    content[at..at + bytes.len()].copy_from_slice(bytes);
                }
            }
        }
        content
    }

    /// Returns how often it was read.
    pub(crate) fn reads(&self) -> usize {
        self.0.borrow().reads
    }

    fn access(&self, access: Access, length: usize) -> Result<(), DeviceError> {
        check(self, access, length)?;
        match &mut self.0.borrow_mut().left {
            Some(0) => Err(DeviceError {
                access,
                errno: Errno::EIO,
            }),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// Numbers that look random: xorshift64*.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
}

impl BlockDevice for Recorder {
    fn block_size(&self) -> usize {
        BLOCK
    }

    fn block_count(&self) -> u64 {
        (self.0.borrow().content.len() / BLOCK) as u64
    }

    fn read(&mut self, block: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        check(self, Access::Read(block), to.len())?;
        let at = block as usize * BLOCK;
        let state = &mut *self.0.borrow_mut();
        state.reads += 1;
        to.copy_from_slice(&state.content[at..at + to.len()]);
        Ok(())
    }

    fn write(&mut self, block: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.access(Access::Write(block), from.len())?;
        let state = &mut *self.0.borrow_mut();
        let at = block as usize * BLOCK;
        state.content[at..at + from.len()].copy_from_slice(from);
        state.events.push(Event::Write(block, from.to_vec()));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        self.access(Access::Flush, 0)?;
        self.0.borrow_mut().events.push(Event::Flush);
        Ok(())
    }
}

#[test]
fn what_was_not_flushed_can_be_lost() {
    let mut device = Recorder::new(&[0; 8 * BLOCK]);
    device.write(0, &[1; BLOCK]).unwrap();
    device.flush().unwrap();
    device.write(1, &[2; 4 * BLOCK]).unwrap();
    let mut found = std::collections::BTreeSet::new();
    for seed in 0..2000 {
        let content = device.after_crash(3, BLOCK, seed);
        assert_eq!(content[..BLOCK], [1; BLOCK]);
        found.insert((1..5).map(|at| content[at * BLOCK]).collect::<Vec<_>>());
    }
    assert_eq!(found.len(), 16, "each of four blocks can be lost");
    assert_eq!(device.after_crash(1, BLOCK, 7).len(), 8 * BLOCK);
    device.fail_after(1);
    assert!(device.write(7, &[3; BLOCK]).is_ok());
    assert_eq!(device.flush().unwrap_err().errno, Errno::EIO);
    assert_eq!(
        device.write(8, &[3; BLOCK]).unwrap_err().errno,
        Errno::ENXIO
    );
    assert_eq!(
        device.read(0, &mut [0; 3]).unwrap_err().errno,
        Errno::EINVAL
    );
}
