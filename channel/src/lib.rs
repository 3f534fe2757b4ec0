//! The ends of rings in memory that two kernels, or two processes, share.
//!
//! A ring carries messages one way, from one or more producers to one consumer; `docs/src/channels.md`
//! tells how, and why no wake-up is lost. This crate is that protocol and nothing else: no I/O, no
//! allocation, no blocking. Who uses it polls, and sleeps and rings by means of its own.
//!
//! | file | what |
//! |---|---|
//! | `words` | shared memory, as words that are atomics: all unsafe code |
//! | `header` | what a slot's header says |
//! | `ring` | where the words of a ring lie; positions |
//! | `producer` | sending, alone or with others |
//! | `consumer` | receiving |
//! | `wake` | who sleeps, who rings |
//!
//! ```
//! use insula_channel::{Consumer, Message, Producer, Ring, SharedWords};
//!
//! # let mut memory: Vec<u64> = vec![0; 16 + 4 * 8];
//! // Of 4 slots, with its control words at word 0 of the memory and its slots behind them.
//! # // SAFETY: `memory` outlives both ends and is used through them alone.
//! # #[allow(unsafe_code)]
//! # let words = unsafe { SharedWords::new(memory.as_mut_ptr(), memory.len()) };
//! let ring = Ring::new(words, 0, 16, 4)?;
//! let mut producer = Producer::new(ring);
//! let mut consumer = Consumer::new(ring);
//!
//! let peer = producer.send(&Message::bytes(7, b"hello"))?;
//! assert!(!peer.asleep(), "nobody to be rung");
//!
//! let mut buffer = [0; 64];
//! let received = consumer.receive(&mut buffer)?.expect("it has been sent");
//! assert_eq!((received.kind, received.bytes(&buffer)), (7, b"hello".as_slice()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

mod consumer;
mod header;
mod producer;
mod ring;
mod sync;
mod wake;
mod words;

pub use consumer::{Consumer, ReceiveError, Received};
pub use producer::{Message, Producer, SendError, SharedProducer, Tail};
pub use ring::{BadPlace, Broken, Ring};
pub use wake::Peer;
pub use words::{SharedWords, Words};
