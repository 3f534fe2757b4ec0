//! Listening sockets. The stack has a socket for each connection that is being made: it is created when
//! the first segment of one comes, as long as the backlog has room for it. Else the segment is dropped,
//! as by Linux, and the peer sends it again.

use std::collections::VecDeque;

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, State};
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpAddress, IpEndpoint, IpListenEndpoint, IpProtocol,
    Ipv4Packet, TcpPacket,
};

use super::stream;

/// Most connections of a listening socket that nobody has accepted (`somaxconn`, but for its memory).
const BACKLOG_MAX: u64 = 128;

/// The first segment of a connection: from where, and where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    pub(super) from: IpEndpoint,
    pub(super) to: IpEndpoint,
}

impl Attempt {
    /// Reads it from a frame, if that is one.
    pub(super) fn of(frame: &[u8]) -> Option<Self> {
        let frame = EthernetFrame::new_checked(frame).ok()?;
        if frame.ethertype() != EthernetProtocol::Ipv4 {
            return None;
        }
        let packet = Ipv4Packet::new_checked(frame.payload()).ok()?;
        let is_whole = !packet.more_frags() && packet.frag_offset() == 0;
        if packet.next_header() != IpProtocol::Tcp || !is_whole {
            return None;
        }
        let segment = TcpPacket::new_checked(packet.payload()).ok()?;
        let end = |address, port| IpEndpoint::new(IpAddress::Ipv4(address), port);
        (segment.syn() && !segment.ack()).then(|| Self {
            from: end(packet.src_addr(), segment.src_port()),
            to: end(packet.dst_addr(), segment.dst_port()),
        })
    }
}

/// A listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    at: IpListenEndpoint,
    backlog: usize,
    /// Connections that are being made, and those that nobody has accepted.
    pending: Vec<SocketHandle>,
    made: VecDeque<SocketHandle>,
    /// Connections that the program has been told of.
    told: usize,
}

impl Listener {
    pub(super) fn new(at: IpListenEndpoint, backlog: u64) -> Self {
        let mut listener = Self {
            at,
            backlog: 0,
            pending: Vec::new(),
            made: VecDeque::new(),
            told: 0,
        };
        listener.set_backlog(backlog);
        listener
    }

    pub(super) fn set_backlog(&mut self, backlog: u64) {
        // As Linux, one more than what is asked for.
        self.backlog = (backlog.min(BACKLOG_MAX - 1) + 1) as usize;
    }

    /// Whether it is where a connection is wanted.
    pub(super) fn is_at(&self, to: IpEndpoint) -> bool {
        let has_address = self.at.addr.is_none_or(|address| address == to.addr);
        has_address && self.at.port == to.port
    }

    /// Has the stack take the first segment of a connection. Returns whether it shall.
    pub(super) fn admit(&mut self, sockets: &mut SocketSet<'_>, attempt: Attempt) -> bool {
        let is_known = self.pending.iter().chain(&self.made).any(|handle| {
            let socket = sockets.get::<Socket<'_>>(*handle);
            socket.remote_endpoint() == Some(attempt.from)
        });
        if is_known {
            return true;
        }
        if self.pending.len() + self.made.len() >= self.backlog {
            return false;
        }
        let mut socket = stream::create();
        if socket.listen(self.at).is_err() {
            return false;
        }
        self.pending.push(sockets.add(socket));
        true
    }

    /// Follows what the stack has done with the connections.
    pub(super) fn follow(&mut self, sockets: &mut SocketSet<'_>) {
        let made = &mut self.made;
        self.pending.retain(|handle| {
            match sockets.get::<Socket<'_>>(*handle).state() {
                State::SynReceived => true,
                // The segment was no good, or the peer has given up.
                State::Listen | State::Closed => {
                    sockets.remove(*handle);
                    false
                }
                _ => {
                    made.push_back(*handle);
                    false
                }
            }
        });
        self.told = self.told.min(self.made.len());
    }

    /// Whether a connection can be accepted.
    pub(super) fn is_ready(&self) -> bool {
        !self.made.is_empty()
    }

    /// Whether there are more than the program has been told of; it is told now.
    pub(super) fn has_arrived(&mut self) -> bool {
        let before = std::mem::replace(&mut self.told, self.made.len());
        self.made.len() > before
    }

    /// Takes the oldest connection.
    pub(super) fn accept(&mut self) -> Option<SocketHandle> {
        let accepted = self.made.pop_front();
        self.told = self.told.min(self.made.len());
        accepted
    }

    /// Ends it. Returns the sockets of connections, which are reset.
    pub(super) fn release(self, sockets: &mut SocketSet<'_>) -> Vec<SocketHandle> {
        let all: Vec<_> = self.pending.into_iter().chain(self.made).collect();
        for handle in &all {
            sockets.get_mut::<Socket<'_>>(*handle).abort();
        }
        all
    }
}
