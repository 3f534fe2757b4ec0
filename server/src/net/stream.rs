//! Streams: TCP connections, and such as are being made.

use insula_abi::net::ready;
use nix::errno::Errno;
use nix::libc;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Duration;

use super::options::{self, Options};
use crate::Request;

/// Bytes of a buffer: of what has arrived, and of what leaves.
pub(super) const BUFFER: usize = 64 << 10;
/// How long a peer may leave what was sent unacknowledged, as Linux' `tcp_retries2` lets it.
const TIMEOUT: Duration = Duration::from_secs(924);
/// The same of a connection that is being made (`tcp_syn_retries`).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(127);

/// Creates a socket of the stack.
pub(super) fn create() -> Socket<'static> {
    let buffer = || SocketBuffer::new(vec![0; BUFFER]);
    let mut socket = Socket::new(buffer(), buffer());
    socket.set_timeout(Some(TIMEOUT));
    // Linux acknowledges at once at the start of a connection, where most waiting for it is done.
    socket.set_ack_delay(None);
    socket
}

/// How far a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    Connected,
    /// The stack has no connection any more.
    Ended,
}

/// A stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) handle: SocketHandle,
    phase: Phase,
    /// Error that the next call reports (`SO_ERROR`).
    error: Option<Errno>,
    /// The peer has ended its side; something may still be to be received.
    has_peer_ended: bool,
    /// What arrived last, once the stack has no place for it any more.
    rest: Vec<u8>,
    /// A call of connect(2) has said that there is a connection.
    has_told_progress: bool,
    /// The program wants nothing more (`SHUT_RD`), or sends nothing more (`SHUT_WR`).
    is_read_shut: bool,
    is_write_shut: bool,
    /// Bytes of what has arrived that the program has been told of.
    told: usize,
}

impl Stream {
    /// Takes over a socket that connects.
    pub(super) fn connecting(handle: SocketHandle, socket: &mut Socket<'_>) -> Self {
        socket.set_timeout(Some(CONNECT_TIMEOUT));
        Self::new(handle, Phase::Connecting)
    }

    /// Takes over a socket with a connection.
    pub(super) fn connected(handle: SocketHandle) -> Self {
        Self::new(handle, Phase::Connected)
    }

    fn new(handle: SocketHandle, phase: Phase) -> Self {
        Self {
            handle,
            phase,
            error: None,
            has_peer_ended: false,
            rest: Vec::new(),
            has_told_progress: phase == Phase::Connected,
            is_read_shut: false,
            is_write_shut: false,
            told: 0,
        }
    }

    /// Follows what the stack has done with its socket.
    fn follow(&mut self, socket: &mut Socket<'_>) {
        let state = socket.state();
        match (self.phase, state) {
            (Phase::Connecting, State::SynSent | State::SynReceived) => {}
            (Phase::Connecting, State::Closed) => {
                self.phase = Phase::Ended;
                self.error = Some(Errno::ECONNREFUSED);
            }
            (Phase::Connecting, _) => {
                self.phase = Phase::Connected;
                socket.set_timeout(Some(TIMEOUT));
            }
            (Phase::Connected, State::Closed) => {
                self.phase = Phase::Ended;
                self.error = self.end_error();
            }
            _ => {}
        }
        if state == State::TimeWait {
            self.save_rest(socket);
        }
        self.has_peer_ended |= matches!(
            state,
            State::CloseWait | State::Closing | State::LastAck | State::TimeWait
        );
    }

    /// Takes what has arrived out of a socket whose buffer the stack will clear.
    fn save_rest(&mut self, socket: &mut Socket<'_>) {
        let mut bytes = vec![0; socket.recv_queue()];
        let saved = socket.recv_slice(&mut bytes).unwrap_or(0);
        self.rest.extend(&bytes[..saved]);
    }

    /// Returns the error of a connection that the stack has closed: none after both sides have ended it,
    /// else it was reset, which Linux calls a broken pipe if the peer had ended its side.
    fn end_error(&self) -> Option<Errno> {
        match (self.has_peer_ended, self.is_write_shut) {
            (true, true) => None,
            (true, false) => Some(Errno::EPIPE),
            (false, _) => Some(Errno::ECONNRESET),
        }
    }

    /// Returns what it is ready for.
    pub(super) fn ready(&mut self, socket: &mut Socket<'_>) -> u32 {
        self.follow(socket);
        if self.phase == Phase::Connecting {
            return 0;
        }
        let is_ended = self.phase == Phase::Ended;
        let is_at_end = self.has_peer_ended || is_ended || self.is_read_shut;
        let has_room = socket.send_queue() < socket.send_capacity() / 3 * 2;
        let mut bits = 0;
        let mut set = |bit: u32, is_set: bool| bits |= if is_set { bit } else { 0 };
        set(ready::IN, is_at_end || socket.can_recv());
        set(
            ready::OUT,
            is_ended || self.is_write_shut || has_room || !socket.may_send(),
        );
        set(ready::ERROR, self.error.is_some());
        set(ready::RDHUP, is_at_end);
        set(ready::HUP, is_ended || is_at_end && self.is_write_shut);
        bits
    }

    /// Whether more has arrived than the program has been told of; it is told now.
    pub(super) fn has_arrived(&mut self, socket: &Socket<'_>) -> bool {
        let queued = self.queued(socket) as usize;
        let before = std::mem::replace(&mut self.told, queued);
        queued > before
    }

    /// What another connect(2) of it finds: it connects, could not, or is connected, which is an error from
    /// the second time on.
    pub(super) fn progress(&mut self, socket: &mut Socket<'_>) -> Result<(), Errno> {
        self.follow(socket);
        match self.phase {
            Phase::Connecting => Err(Errno::EALREADY),
            Phase::Connected if self.has_told_progress => Err(Errno::EISCONN),
            Phase::Connected => {
                self.has_told_progress = true;
                Ok(())
            }
            Phase::Ended => Err(self.take_error().unwrap_or(Errno::ECONNABORTED)),
        }
    }

    /// Takes the error that is to be reported.
    pub(super) fn take_error(&mut self) -> Option<Errno> {
        self.error.take()
    }

    /// Returns the bytes that can be received.
    pub(super) fn queued(&self, socket: &Socket<'_>) -> u64 {
        (self.rest.len() + socket.recv_queue()) as u64
    }

    fn check(&mut self, socket: &mut Socket<'_>) -> Result<(), Errno> {
        self.follow(socket);
        match self.phase {
            Phase::Connecting => Err(Errno::EAGAIN),
            Phase::Connected | Phase::Ended => Ok(()),
        }
    }

    /// Sends what a request lets be read, as far as there is room.
    pub(super) fn send(
        &mut self,
        socket: &mut Socket<'_>,
        request: &Request<'_>,
    ) -> Result<u64, Errno> {
        self.check(socket)?;
        if let Some(error) = self.take_error() {
            return Err(error);
        }
        if self.is_write_shut || !socket.may_send() {
            return Err(Errno::EPIPE);
        }
        let mut sent = 0;
        // The free part of the buffer may be in two pieces.
        while sent < request.readable && socket.can_send() {
            let copied = socket.send(|free| copy_in(request, sent, free));
            match copied.map_err(|_| Errno::EPIPE)? {
                Ok(0) => break,
                Ok(copied) => sent += copied as u64,
                Err(_) if sent > 0 => break,
                Err(error) => return Err(error),
            }
        }
        match sent {
            0 if request.readable > 0 => Err(Errno::EAGAIN),
            sent => Ok(sent),
        }
    }

    /// Hands over what has arrived. `peeks`: it stays where it is.
    pub(super) fn receive(
        &mut self,
        socket: &mut Socket<'_>,
        request: &Request<'_>,
        peeks: bool,
    ) -> Result<u64, Errno> {
        self.check(socket)?;
        let received = match (self.rest.is_empty(), peeks) {
            (false, _) => self.receive_rest(request, peeks),
            (true, true) => peek(socket, request),
            (true, false) => take(socket, request),
        }?;
        self.told = self.told.min(self.queued(socket) as usize);
        if received > 0 || request.writable == 0 {
            return Ok(received);
        }
        match self.take_error() {
            Some(error) => Err(error),
            None if is_at_end(socket) || self.is_read_shut => Ok(0),
            None => Err(Errno::EAGAIN),
        }
    }

    /// Hands over what arrived last.
    fn receive_rest(&mut self, request: &Request<'_>, peeks: bool) -> Result<u64, Errno> {
        let copied = copy_out(request, 0, &self.rest).1?;
        if !peeks {
            self.rest.drain(..copied);
        }
        Ok(copied as u64)
    }

    /// shutdown(2).
    pub(super) fn shut_down(&mut self, socket: &mut Socket<'_>, how: u64) -> Result<(), Errno> {
        self.follow(socket);
        if self.phase != Phase::Connected {
            return Err(Errno::ENOTCONN);
        }
        let how = i32::try_from(how).unwrap_or(-1);
        if !matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR) {
            return Err(Errno::EINVAL);
        }
        self.is_read_shut |= how != libc::SHUT_WR;
        if how != libc::SHUT_RD {
            self.is_write_shut = true;
            socket.close();
        }
        Ok(())
    }

    /// Ends it for its program: what was sent is still delivered, unless the program has not taken what
    /// had arrived, or wants no more of it (`SO_LINGER` of 0 s).
    pub(super) fn release(self, sockets: &mut SocketSet<'_>, options: &Options) -> SocketHandle {
        let socket = sockets.get_mut::<Socket<'_>>(self.handle);
        match socket.recv_queue() > 0 || options.is_set(options::LINGER) {
            true => socket.abort(),
            false => socket.close(),
        }
        self.handle
    }
}

/// Whether nothing more arrives, and all that has arrived is received.
fn is_at_end(socket: &Socket<'_>) -> bool {
    !socket.may_recv()
}

/// Copies from what a request lets be read, from an offset on, to a free part of a buffer.
fn copy_in(request: &Request<'_>, offset: u64, to: &mut [u8]) -> (usize, Result<usize, Errno>) {
    match request.read(offset, to) {
        Ok(copied) => (copied, Ok(copied)),
        Err(_) => (0, Err(Errno::EFAULT)),
    }
}

fn take(socket: &mut Socket<'_>, request: &Request<'_>) -> Result<u64, Errno> {
    let mut taken = 0;
    while taken < request.writable && socket.can_recv() {
        let copied = socket.recv(|arrived| copy_out(request, taken, arrived));
        match copied.map_err(|_| Errno::ECONNRESET)? {
            Ok(0) => break,
            Ok(copied) => taken += copied as u64,
            Err(_) if taken > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(taken)
}

fn peek(socket: &mut Socket<'_>, request: &Request<'_>) -> Result<u64, Errno> {
    if !socket.can_recv() {
        return Ok(0);
    }
    let most = usize::try_from(request.writable).unwrap_or(usize::MAX);
    let mut bytes = vec![0; most.min(socket.recv_queue())];
    let peeked = socket.peek_slice(&mut bytes);
    let length = peeked.map_err(|_| Errno::ECONNRESET)?;
    copy_out(request, 0, &bytes[..length])
        .1
        .map(|copied| copied as u64)
}

/// Copies what has arrived to where a request lets be written, from an offset on.
fn copy_out(request: &Request<'_>, offset: u64, from: &[u8]) -> (usize, Result<usize, Errno>) {
    let room = usize::try_from(request.writable - offset).unwrap_or(usize::MAX);
    match request.write(offset, &from[..from.len().min(room)]) {
        Ok(copied) => (copied, Ok(copied)),
        Err(_) => (0, Err(Errno::EFAULT)),
    }
}
