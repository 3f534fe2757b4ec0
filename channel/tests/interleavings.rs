//! All interleavings and memory orders, by `scripts/interleavings`.

#![cfg(loom)]

use insula_channel::{Consumer, Message, Peer, Producer, Ring, SendError, SharedProducer, Tail};
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

const CONTROL: usize = 16;

type Memory = Vec<AtomicU64>;

fn memory(slots: u32) -> Memory {
    (0..CONTROL + 8 * slots as usize)
        .map(|_| AtomicU64::new(0))
        .collect()
}

fn ring(memory: &Memory, slots: u32) -> Ring<&[AtomicU64]> {
    Ring::new(memory.as_slice(), 0, CONTROL, slots).unwrap()
}

/// A doorbell as of an operating system: one rung before the wait is not lost. A wait without a
/// ring is a deadlock, which loom reports.
#[derive(Default)]
struct Doorbell {
    rung: Mutex<u32>,
    changed: Condvar,
}

impl Doorbell {
    fn ring_if(&self, peer: Peer) {
        if peer.asleep() {
            self.ring();
        }
    }

    fn ring(&self) {
        *self.rung.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    /// Waits for a ring that was not `seen`.
    fn wait(&self, seen: &mut u32) {
        let mut rung = self.rung.lock().unwrap();
        while *rung == *seen {
            rung = self.changed.wait(rung).unwrap();
        }
        *seen = *rung;
    }
}

/// The two ends of a ring, and a doorbell for each.
struct Shared {
    memory: Memory,
    tail: Tail,
    consumer: Doorbell,
    producer: Doorbell,
}

fn shared(slots: u32) -> Arc<Shared> {
    Arc::new(Shared {
        memory: memory(slots),
        tail: Tail::new(),
        consumer: Doorbell::default(),
        producer: Doorbell::default(),
    })
}

/// Sends, sleeping while the ring is full.
fn send(shared: &Shared, producer: &mut Producer<&[AtomicU64]>, seen: &mut u32, bytes: &[u8]) {
    loop {
        match producer.send(&Message::bytes(1, bytes)) {
            Ok(peer) => return shared.consumer.ring_if(peer),
            Err(SendError::Full) => {
                if producer.prepare_to_sleep().unwrap() {
                    shared.producer.wait(seen);
                }
                producer.stay_awake();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Receives, sleeping while the ring is empty.
fn receive(shared: &Shared, consumer: &mut Consumer<&[AtomicU64]>, seen: &mut u32) -> Vec<u8> {
    let mut buffer = [0; 128];
    loop {
        if let Some(received) = consumer.receive(&mut buffer).unwrap() {
            shared.producer.ring_if(received.peer);
            return received.bytes(&buffer).to_vec();
        }
        if consumer.prepare_to_sleep() {
            shared.consumer.wait(seen);
        }
        consumer.stay_awake();
    }
}

/// One slot, so that both sides sleep.
#[test]
fn both_sleep_and_are_woken() {
    loom::model(|| {
        const MESSAGES: u8 = 3;
        let shared = shared(1);
        let sender = Arc::clone(&shared);
        let sending = thread::spawn(move || {
            let mut producer = Producer::new(ring(&sender.memory, 1));
            let mut seen = 0;
            for number in 0..MESSAGES {
                send(&sender, &mut producer, &mut seen, &[number]);
            }
        });
        let mut consumer = Consumer::new(ring(&shared.memory, 1));
        let mut seen = 0;
        for number in 0..MESSAGES {
            assert_eq!(receive(&shared, &mut consumer, &mut seen), [number]);
        }
        sending.join().unwrap();
    });
}

/// A message of two slots is seen completely or not at all.
#[test]
fn long_messages_are_atomic() {
    loom::model(|| {
        let shared = shared(2);
        let sender = Arc::clone(&shared);
        let sending = thread::spawn(move || {
            let mut producer = Producer::new(ring(&sender.memory, 2));
            let mut seen = 0;
            for number in 1..3 {
                send(&sender, &mut producer, &mut seen, &[number; 57]);
            }
        });
        let mut consumer = Consumer::new(ring(&shared.memory, 2));
        let mut seen = 0;
        for number in 1..3 {
            assert_eq!(receive(&shared, &mut consumer, &mut seen), [number; 57]);
        }
        sending.join().unwrap();
    });
}

/// Two producers and a sleeping consumer.
#[test]
fn two_producers_wake_a_consumer() {
    loom::model(|| {
        let shared = shared(2);
        let senders = [1_u8, 2].map(|number| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut producer = SharedProducer::new(ring(&shared.memory, 2), &shared.tail);
                let peer = producer.send(&Message::bytes(1, &[number])).unwrap();
                shared.consumer.ring_if(peer);
            })
        });
        let mut consumer = Consumer::new(ring(&shared.memory, 2));
        let mut seen = 0;
        let mut got = [0; 2].map(|_: u8| receive(&shared, &mut consumer, &mut seen)[0]);
        got.sort_unstable();
        assert_eq!(got, [1, 2]);
        for sender in senders {
            sender.join().unwrap();
        }
    });
}

/// Two sleeping producers share one wake word.
#[test]
fn two_producers_are_woken() {
    loom::model(|| {
        let shared = shared(1);
        let mut first = SharedProducer::new(ring(&shared.memory, 1), &shared.tail);
        let _ = first.send(&Message::bytes(1, &[0])).unwrap();
        let senders = [1_u8, 2].map(|number| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut producer = SharedProducer::new(ring(&shared.memory, 1), &shared.tail);
                let mut seen = 0;
                while let Err(error) = producer.send(&Message::bytes(1, &[number])) {
                    assert_eq!(error, SendError::Full);
                    if producer.prepare_to_sleep().unwrap() {
                        shared.producer.wait(&mut seen);
                    } else {
                        shared.producer.ring();
                    }
                }
            })
        });
        let mut consumer = Consumer::new(ring(&shared.memory, 1));
        let mut got = 0;
        while got < 3 {
            match consumer.receive(&mut [0; 8]).unwrap() {
                Some(received) => {
                    shared.producer.ring_if(received.peer);
                    got += 1;
                }
                None => thread::yield_now(),
            }
        }
        for sender in senders {
            sender.join().unwrap();
        }
    });
}

/// The fence is needed: without it loom finds the lost wake-up.
#[test]
#[should_panic]
fn without_fences_a_wake_up_is_lost() {
    loom::model(|| {
        let words: Arc<[AtomicU64; 2]> = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let other = Arc::clone(&words);
        let step = thread::spawn(move || {
            other[0].store(1, Ordering::Release);
            other[1].load(Ordering::Relaxed)
        });
        words[1].store(1, Ordering::Relaxed);
        let seen = words[0].load(Ordering::Acquire);
        assert!(step.join().unwrap() == 1 || seen == 1);
    });
}
