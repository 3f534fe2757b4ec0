//! Holding packets for a container while it is moved from one kernel to another.
//!
//! The bridge of its network sends them to a tap device of this process meanwhile, and they are sent on
//! when the container is where it is to be. So its peers lose no packet, and wait for no repetition of
//! one. All of that belongs to this process: if it is killed, tap device and held packets are gone, and
//! the bridge learns anew where the container is.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process;
use std::thread::{self, JoinHandle};

use insula_agent::container::card;
use insula_agent::network::Network;
use insula_base::root::Root;
use insula_driver::Tap;
use insula_node::attachment::{BRIDGE, bridge_of_network};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::base_card;
use super::bridge::{self, Direction};
use super::network::interface;

/// Most bytes of packets that are held: more than all connections together have on their way. Later
/// ones are dropped.
const BYTES_MAX: usize = 64 << 20;
/// Longest packet with its header.
const PACKET_MAX: usize = 65536 + 64;

/// The network of nodes refuses.
#[derive(Debug, thiserror::Error)]
#[error("the packets for it cannot be held")]
pub struct HoldError(#[from] io::Error);

/// A port of a bridge of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// That of the node with this id.
    Node(u32),
    /// That of containers on the base.
    Base,
}

impl Port {
    fn interface(self) -> String {
        match self {
            Self::Node(id) => interface(id),
            Self::Base => base_card::PORT.to_owned(),
        }
    }
}

/// Held packets for one address. Dropping it drops them, and they come again from their senders.
#[derive(Debug)]
pub struct PacketHold {
    tap: Tap,
    card: [u8; 6],
    reader: Option<JoinHandle<io::Result<VecDeque<Vec<u8>>>>>,
    /// Closed to end the reader.
    stop: Option<io::PipeWriter>,
}

impl PacketHold {
    /// Holds packets for a container with this address from now on.
    ///
    /// # Errors
    /// When the base's kernel refuses it; packets go on to where they went.
    pub fn begin(address: Ipv4Addr) -> Result<Self, HoldError> {
        let name = format!("insula-h{}", process::id());
        let tap = Tap::create(&name, 1)?;
        let bridge = bridge_of_network(&Root::default(), Network::of(address));
        bridge::join_aside(&name, bridge.as_deref().unwrap_or(BRIDGE))?;
        let (stopped, stop) = io::pipe()?;
        let file = tap.file().try_clone()?;
        let reader = thread::Builder::new().name("hold".into());
        let reader = reader.spawn(move || collect(file, &stopped))?;
        let hold = Self {
            tap,
            card: card(address),
            reader: Some(reader),
            stop: Some(stop),
        };
        bridge::direct(hold.card, &name, Direction::Fixed)?;
        Ok(hold)
    }

    /// Sends the held packets there, and those that come from then on. Returns how many were held.
    ///
    /// # Errors
    /// When the base's kernel refuses it.
    pub fn release(mut self, to: Port) -> Result<usize, HoldError> {
        bridge::direct(self.card, &to.interface(), Direction::Learned)?;
        self.stop = None;
        let reader = self.reader.take().map(JoinHandle::join);
        let held = match reader {
            Some(Ok(held)) => held?,
            _ => VecDeque::new(),
        };
        for packet in &held {
            let mut to = self.tap.file();
            // One that the kernel does not take comes again from its sender.
            let _ = to.write(packet);
        }
        Ok(held.len())
    }
}

/// Reads packets until it is stopped and there is none left.
fn collect(mut tap: std::fs::File, stopped: &io::PipeReader) -> io::Result<VecDeque<Vec<u8>>> {
    let (mut held, mut bytes) = (VecDeque::new(), 0);
    let mut packet = vec![0; PACKET_MAX];
    loop {
        // The kernel looks at them in this order: what came before the end is seen with it.
        let mut wanted = [
            PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
            PollFd::new(tap.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut wanted, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            polled => polled?,
        };
        let has = |one: &PollFd<'_>| one.revents().is_some_and(|events| !events.is_empty());
        if !has(&wanted[1]) {
            return Ok(held);
        }
        let count = tap.read(&mut packet)?;
        if bytes + count <= BYTES_MAX {
            bytes += count;
            held.push_back(packet[..count].to_vec());
        }
    }
}
