//! A program's socket.

use insula_abi::net::ready;
use smoltcp::iface::SocketSet;
use smoltcp::socket::{tcp, udp};
use smoltcp::wire::IpListenEndpoint;

use super::datagram::Datagrams;
use super::listener::Listener;
use super::options::Options;
use super::stream::Stream;

/// What a socket is by now.
#[derive(Debug)]
pub(super) enum Kind {
    /// Of streams, without a connection.
    Unconnected,
    /// It listens.
    Listener(Listener),
    /// It has a connection, or had one.
    Stream(Stream),
    /// Of datagrams.
    Datagrams(Datagrams),
}

/// A socket.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) kind: Kind,
    /// What it is bound to; port 0 for nothing.
    pub(super) bound: IpListenEndpoint,
    pub(super) options: Options,
    /// What its program has been told that it is ready for.
    told: u32,
}

impl Socket {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            bound: IpListenEndpoint {
                addr: None,
                port: 0,
            },
            options: Options::default(),
            told: 0,
        }
    }

    /// Whether it is of streams.
    pub(super) fn is_of_streams(&self) -> bool {
        !matches!(self.kind, Kind::Datagrams(_))
    }

    /// Returns what it is ready for, of which its program is told now.
    pub(super) fn ready(&mut self, sockets: &mut SocketSet<'_>) -> u32 {
        self.told = match &mut self.kind {
            Kind::Unconnected => ready::OUT | ready::HUP,
            Kind::Listener(listener) => match listener.is_ready() {
                true => ready::IN,
                false => 0,
            },
            Kind::Stream(stream) => stream.ready(sockets.get_mut(stream.handle)),
            Kind::Datagrams(datagrams) => datagrams.ready(sockets.get_mut(datagrams.handle)),
        };
        self.told
    }

    /// Follows what the stack has done. Returns what its program is to be told: what it is ready for,
    /// and whether something has arrived.
    pub(super) fn follow(&mut self, sockets: &mut SocketSet<'_>) -> Option<(u32, bool)> {
        let before = self.told;
        let has_arrived = match &mut self.kind {
            Kind::Unconnected => return None,
            Kind::Listener(listener) => {
                listener.follow(sockets);
                listener.has_arrived()
            }
            Kind::Stream(stream) => {
                let handle = stream.handle;
                stream.has_arrived(sockets.get::<tcp::Socket<'_>>(handle))
            }
            Kind::Datagrams(datagrams) => {
                let handle = datagrams.handle;
                datagrams.has_arrived(sockets.get::<udp::Socket<'_>>(handle))
            }
        };
        let ready = self.ready(sockets);
        (has_arrived || ready != before).then_some((ready, has_arrived))
    }
}
