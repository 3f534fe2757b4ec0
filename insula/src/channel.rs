//! A channel between the base and a node, as a program uses it: send, receive, polling first and
//! then asleep.

use std::mem::offset_of;
use std::time::{Duration, Instant};

use insula_abi::channel::{CHANNEL_FRAMES, CHANNEL_ORDERS, RINGS_SLOTS, Rings, Slot, area_size};
use insula_channel::{
    BadPlace, Broken, Consumer, Message, Producer, ReceiveError, Received, SendError,
};
use insula_channel::{Peer, Ring};
use nix::errno::Errno;

use crate::driver::{CallError, Channel, MapError, RingWords, Waited};
use crate::reach::{NotTheirs, Reach};

/// Channels of each node that programs can use, the first ones.
pub const PROGRAMS_COUNT: u32 = CHANNEL_ORDERS;
/// Channels of each node. Those behind the programs' are between the base and modules in the node.
pub const COUNT: u32 = CHANNEL_FRAMES + 1;
/// Slots of each of their rings.
pub const SLOTS: u32 = 256;
/// What they take of a node's memory, in bytes.
pub const AREA_SIZE: u64 = area_size(COUNT, SLOTS);

/// How often a ring is looked at before sleeping, unless it is told otherwise.
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
    /// The other end was closed, or its kernel is no more.
    #[error("the other side has left the channel")]
    HungUp,
    /// Nothing happened for that long.
    #[error("the other side did nothing for {0:?}")]
    TimedOut(Duration),
    /// It is longer than the ring.
    #[error("a message of {size} bytes is longer than the {max} that the channel carries")]
    TooLong {
        /// Its bytes.
        size: usize,
        /// Most that it could have.
        max: usize,
    },
    /// It is longer than the buffer that it was to be received to, and is still there.
    #[error("a message of {0} bytes does not fit the buffer")]
    BufferTooSmall(usize),
    /// The other side wrote nonsense.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The other side named pages that it may not name. The message is gone.
    #[error(transparent)]
    NotTheirs(#[from] NotTheirs),
    /// The module failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Waiting failed.
    #[error("waiting for the other side: {}", .0.desc())]
    Wait(Errno),
}

/// Why a channel could not be used. It is closed again.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Its rings could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The module told an odd size.
    #[error(transparent)]
    Place(#[from] BadPlace),
}

/// An end in use, alone by this value.
#[derive(Debug)]
pub struct End {
    producer: Producer<RingWords>,
    consumer: Consumer<RingWords>,
    channel: Channel,
    polls: u32,
    reach: Reach,
}

impl End {
    /// Uses an end that was opened just now.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(channel: Channel, side: Side) -> Result<Self, AttachError> {
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
            reach: Reach::default(),
        })
    }

    /// Looks at a ring `times` more before each sleep: with 0 it sleeps at once, with [`u32::MAX`] it
    /// hardly ever does.
    pub fn set_polls(&mut self, times: u32) {
        self.polls = times;
    }

    /// Which pages the other side may name in its messages: none, unless told otherwise here.
    pub fn reach(&mut self) -> &mut Reach {
        &mut self.reach
    }

    /// The channel.
    #[must_use]
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Sends a message, waiting for room at most `patience` long.
    ///
    /// # Errors
    /// [`ChannelError`]; nothing was sent.
    pub fn send(&mut self, message: &Message, patience: Duration) -> Result<(), ChannelError> {
        let began = Instant::now();
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
                true => self.wait(began, patience),
                false => Ok(()),
            };
            self.producer.stay_awake();
            waited?;
        }
    }

    /// Receives the next message into `buffer`, waiting for it at most `patience` long. Its
    /// references to pages have been checked against [`End::reach`].
    ///
    /// # Errors
    /// [`ChannelError`]; nothing was received.
    pub fn receive(
        &mut self,
        buffer: &mut [u8],
        patience: Duration,
    ) -> Result<Received, ChannelError> {
        let began = Instant::now();
        loop {
            for _ in 0..=self.polls {
                if let Some(received) = self.try_receive(buffer)? {
                    return Ok(received);
                }
                std::hint::spin_loop();
            }
            let waited = match self.consumer.prepare_to_sleep() {
                true => self.wait(began, patience),
                false => Ok(()),
            };
            self.consumer.stay_awake();
            if let Err(error) = waited {
                // What came last of all came before the end.
                return self.try_receive(buffer)?.ok_or(error);
            }
        }
    }

    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, ChannelError> {
        match self.consumer.receive(buffer) {
            Ok(Some(received)) => {
                match self.ring(received.peer) {
                    // Who has left needs no room.
                    Ok(()) | Err(ChannelError::HungUp) => {}
                    Err(error) => return Err(error),
                }
                let mut claims = received.pages(buffer);
                claims.try_for_each(|pages| self.reach.check(&pages))?;
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
            Errno::EPIPE => ChannelError::HungUp,
            _ => error.into(),
        })
    }

    fn wait(&self, began: Instant, patience: Duration) -> Result<(), ChannelError> {
        let left = patience.saturating_sub(began.elapsed());
        match self.channel.wait(left) {
            Ok(Waited::Rung) | Err(Errno::EINTR) => Ok(()),
            Ok(Waited::HungUp) => Err(ChannelError::HungUp),
            Ok(Waited::TimedOut) => Err(ChannelError::TimedOut(patience)),
            Err(errno) => Err(ChannelError::Wait(errno)),
        }
    }
}

type Both = (Ring<RingWords>, Ring<RingWords>);

/// The ring to the node and the ring to the base.
fn rings(channel: &Channel) -> Result<Both, AttachError> {
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
