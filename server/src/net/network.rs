//! All sockets of a server's clients.

use std::collections::BTreeMap;
use std::time::Duration;

use insula_abi::net::ready;
use nix::errno::Errno;
use smoltcp::socket::{tcp, udp};
use smoltcp::wire::{IpAddress, IpEndpoint, IpListenEndpoint, Ipv4Cidr};

use super::nic::Nic;
use super::socket::{Kind, Socket};
use super::stack::{Addressing, Stack};
use super::stream::{self, Stream};
use crate::Announcement;

/// Most sockets of all programs, as each has buffers of its own.
const SOCKETS_MAX: usize = 1024;
/// Ports that sockets get which nobody has bound (`ip_local_port_range`).
const EPHEMERAL: std::ops::Range<u16> = 32768..61000;

/// A network server: a card, the network stack, and the sockets of programs
/// ([`Handler`](crate::Handler)).
#[derive(Debug)]
pub struct Network<N> {
    pub(super) stack: Stack<N>,
    pub(super) sockets: BTreeMap<u64, Socket>,
    announcements: Vec<Announcement>,
    last_port: u16,
}

impl<N: Nic> Network<N> {
    /// Creates the server of a card. `seed` is a random number.
    #[must_use]
    pub fn new(nic: N, addressing: Addressing, seed: u64) -> Self {
        let ports = u64::from(EPHEMERAL.end - EPHEMERAL.start);
        Self {
            stack: Stack::new(nic, addressing, seed),
            sockets: BTreeMap::new(),
            announcements: Vec::new(),
            last_port: EPHEMERAL.start + (seed % ports) as u16,
        }
    }

    /// Returns the own address, if there is one yet.
    #[must_use]
    pub fn address(&self) -> Option<Ipv4Cidr> {
        self.stack.address()
    }

    /// Looks whether the card works.
    ///
    /// # Errors
    /// The card is not used any more.
    pub fn check(&self) -> Result<(), N::Error> {
        self.stack.check()
    }

    /// Takes what has arrived, sends what is due at a time, in ms since any moment. Returns whether
    /// anything was to be done.
    ///
    /// # Errors
    /// As of [`Network::check`].
    pub fn poll(&mut self, now_ms: i64) -> Result<bool, N::Error> {
        let all = &mut self.sockets;
        let is_busy = self.stack.poll(now_ms, |sockets, attempt| {
            let mut listeners = all
                .values_mut()
                .filter_map(|socket| match &mut socket.kind {
                    Kind::Listener(listener) => Some(listener),
                    _ => None,
                });
            let found = listeners.find(|listener| listener.is_at(attempt.to));
            // Without a listener the stack refuses it.
            found.is_none_or(|listener| listener.admit(sockets, attempt))
        })?;
        for (handle, socket) in &mut self.sockets {
            if let Some((ready, has_arrived)) = socket.follow(&mut self.stack.sockets) {
                let edges = if has_arrived { ready::IN } else { 0 };
                let words = [*handle, ready.into(), edges.into(), 0, 0, 0];
                self.announcements.push(Announcement(words));
            }
        }
        Ok(is_busy)
    }

    /// Whether the card can interrupt when a frame arrives.
    pub(super) fn can_interrupt(&mut self) -> bool {
        self.stack.nic().can_interrupt()
    }

    /// Has the card interrupt when a frame arrives, if it can. Returns for how long there is nothing to do but for
    /// frames and requests: at most that long; [`Duration::ZERO`] if there is something.
    pub(super) fn rest(&mut self, at_most: Duration) -> Duration {
        let due_after = self.stack.due_after().unwrap_or(at_most);
        match due_after.is_zero() || !self.stack.nic().expect_interrupt(true) {
            true => Duration::ZERO,
            false => due_after.min(at_most),
        }
    }

    /// Has the card not interrupt: it is looked at.
    pub(super) fn end_rest(&mut self) {
        self.stack.nic().expect_interrupt(false);
    }

    /// Takes what the kernel is to be told of sockets that have changed.
    pub fn take_announcements(&mut self) -> Vec<Announcement> {
        std::mem::take(&mut self.announcements)
    }

    /// Returns a socket.
    pub(super) fn socket(&mut self, handle: u64) -> Result<&mut Socket, Errno> {
        // A server that was here before had it.
        self.sockets.get_mut(&handle).ok_or(Errno::ECONNRESET)
    }

    /// Adds a socket.
    pub(super) fn add(&mut self, handle: u64, socket: Socket) -> Result<(), Errno> {
        if self.sockets.len() >= SOCKETS_MAX {
            return Err(Errno::ENOBUFS);
        }
        match self.sockets.contains_key(&handle) {
            true => Err(Errno::EINVAL),
            false => {
                self.sockets.insert(handle, socket);
                Ok(())
            }
        }
    }

    /// Removes a socket. What it has sent is still delivered.
    pub(super) fn release(&mut self, handle: u64) {
        let Some(socket) = self.sockets.remove(&handle) else {
            return;
        };
        let all = &mut self.stack.sockets;
        let leaving = match socket.kind {
            Kind::Unconnected => Vec::new(),
            Kind::Listener(listener) => listener.release(all),
            Kind::Stream(stream) => vec![stream.release(all, &socket.options)],
            Kind::Datagrams(datagrams) => {
                all.remove(datagrams.handle);
                Vec::new()
            }
        };
        leaving.into_iter().for_each(|one| self.stack.leave(one));
    }

    /// Whether a socket of streams, or of datagrams, has a port.
    fn is_used(&self, is_of_streams: bool, port: u16) -> bool {
        let mut sockets = self.sockets.values();
        sockets.any(|socket| socket.is_of_streams() == is_of_streams && socket.bound.port == port)
    }

    /// Returns a port that no socket of the kind has.
    fn free_port(&mut self, is_of_streams: bool) -> Result<u16, Errno> {
        for _ in EPHEMERAL {
            let next = self.last_port + 1;
            self.last_port = if EPHEMERAL.contains(&next) {
                next
            } else {
                EPHEMERAL.start
            };
            if !self.is_used(is_of_streams, self.last_port) {
                return Ok(self.last_port);
            }
        }
        Err(Errno::EADDRINUSE)
    }

    /// Binds a socket to an address: with port 0 to any that is free.
    pub(super) fn bind(&mut self, handle: u64, to: IpEndpoint) -> Result<(), Errno> {
        let own = self.address().map(|own| IpAddress::Ipv4(own.address()));
        let socket = self.socket(handle)?;
        let is_of_streams = socket.is_of_streams();
        if socket.bound.port != 0 {
            return Err(Errno::EINVAL);
        }
        let addr = match to.addr {
            address if address.is_unspecified() => None,
            address if Some(address) == own => Some(address),
            _ => return Err(Errno::EADDRNOTAVAIL),
        };
        let port = match to.port {
            0 => self.free_port(is_of_streams)?,
            port if self.is_used(is_of_streams, port) => return Err(Errno::EADDRINUSE),
            port => port,
        };
        let bound = IpListenEndpoint { addr, port };
        let socket = self.sockets.get_mut(&handle).ok_or(Errno::ECONNRESET)?;
        socket.bound = bound;
        if let Kind::Datagrams(datagrams) = &socket.kind {
            let socket: &mut udp::Socket<'_> = self.stack.sockets.get_mut(datagrams.handle);
            socket.bind(bound).map_err(|_| Errno::EINVAL)?;
        }
        Ok(())
    }

    /// Binds a socket that is not bound yet to any port.
    pub(super) fn bind_any(&mut self, handle: u64) -> Result<(), Errno> {
        let any = IpAddress::v4(0, 0, 0, 0);
        match self.socket(handle)?.bound.port {
            0 => self.bind(handle, IpEndpoint::new(any, 0)),
            _ => Ok(()),
        }
    }

    /// Begins to make a connection.
    pub(super) fn connect_stream(&mut self, handle: u64, to: IpEndpoint) -> Result<(), Errno> {
        if !self.stack.reaches(to.addr) {
            return Err(Errno::ENETUNREACH);
        }
        self.bind_any(handle)?;
        let from = self.socket(handle)?.bound;
        let mut socket = stream::create();
        let connected = self.stack.connect(&mut socket, to, from);
        connected.map_err(|error| match error {
            tcp::ConnectError::InvalidState => Errno::EISCONN,
            tcp::ConnectError::Unaddressable => Errno::EADDRNOTAVAIL,
        })?;
        let options = self.socket(handle)?.options.clone();
        super::handler::apply(&mut socket, &options);
        let added = self.stack.sockets.add(socket);
        let stream = Stream::connecting(added, self.stack.sockets.get_mut(added));
        self.socket(handle)?.kind = Kind::Stream(stream);
        Ok(())
    }
}
