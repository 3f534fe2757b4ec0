//! Ring buffers in memory shared by two kernels or processes.
//!
//! A ring carries messages one way, from one or more producers to one consumer;
//! `docs/src/channels.md` describes the protocol and why no wake-up is lost. This crate is only
//! that protocol: no I/O, no allocation, no blocking. Its users implement polling, sleeping and
//! doorbells.
//!
//! | file | what |
//! |---|---|
//! | `words` | shared memory as atomic words: all unsafe code |
//! | `header` | message headers |
//! | `ring` | layout of a ring; positions |
//! | `producer` | sending by one or several producers |
//! | `consumer` | receiving |
//! | `wake` | requests for wake-ups |
//!
//! ```
//! use insula_channel::{Consumer, Message, Producer, Ring, SharedWords};
//!
//! # let mut memory: Vec<u64> = vec![0; 16 + 4 * 8];
//! // 4 slots, with control words at word 0 and slots behind them.
//! # // SAFETY: `memory` outlives both ends and is used through them alone.
//! # #[allow(unsafe_code)]
//! # let words = unsafe { SharedWords::new(memory.as_mut_ptr(), memory.len()) };
//! let ring = Ring::new(words, 0, 16, 4)?;
//! let mut producer = Producer::new(ring);
//! let mut consumer = Consumer::new(ring);
//!
//! let peer = producer.send(&Message::bytes(7, b"hello"))?;
//! assert!(!peer.asleep(), "no wake-up needed");
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
pub use ring::{Broken, InvalidRing, Ring};
pub use wake::Peer;
pub use words::{SharedWords, Words};
