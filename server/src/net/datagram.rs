//! Sockets of UDP.

use insula_abi::net::ready;
use nix::errno::Errno;
use smoltcp::iface::SocketHandle;
use smoltcp::socket::udp::{PacketBuffer, PacketMetadata, Socket};
use smoltcp::wire::IpEndpoint;

use super::address::pack;
use super::nic::FRAME_MAX;
use crate::Request;

/// Most datagrams that wait, and bytes of them, each way.
const DATAGRAMS: usize = 64;
const BUFFER: usize = 96 << 10;
/// Largest datagram: it fits into a frame, behind the headers of Ethernet, IP and UDP.
const LENGTH_MAX: usize = FRAME_MAX - 14 - 20 - 8;

/// Creates a socket of the stack.
pub(super) fn create() -> Socket<'static> {
    let buffer = || PacketBuffer::new(vec![PacketMetadata::EMPTY; DATAGRAMS], vec![0; BUFFER]);
    Socket::new(buffer(), buffer())
}

/// A socket.
#[derive(Debug)]
pub(super) struct Datagrams {
    pub(super) handle: SocketHandle,
    /// The only one from whom it receives, and to whom it sends if nobody is named.
    pub(super) peer: Option<IpEndpoint>,
    is_read_shut: bool,
    /// Bytes of what has arrived that the program has been told of.
    told: usize,
}

/// What has been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received {
    /// Bytes that were handed over.
    pub(super) copied: u64,
    /// Bytes of the datagram.
    pub(super) length: u64,
    /// The sender.
    pub(super) from: u64,
}

impl Datagrams {
    pub(super) fn new(handle: SocketHandle) -> Self {
        Self {
            handle,
            peer: None,
            is_read_shut: false,
            told: 0,
        }
    }

    /// Drops datagrams of others than the peer, as far as they are in front.
    fn drop_others(&self, socket: &mut Socket<'_>) {
        while let Some(peer) = self.peer
            && socket.peek().is_ok_and(|(_, from)| from.endpoint != peer)
        {
            let _ = socket.recv();
        }
    }

    /// Returns what it is ready for.
    pub(super) fn ready(&self, socket: &mut Socket<'_>) -> u32 {
        self.drop_others(socket);
        let is_readable = socket.can_recv() || self.is_read_shut;
        // It can send as soon as it is bound, which sending does.
        let is_writable = socket.can_send() || !socket.is_open();
        (if is_readable { ready::IN } else { 0 }) | (if is_writable { ready::OUT } else { 0 })
    }

    /// Whether more has arrived than the program has been told of; it is told now.
    pub(super) fn has_arrived(&mut self, socket: &Socket<'_>) -> bool {
        let queued = socket.recv_queue();
        let before = std::mem::replace(&mut self.told, queued);
        queued > before
    }

    /// Returns the bytes of the next datagram.
    pub(super) fn queued(&self, socket: &mut Socket<'_>) -> u64 {
        self.drop_others(socket);
        socket.peek().map_or(0, |(bytes, _)| bytes.len() as u64)
    }

    /// Sends what a request lets be read as one datagram.
    pub(super) fn send(
        socket: &mut Socket<'_>,
        request: &Request<'_>,
        to: IpEndpoint,
    ) -> Result<u64, Errno> {
        if request.readable > LENGTH_MAX as u64 {
            return Err(Errno::EMSGSIZE);
        }
        let mut bytes = [0; LENGTH_MAX];
        let bytes = &mut bytes[..request.readable as usize];
        let mut read = 0;
        while read < bytes.len() {
            let copied = request.read(read as u64, &mut bytes[read..]);
            match copied.map_err(|_| Errno::EFAULT)? {
                0 => return Err(Errno::EFAULT),
                copied => read += copied,
            }
        }
        match socket.send_slice(bytes, to) {
            Ok(()) => Ok(bytes.len() as u64),
            Err(smoltcp::socket::udp::SendError::BufferFull) => Err(Errno::EAGAIN),
            Err(smoltcp::socket::udp::SendError::Unaddressable) => Err(Errno::EINVAL),
        }
    }

    /// Hands over the next datagram. `peeks`: it stays where it is.
    pub(super) fn receive(
        &mut self,
        socket: &mut Socket<'_>,
        request: &Request<'_>,
        peeks: bool,
    ) -> Result<Received, Errno> {
        self.drop_others(socket);
        let Ok((bytes, from)) = socket.peek() else {
            return match self.is_read_shut {
                true => Ok(Received {
                    copied: 0,
                    length: 0,
                    from: insula_abi::net::NONE,
                }),
                false => Err(Errno::EAGAIN),
            };
        };
        let room = usize::try_from(request.writable).unwrap_or(usize::MAX);
        let part = &bytes[..bytes.len().min(room)];
        let copied = match part.is_empty() {
            true => 0,
            false => request.write(0, part).map_err(|_| Errno::EFAULT)?,
        };
        let received = Received {
            copied: copied as u64,
            length: bytes.len() as u64,
            from: pack(from.endpoint),
        };
        if !peeks {
            let _ = socket.recv();
            self.told = self.told.min(socket.recv_queue());
        }
        Ok(received)
    }

    /// shutdown(2).
    pub(super) fn shut_down(&mut self, how: u64) -> Result<(), Errno> {
        /// `SHUT_WR`.
        const WRITING: u64 = 1;
        match (self.peer, how) {
            (_, 3..) => Err(Errno::EINVAL),
            (None, _) => Err(Errno::ENOTCONN),
            (Some(_), how) => {
                self.is_read_shut |= how != WRITING;
                Ok(())
            }
        }
    }
}
