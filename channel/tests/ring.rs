//! A ring between two correct ends.

#![cfg(not(loom))]

use std::sync::atomic::AtomicU64;

use insula_abi::channel::{Pages, Right};
use insula_channel::{
    Consumer, InvalidRing, Message, Producer, ReceiveError, Ring, SendError, SharedProducer, Tail,
    Words,
};
use proptest::prelude::*;

const CONTROL: usize = 16;

fn memory(slots: u32) -> Vec<AtomicU64> {
    (0..CONTROL + 8 * slots as usize)
        .map(|_| AtomicU64::new(0))
        .collect()
}

fn ring(memory: &[AtomicU64], slots: u32) -> Ring<&[AtomicU64]> {
    Ring::new(memory, 0, CONTROL, slots).unwrap()
}

#[test]
fn a_ring_lies_within_its_memory() {
    let memory = memory(4);
    let place =
        |control, first, slots| Ring::new(memory.as_slice(), control, first, slots).map(drop);
    assert_eq!(place(0, CONTROL, 4), Ok(()));
    assert_eq!(place(1, CONTROL, 4), Ok(()), "it may be anywhere");
    for (control, first, slots) in [
        (0, CONTROL, 8),
        (0, CONTROL + 1, 4),
        (memory.count(), CONTROL, 4),
        (usize::MAX, 0, 1),
        (0, usize::MAX - 3, 1),
        (0, CONTROL, 3),
        (0, CONTROL, 0),
    ] {
        assert_eq!(place(control, first, slots), Err(InvalidRing { slots }));
    }
}

#[test]
fn references_come_before_bytes() {
    let memory = memory(4);
    let mut producer = Producer::new(ring(&memory, 4));
    let mut consumer = Consumer::new(ring(&memory, 4));
    let pages = [
        Pages {
            start: 0x1000,
            count: 2,
            right: Right::UNTIL_REPLY,
        },
        Pages {
            start: 0x7000,
            count: 1,
            right: Right::MOVED,
        },
    ];
    let message = Message {
        kind: 9,
        pages: &pages,
        bytes: b"and more",
    };
    assert!(!producer.send(&message).unwrap().asleep());
    let mut buffer = [0xff; 100];
    let received = consumer.receive(&mut buffer).unwrap().unwrap();
    assert_eq!(received.kind, 9);
    assert_eq!(received.bytes(&buffer), b"and more");
    assert_eq!(received.pages(&buffer).collect::<Vec<_>>(), pages);
    assert_eq!(consumer.receive(&mut buffer), Ok(None));
}

#[test]
fn long_messages_are_refused() {
    let memory = memory(4);
    let mut producer = Producer::new(ring(&memory, 4));
    let mut consumer = Consumer::new(ring(&memory, 4));
    let long = [7; 4 * 56 + 1];
    let refused = producer.send(&Message::bytes(0, &long));
    assert_eq!(
        refused,
        Err(SendError::TooLong {
            size: 225,
            max: 224
        })
    );
    assert!(producer.send(&Message::bytes(0, &long[1..])).is_ok());
    assert_eq!(producer.send(&Message::bytes(0, &[])), Err(SendError::Full));
    let mut buffer = [0; 224];
    let refused = consumer.receive(&mut buffer[1..]);
    assert_eq!(refused, Err(ReceiveError::TooLong { size: 224 }));
    let received = consumer.receive(&mut buffer).unwrap().unwrap();
    assert_eq!(received.bytes(&buffer), &long[1..]);
    assert!(producer.send(&Message::bytes(0, &[])).is_ok());
}

#[test]
fn a_sleeper_is_woken_once() {
    let memory = memory(2);
    let mut producer = Producer::new(ring(&memory, 2));
    let mut consumer = Consumer::new(ring(&memory, 2));
    let nothing = Message::bytes(0, &[]);
    assert!(consumer.prepare_to_sleep());
    assert!(producer.send(&nothing).unwrap().asleep());
    assert!(
        !producer.send(&nothing).unwrap().asleep(),
        "it has been rung"
    );
    assert!(!consumer.prepare_to_sleep(), "there is something");
    consumer.stay_awake();

    assert_eq!(producer.send(&nothing), Err(SendError::Full));
    assert_eq!(producer.prepare_to_sleep(), Ok(true));
    assert!(consumer.receive(&mut []).unwrap().unwrap().peer.asleep());
    assert!(!consumer.receive(&mut []).unwrap().unwrap().peer.asleep());
    assert_eq!(producer.prepare_to_sleep(), Ok(false), "there is room");
}

/// Several threads send, one receives; each message has its sender and number, and a length derived
/// from it.
#[test]
fn several_producers_keep_each_ones_order() {
    const EACH: u64 = 20_000;
    const PRODUCERS: usize = 3;
    let (memory, tail) = (memory(16), Tail::new());
    let ring = ring(&memory, 16);
    std::thread::scope(|scope| {
        for number in 0..PRODUCERS {
            let tail = &tail;
            scope.spawn(move || {
                let mut producer = SharedProducer::new(ring, tail);
                for count in 0..EACH {
                    let bytes = count.to_le_bytes().repeat(1 + count as usize % 20);
                    let message = Message::bytes(number as u8, &bytes);
                    while producer.send(&message) == Err(SendError::Full) {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut consumer = Consumer::new(ring);
        let (mut next, mut buffer) = ([0; PRODUCERS], [0; 1024]);
        while next != [EACH; PRODUCERS] {
            let Some(received) = consumer.receive(&mut buffer).unwrap() else {
                std::thread::yield_now();
                continue;
            };
            let next = &mut next[usize::from(received.kind)];
            let expected = next.to_le_bytes().repeat(1 + *next as usize % 20);
            assert_eq!(received.bytes(&buffer), expected);
            *next += 1;
        }
    });
}

proptest! {
    /// Messages arrive complete and in order, also where the ring wraps.
    #[test]
    fn what_is_sent_is_received(
        sizes in prop::collection::vec(0_usize..500, 1..60),
        slots in (3_u32..6).prop_map(|power| 1 << power),
    ) {
        let memory = memory(slots);
        let mut producer = Producer::new(ring(&memory, slots));
        let mut consumer = Consumer::new(ring(&memory, slots));
        let mut buffer = vec![0; 4096];
        let (mut sent, mut received) = (0, 0);
        while received < sizes.len() {
            while let Some(&size) = sizes.get(sent) {
                let bytes: Vec<u8> = (0..size).map(|byte| (byte + sent) as u8).collect();
                match producer.send(&Message::bytes(sent as u8, &bytes)) {
                    Ok(_) => sent += 1,
                    Err(SendError::Full) => break,
                    Err(SendError::TooLong { .. }) => return Ok(()),
                    Err(error) => return Err(TestCaseError::fail(error.to_string())),
                }
            }
            let message = consumer.receive(&mut buffer).unwrap().unwrap();
            let bytes: Vec<u8> = (0..sizes[received]).map(|byte| (byte + received) as u8).collect();
            prop_assert_eq!(usize::from(message.kind), received);
            prop_assert_eq!(message.bytes(&buffer), bytes);
            received += 1;
        }
    }
}
