//! The device of a server that may die.

use proptest::prelude::*;

use super::*;
use crate::block::recorder::Recorder;
use crate::block::{Blocks, CachedDevice};
use crate::local;

const BLOCKS: usize = 600;
const BLOCK: usize = 512;

/// A server with a cache, which dies of every so many requests, before or after it has done them.
struct Mortal {
    disk: Recorder,
    server: Blocks<CachedDevice<Recorder>>,
    /// Requests until it dies, again and again.
    life: Vec<u8>,
    left: u8,
    ends: u32,
}

fn server(disk: &Recorder) -> Blocks<CachedDevice<Recorder>> {
    Blocks::new(CachedDevice::new(disk.clone(), 0), |_| true)
}

impl Mortal {
    fn new(disk: &Recorder, life: Vec<u8>) -> Self {
        Self {
            server: server(disk),
            disk: disk.clone(),
            left: life.last().copied().unwrap_or(u8::MAX),
            life,
            ends: 0,
        }
    }
}

impl Ask for Mortal {
    fn ask(&mut self, call: Call<'_>) -> Result<Words, Error> {
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return Ok(local::call(&mut self.server, call));
        }
        self.ends += 1;
        if self.ends.is_multiple_of(2) {
            local::call(&mut self.server, call);
        }
        // Its cache is lost.
        self.server = server(&self.disk);
        self.left = self.life.pop().unwrap_or(u8::MAX);
        Err(Error::ServerGone)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    /// Whenever its server dies, nothing that was written is lost, and what was flushed is on the disk.
    #[test]
    fn a_server_may_die(
        calls in proptest::collection::vec((0..BLOCKS, 1..64_usize, 0..5_u8, any::<u8>()), 1..200),
        // Enough to write all again.
        life in proptest::collection::vec(100..=255_u8, 0..20),
        seed in any::<u64>(),
    ) {
        let disk = Recorder::new(&vec![0; BLOCKS * BLOCK]);
        let mut device = ServedDevice::open(Mortal::new(&disk, life)).unwrap();
        let mut expected = disk.content();
        for (at, count, what, fill) in calls {
            let bytes = at * BLOCK..(at + count.min(BLOCKS - at)) * BLOCK;
            match what {
                0 | 1 => {
                    let mut read = vec![0; bytes.len()];
                    device.read(at as u64, &mut read).unwrap();
                    prop_assert_eq!(&read, &expected[bytes]);
                }
                2 => {
                    expected[bytes.clone()].fill(fill);
                    device.write(at as u64, &expected[bytes]).unwrap();
                }
                3 => {
                    // Every third block, then all others.
                    expected[bytes.clone()].fill(fill);
                    let blocks = || (at as u64..).zip(expected[bytes.clone()].chunks(BLOCK));
                    let others = (0..3).flat_map(|first| blocks().skip(first).step_by(3));
                    device.write_each(&others.collect::<Vec<_>>()).unwrap();
                }
                _ => {
                    device.flush().unwrap();
                    let crashed = disk.after_crash(disk.events(), BLOCK, seed);
                    prop_assert!(crashed == expected);
                }
            }
        }
    }
}

#[test]
fn what_dies_again_and_again_is_given_up() {
    let disk = Recorder::new(&[0; 4096]);
    let opened = ServedDevice::open(Mortal::new(&disk, vec![1; 100]));
    assert_eq!(opened.err().map(|error| error.errno), Some(Errno::EIO));
}

#[test]
fn a_device_is_one_process_s() {
    let disk = Recorder::new(&[0; 4096]);
    let mut blocks = Blocks::new(disk, |process| process == 7);
    let identify = |blocks: &mut Blocks<Recorder>, sender| {
        status(local::call_as(
            blocks,
            sender,
            Call {
                operation: operation::IDENTIFY,
                ..Call::default()
            },
        ))
    };
    assert_eq!(identify(&mut blocks, 7), Ok(()));
    assert_eq!(identify(&mut blocks, 8), Err(Errno::EBUSY));
    assert_eq!(identify(&mut blocks, 7), Ok(()));
    let other = local::call_as(
        &mut blocks,
        8,
        Call {
            operation: operation::FLUSH,
            ..Call::default()
        },
    );
    assert_eq!(status(other), Err(Errno::ESTALE));
    let mut blocks = Blocks::new(Recorder::new(&[0; 4096]), |_| false);
    assert_eq!(identify(&mut blocks, 7), Ok(()));
    assert_eq!(identify(&mut blocks, 8), Ok(()));
}

#[test]
fn pieces_that_make_no_sense_are_refused() {
    let mut blocks = Blocks::new(Recorder::new(&[0; 4096]), |_| true);
    let mut ask = |operation, words, readable: &[u8]| {
        let call = Call {
            operation,
            words,
            readable,
            ..Call::default()
        };
        let words = local::call(&mut blocks, call);
        status(words).map(|()| words[1])
    };
    let instance = ask(operation::IDENTIFY, Words::default(), &[]).unwrap();
    let mut write = |count, message: &[u8]| {
        let words = [instance, count, 0, 0, 0, 0];
        ask(operation::WRITE_EACH, words, message).map(drop)
    };
    let block = [7; BLOCK];
    let message = message_of(&[(1, &block), (5, &block)]);
    assert_eq!(write(2, &message), Ok(()));
    assert_eq!(write(0, &[]), Ok(()));
    for count in [0, 1, 3, PIECES_MAX as u64 + 1, 1 << 60, u64::MAX] {
        assert_eq!(write(count, &message), Err(Errno::EINVAL), "{count}");
    }
    for bytes in 0..message.len() {
        assert_eq!(write(2, &message[..bytes]), Err(Errno::EINVAL), "{bytes}");
    }
    let beyond = message_of(&[(1, &block), (8, &block)]);
    assert_eq!(write(2, &beyond), Err(Errno::ENXIO));
    assert_eq!(write(1, &message_of(&[(1, &[0; 5])])), Err(Errno::EINVAL));
    let long = vec![0; 2 * BYTES_MAX];
    assert_eq!(write(1, &long), Err(Errno::EMSGSIZE));
}

#[test]
fn another_size_is_another_device() {
    struct Changing(Blocks<Recorder>);
    impl Ask for Changing {
        fn ask(&mut self, call: Call<'_>) -> Result<Words, Error> {
            if call.operation == operation::FLUSH {
                self.0 = Blocks::new(Recorder::new(&[0; 8192]), |_| true);
            }
            Ok(local::call(&mut self.0, call))
        }
    }
    let first = Blocks::new(Recorder::new(&[0; 4096]), |_| true);
    let mut device = ServedDevice::open(Changing(first)).unwrap();
    assert_eq!(device.flush().unwrap_err().errno, Errno::ENXIO);
}
