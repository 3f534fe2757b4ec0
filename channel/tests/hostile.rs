//! A hostile peer: neither end accesses memory beyond the ring or the buffer, hangs or panics.

#![cfg(not(loom))]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use insula_channel::{Consumer, Message, Producer, Ring, SendError, SharedProducer, Tail};
use proptest::prelude::*;

const CONTROL: usize = 16;
const SLOTS: u32 = 8;
const WORDS: usize = CONTROL + 8 * SLOTS as usize;

/// A ring between guard words.
struct Guarded(Vec<AtomicU64>);

const GUARD: u64 = 0x5afe_5afe_5afe_5afe;

impl Guarded {
    fn new() -> Self {
        let guard = || AtomicU64::new(GUARD);
        let zero = || AtomicU64::new(0);
        let words = std::iter::repeat_with(guard).take(8);
        let words = words.chain(std::iter::repeat_with(zero).take(WORDS));
        Self(words.chain(std::iter::repeat_with(guard).take(8)).collect())
    }

    fn ring(&self) -> Ring<&[AtomicU64]> {
        Ring::new(self.0.as_slice(), 8, 8 + CONTROL, SLOTS).unwrap()
    }

    fn scribble(&self, word: usize, value: u64) {
        self.0[8 + word % WORDS].store(value, Ordering::Relaxed);
    }

    fn untouched(&self) -> bool {
        let guards = self.0[..8].iter().chain(&self.0[8 + WORDS..]);
        guards
            .into_iter()
            .all(|word| word.load(Ordering::Relaxed) == GUARD)
    }
}

/// A plausible word: near a position, or a header with a valid sequence number.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0_u64..20,
        (0_u64..20, any::<u32>()).prop_map(|(sequence, rest)| sequence | u64::from(rest) << 32),
        (0_u64..20).prop_map(|position| position | 1 << 32),
        (u64::from(u32::MAX) - 20..=u64::from(u32::MAX)),
    ]
}

#[derive(Clone, Debug)]
enum Action {
    Scribble(usize, u64),
    Send(usize),
    SendShared(usize),
    Receive(usize),
    Sleep,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        // Often the control words and headers.
        (0_usize..CONTROL, word()).prop_map(|(at, word)| Action::Scribble(at, word)),
        (0_usize..8, word()).prop_map(|(slot, word)| Action::Scribble(CONTROL + 8 * slot, word)),
        (any::<usize>(), word()).prop_map(|(at, word)| Action::Scribble(at, word)),
        (0_usize..600).prop_map(Action::Send),
        (0_usize..600).prop_map(Action::SendShared),
        (0_usize..600).prop_map(Action::Receive),
        Just(Action::Sleep),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn nothing_is_accessed_outside(actions in prop::collection::vec(action(), 1..60)) {
        let (memory, tail) = (Guarded::new(), Tail::new());
        let mut producer = Producer::new(memory.ring());
        let mut shared = SharedProducer::new(memory.ring(), &tail);
        let mut consumer = Consumer::new(memory.ring());
        let bytes = [0xaa; 600];
        for action in actions {
            match action {
                Action::Scribble(at, word) => memory.scribble(at, word),
                Action::Send(size) => drop(producer.send(&Message::bytes(1, &bytes[..size]))),
                Action::SendShared(size) => drop(shared.send(&Message::bytes(2, &bytes[..size]))),
                Action::Receive(size) => {
                    let mut buffer = [GUARD.to_le_bytes()[0]; 608];
                    if let Ok(Some(received)) = consumer.receive(&mut buffer[..size]) {
                        prop_assert!(received.bytes(&buffer).len() <= size);
                        prop_assert!(received.pages(&buffer).count() * 16 <= size);
                    }
                    prop_assert!(buffer[size..].iter().all(|&byte| byte == 0xfe));
                }
                Action::Sleep => {
                    let _ = consumer.prepare_to_sleep();
                    let _ = producer.prepare_to_sleep();
                    let _ = shared.prepare_to_sleep();
                }
            }
        }
        prop_assert!(memory.untouched());
    }
}

/// The same with a peer that writes concurrently.
#[test]
fn a_concurrent_writer_does_not_hang_an_end() {
    let (memory, tail, stop) = (Guarded::new(), Tail::new(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 1_u64;
            while !stop.load(Ordering::Relaxed) {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                memory.scribble((random >> 40) as usize, random >> (random % 64));
            }
        });
        let mut shared = SharedProducer::new(memory.ring(), &tail);
        let mut buffer = [0; 600];
        for _ in 0..2000 {
            let mut producer = Producer::new(memory.ring());
            let mut consumer = Consumer::new(memory.ring());
            for size in 0..100 {
                let _ = producer.send(&Message::bytes(0, &buffer[..size]));
                let _ = shared.send(&Message::bytes(0, &buffer[..size]));
                let _ = consumer.receive(&mut buffer);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(memory.untouched());
}

#[test]
fn a_head_beyond_what_was_sent_breaks_the_ring() {
    let memory = Guarded::new();
    let mut producer = Producer::new(memory.ring());
    for _ in 0..SLOTS {
        let _ = producer.send(&Message::bytes(0, &[])).unwrap();
    }
    memory.scribble(0, u64::from(SLOTS) + 1);
    assert!(matches!(
        producer.send(&Message::bytes(0, &[])),
        Err(SendError::Broken(_))
    ));
    memory.scribble(0, 1 << 32);
    assert!(matches!(
        producer.send(&Message::bytes(0, &[])),
        Err(SendError::Broken(_))
    ));
}
