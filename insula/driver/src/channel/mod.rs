//! Endpoints of a channel between the base and a node, for programs: send and receive, polling
//! first and then sleeping.

mod descriptor;
mod peer_pages;

use std::mem::offset_of;
use std::time::{Duration, Instant};

use insula_abi::channel::{CHANNEL_GRANTS, CHANNEL_HOTPLUG, RINGS_SLOTS, Rings, Slot, area_size};
use insula_channel::{Broken, Consumer, Message, Producer, ReceiveError, Received, SendError};
use insula_channel::{Peer, Ring};
use nix::errno::Errno;

pub use descriptor::{Channel, RingWords, Waited};
pub use peer_pages::{PeerPages, PeerPagesError};

use crate::{CallError, DriverError};

/// Number of channels of each node that programs can use: the first ones.
pub const PROGRAMS_COUNT: u32 = CHANNEL_HOTPLUG;
/// Number of channels of each node. Those after the programs' connect the base with modules in the
/// node.
pub const COUNT: u32 = CHANNEL_GRANTS + 1;
/// Slots of each ring.
pub const SLOTS: u32 = 256;
/// Bytes of a node's memory that the channels take.
pub const AREA_SIZE: u64 = area_size(COUNT, SLOTS);

/// Default number of polls of a ring before sleeping.
const POLLS: u32 = 200;

/// Which side of the channel this program is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The base.
    Base,
    /// The node.
    Node,
}

/// Why a message was neither sent nor received.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other endpoint was closed, or its kernel has stopped.
    #[error("the other side has closed the channel")]
    Disconnected,
    /// No progress within that time.
    #[error("the other side did nothing for {0:?}")]
    TimedOut(Duration),
    /// The message is longer than the ring.
    #[error("a message of {size} bytes is longer than the {max} that the channel carries")]
    TooLong {
        /// Size of the message in bytes.
        size: usize,
        /// Largest size that fits.
        max: usize,
    },
    /// The message is longer than the receive buffer. It stays in the ring.
    #[error("a message of {0} bytes does not fit the buffer")]
    BufferTooSmall(usize),
    /// The other side violated the ring's protocol.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The message refers to pages that its sender has no right to. The message is consumed.
    #[error(transparent)]
    PeerPages(#[from] PeerPagesError),
    /// The module or the kernel failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// An attached endpoint, used by this value alone.
#[derive(Debug)]
pub struct End {
    producer: Producer<RingWords>,
    consumer: Consumer<RingWords>,
    channel: Channel,
    polls: u32,
    peer_pages: PeerPages,
}

impl End {
    /// Attaches an endpoint that was just opened.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn attach(channel: Channel, side: Side) -> Result<Self, DriverError> {
        let (to_node, to_base) = rings(&channel)?;
        let (out, back) = match side {
            Side::Base => (to_node, to_base),
            Side::Node => (to_base, to_node),
        };
        Ok(Self {
            producer: Producer::new(out),
            consumer: Consumer::new(back),
            channel,
            polls: POLLS,
            peer_pages: PeerPages::default(),
        })
    }

    /// Sets how often a ring is polled before each sleep: with 0 it sleeps at once, with
    /// [`u32::MAX`] hardly ever.
    pub fn set_polls(&mut self, times: u32) {
        self.polls = times;
    }

    /// Pages that the other side may refer to in its messages; none by default.
    pub fn peer_pages(&mut self) -> &mut PeerPages {
        &mut self.peer_pages
    }

    /// The channel.
    #[must_use]
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Sends a message; waits at most `timeout` for room.
    ///
    /// # Errors
    /// [`ChannelError`]; nothing was sent.
    pub fn send(&mut self, message: &Message, timeout: Duration) -> Result<(), ChannelError> {
        let start = Instant::now();
        loop {
            for _ in 0..=self.polls {
                match self.producer.send(message) {
                    Ok(peer) => return self.ring(peer),
                    Err(SendError::Full) => std::hint::spin_loop(),
                    Err(SendError::TooLong { size, max }) => {
                        return Err(ChannelError::TooLong { size, max });
                    }
                    Err(SendError::Broken(broken)) => return Err(broken.into()),
                }
            }
            let waited = match self.producer.prepare_to_sleep()? {
                true => self.wait(start, timeout),
                false => Ok(()),
            };
            self.producer.stay_awake();
            waited?;
        }
    }

    /// Receives the next message into `buffer`; waits for it at most `timeout`. Its page references
    /// have been checked against [`End::peer_pages`].
    ///
    /// # Errors
    /// [`ChannelError`]; nothing was received.
    pub fn receive(
        &mut self,
        buffer: &mut [u8],
        timeout: Duration,
    ) -> Result<Received, ChannelError> {
        let start = Instant::now();
        loop {
            for _ in 0..=self.polls {
                if let Some(received) = self.try_receive(buffer)? {
                    return Ok(received);
                }
                std::hint::spin_loop();
            }
            let waited = match self.consumer.prepare_to_sleep() {
                true => self.wait(start, timeout),
                false => Ok(()),
            };
            self.consumer.stay_awake();
            if let Err(error) = waited {
                // Messages sent before the disconnect are still in the ring.
                return self.try_receive(buffer)?.ok_or(error);
            }
        }
    }

    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, ChannelError> {
        match self.consumer.receive(buffer) {
            Ok(Some(received)) => {
                match self.ring(received.peer) {
                    // A peer that has disconnected needs no wake-up.
                    Ok(()) | Err(ChannelError::Disconnected) => {}
                    Err(error) => return Err(error),
                }
                let mut claims = received.pages(buffer);
                claims.try_for_each(|pages| self.peer_pages.check(&pages))?;
                Ok(Some(received))
            }
            Ok(None) => Ok(None),
            Err(ReceiveError::TooLong { size }) => Err(ChannelError::BufferTooSmall(size)),
            Err(ReceiveError::Broken(broken)) => Err(broken.into()),
        }
    }

    fn ring(&self, peer: Peer) -> Result<(), ChannelError> {
        if !peer.asleep() {
            return Ok(());
        }
        self.channel.ring().map_err(|error| match error.errno {
            Errno::EPIPE => ChannelError::Disconnected,
            _ => error.into(),
        })
    }

    fn wait(&self, start: Instant, timeout: Duration) -> Result<(), ChannelError> {
        let left = timeout.saturating_sub(start.elapsed());
        match self.channel.wait(left) {
            Ok(Waited::Rung) | Err(Errno::EINTR) => Ok(()),
            Ok(Waited::Disconnected) => Err(ChannelError::Disconnected),
            Ok(Waited::TimedOut) => Err(ChannelError::TimedOut(timeout)),
            Err(errno) => Err(CallError::of("poll")(errno).into()),
        }
    }
}

type Both = (Ring<RingWords>, Ring<RingWords>);

/// The ring to the node and the ring to the base.
fn rings(channel: &Channel) -> Result<Both, DriverError> {
    const WORD: usize = size_of::<u64>();
    let (words, slots) = (channel.map()?, channel.slots());
    let first = RINGS_SLOTS as usize / WORD;
    let second = first + slots as usize * size_of::<Slot>() / WORD;
    let to_node = Ring::new(
        words.clone(),
        offset_of!(Rings, to_node) / WORD,
        first,
        slots,
    )?;
    let to_base = Ring::new(words, offset_of!(Rings, to_base) / WORD, second, slots)?;
    Ok((to_node, to_base))
}
