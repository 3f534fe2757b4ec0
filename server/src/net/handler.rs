//! What the kernel asks for: each operation of `insula_net.h`.

use insula_abi::net::{NONE, operation};
use nix::errno::Errno;
use nix::libc;
use smoltcp::socket::tcp;
use smoltcp::time::Duration;

use super::address::{pack_bound, pack_peer, unpack};
use super::datagram::{self, Datagrams};
use super::listener::Listener;
use super::network::Network;
use super::nic::Nic;
use super::options::{self, Options};
use super::socket::{Kind, Socket};
use super::stream::Stream;
use crate::{Handler, Reply, Request};

/// A call's result, and two more words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outcome(u64, [u64; 2]);

impl From<u64> for Outcome {
    fn from(result: u64) -> Self {
        Self(result, [0; 2])
    }
}

impl<N: Nic> Handler for Network<N> {
    fn handle<'a>(&'a mut self, request: &Request<'_>) -> Reply<'a> {
        let handle = request.words[0];
        let Outcome(result, [two, three]) = self
            .call(handle, request)
            .unwrap_or_else(|error| Outcome::from((error as i64).wrapping_neg().cast_unsigned()));
        let all = &mut self.stack.sockets;
        let ready = self
            .sockets
            .get_mut(&handle)
            .map_or(0, |one| one.ready(all));
        let words = [result, ready.into(), two, three, 0, 0];
        Reply::new(words, &[])
    }
}

impl<N: Nic> Network<N> {
    fn call(&mut self, handle: u64, request: &Request<'_>) -> Result<Outcome, Errno> {
        let [_, first, second, ..] = request.words;
        Ok(match request.operation {
            operation::ACCEPT => self.accept(handle, first)?,
            operation::SEND => self.send(handle, first, request)?.into(),
            operation::RECEIVE => self.receive(handle, first, request)?,
            operation::GET_OPTION => self.get_option(handle, (first, second), request)?.into(),
            operation::NAMES => self.names(handle)?,
            operation::QUEUED => self.queued(handle)?.into(),
            _ => {
                self.act(handle, request)?;
                Outcome::from(0)
            }
        })
    }

    /// Calls that have no result but an error.
    fn act(&mut self, handle: u64, request: &Request<'_>) -> Result<(), Errno> {
        let [_, first, second, ..] = request.words;
        match request.operation {
            operation::SOCKET => self.create(handle, first),
            operation::RELEASE => {
                self.release(handle);
                Ok(())
            }
            operation::BIND => self.bind(handle, unpack(first)?),
            operation::LISTEN => self.listen(handle, first),
            operation::CONNECT => self.connect(handle, first),
            operation::SHUTDOWN => self.shut_down(handle, first),
            operation::SET_OPTION => self.set_option(handle, (first, second), request),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn create(&mut self, handle: u64, kind: u64) -> Result<(), Errno> {
        match i32::try_from(kind) {
            Ok(libc::SOCK_STREAM) => self.add(handle, Socket::new(Kind::Unconnected)),
            Ok(libc::SOCK_DGRAM) => {
                let added = self.stack.sockets.add(datagram::create());
                let kind = Kind::Datagrams(Datagrams::new(added));
                let result = self.add(handle, Socket::new(kind));
                if result.is_err() {
                    self.stack.sockets.remove(added);
                }
                result
            }
            _ => Err(Errno::ESOCKTNOSUPPORT),
        }
    }

    fn listen(&mut self, handle: u64, backlog: u64) -> Result<(), Errno> {
        // As for Linux, a negative one is a large one.
        let backlog = u64::from(backlog as u32);
        match &mut self.socket(handle)?.kind {
            Kind::Listener(listener) => {
                listener.set_backlog(backlog);
                return Ok(());
            }
            Kind::Stream(_) => return Err(Errno::EINVAL),
            Kind::Datagrams(_) => return Err(Errno::EOPNOTSUPP),
            Kind::Unconnected => self.bind_any(handle)?,
        }
        let socket = self.socket(handle)?;
        socket.kind = Kind::Listener(Listener::new(socket.bound, backlog));
        Ok(())
    }

    fn accept(&mut self, handle: u64, new: u64) -> Result<Outcome, Errno> {
        let socket = self.socket(handle)?;
        let options = socket.options.clone();
        let accepted = match &mut socket.kind {
            Kind::Listener(listener) => listener.accept().ok_or(Errno::EAGAIN)?,
            Kind::Datagrams(_) => return Err(Errno::EOPNOTSUPP),
            Kind::Unconnected | Kind::Stream(_) => return Err(Errno::EINVAL),
        };
        let mut socket = Socket::new(Kind::Stream(Stream::connected(accepted)));
        let connection = self.stack.sockets.get_mut::<tcp::Socket<'_>>(accepted);
        let peer = pack_peer(connection.remote_endpoint());
        if let Some(own) = connection.local_endpoint() {
            socket.bound.addr = Some(own.addr);
        }
        apply(connection, &options);
        socket.options = options;
        if let Err(error) = self.add(new, socket) {
            self.stack
                .sockets
                .get_mut::<tcp::Socket<'_>>(accepted)
                .abort();
            self.stack.leave(accepted);
            return Err(error);
        }
        Ok(Outcome(0, [peer, 0]))
    }

    fn connect(&mut self, handle: u64, to: u64) -> Result<(), Errno> {
        let socket = self.sockets.get_mut(&handle).ok_or(Errno::ECONNRESET)?;
        match &mut socket.kind {
            Kind::Datagrams(datagrams) if to == NONE => {
                datagrams.peer = None;
                Ok(())
            }
            Kind::Datagrams(_) => self.connect_datagrams(handle, to),
            Kind::Unconnected if to == NONE => Ok(()),
            Kind::Unconnected => {
                self.connect_stream(handle, unpack(to)?)?;
                Err(Errno::EINPROGRESS)
            }
            Kind::Listener(_) => Err(Errno::EISCONN),
            Kind::Stream(stream) => {
                let connection = self.stack.sockets.get_mut(stream.handle);
                stream.progress(connection)
            }
        }
    }

    fn connect_datagrams(&mut self, handle: u64, to: u64) -> Result<(), Errno> {
        let to = unpack(to)?;
        if !self.stack.reaches(to.addr) {
            return Err(Errno::ENETUNREACH);
        }
        self.bind_any(handle)?;
        if let Kind::Datagrams(datagrams) = &mut self.socket(handle)?.kind {
            datagrams.peer = Some(to);
        }
        Ok(())
    }

    fn send(&mut self, handle: u64, to: u64, request: &Request<'_>) -> Result<u64, Errno> {
        let socket = self.sockets.get_mut(&handle).ok_or(Errno::ECONNRESET)?;
        match &mut socket.kind {
            Kind::Stream(stream) => {
                let connection = self.stack.sockets.get_mut(stream.handle);
                stream.send(connection, request)
            }
            Kind::Datagrams(datagrams) => {
                let to = match (to, datagrams.peer) {
                    (NONE, peer) => peer.ok_or(Errno::EDESTADDRREQ)?,
                    (to, _) => unpack(to)?,
                };
                let handle_of_stack = datagrams.handle;
                if !self.stack.reaches(to.addr) {
                    return Err(Errno::ENETUNREACH);
                }
                self.bind_any(handle)?;
                let socket = self.stack.sockets.get_mut(handle_of_stack);
                Datagrams::send(socket, request, to)
            }
            Kind::Unconnected | Kind::Listener(_) => Err(Errno::EPIPE),
        }
    }

    fn receive(
        &mut self,
        handle: u64,
        flags: u64,
        request: &Request<'_>,
    ) -> Result<Outcome, Errno> {
        let peeks = flags & libc::MSG_PEEK as u64 != 0;
        let socket = self.sockets.get_mut(&handle).ok_or(Errno::ECONNRESET)?;
        match &mut socket.kind {
            Kind::Stream(stream) => {
                let connection = self.stack.sockets.get_mut(stream.handle);
                let received = stream.receive(connection, request, peeks)?;
                Ok(Outcome(received, [NONE, received]))
            }
            Kind::Datagrams(datagrams) => {
                let socket = self.stack.sockets.get_mut(datagrams.handle);
                let received = datagrams.receive(socket, request, peeks)?;
                let result = match flags & libc::MSG_TRUNC as u64 {
                    0 => received.copied,
                    _ => received.length,
                };
                Ok(Outcome(result, [received.from, received.length]))
            }
            Kind::Unconnected | Kind::Listener(_) => Err(Errno::ENOTCONN),
        }
    }

    fn shut_down(&mut self, handle: u64, how: u64) -> Result<(), Errno> {
        let socket = self.sockets.get_mut(&handle).ok_or(Errno::ECONNRESET)?;
        match &mut socket.kind {
            Kind::Stream(stream) => {
                let connection = self.stack.sockets.get_mut(stream.handle);
                stream.shut_down(connection, how)
            }
            Kind::Datagrams(datagrams) => datagrams.shut_down(how),
            Kind::Unconnected | Kind::Listener(_) => Err(Errno::ENOTCONN),
        }
    }

    fn set_option(
        &mut self,
        handle: u64,
        (level, name): (u64, u64),
        request: &Request<'_>,
    ) -> Result<(), Errno> {
        let option = (level as u32, name as u32);
        let mut bytes = [0; 8];
        let read = request.read(0, &mut bytes).map_err(|_| Errno::EFAULT)?;
        let value = |at: usize| i32::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let value = match (option, read) {
            // Only one of 0 s has an effect.
            (options::LINGER, 8..) => i32::from(value(0) != 0 && value(4) == 0),
            (options::LINGER, _) | (_, 0) => return Err(Errno::EINVAL),
            (_, 1..4) => i32::from(bytes[0]),
            _ => value(0),
        };
        let socket = self.sockets.get_mut(&handle).ok_or(Errno::ECONNRESET)?;
        socket.options.set(option, value)?;
        if let Kind::Stream(stream) = &socket.kind {
            apply(self.stack.sockets.get_mut(stream.handle), &socket.options);
        }
        Ok(())
    }

    fn get_option(
        &mut self,
        handle: u64,
        (level, name): (u64, u64),
        request: &Request<'_>,
    ) -> Result<u64, Errno> {
        let option = (level as u32, name as u32);
        let value = self.option(handle, option)?;
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&value.to_ne_bytes());
        let whole = if option == options::LINGER { 8 } else { 4 };
        let length = whole.min(usize::try_from(request.writable).unwrap_or(whole));
        if length > 0 {
            let written = request.write(0, &bytes[..length]);
            written.map_err(|_| Errno::EFAULT)?;
        }
        Ok(length as u64)
    }

    fn option(&mut self, handle: u64, option: options::OptionName) -> Result<i32, Errno> {
        let socket = self.socket(handle)?;
        let is_of_streams = socket.is_of_streams();
        let either = |stream, datagram| if is_of_streams { stream } else { datagram };
        Ok(match (option, &mut socket.kind) {
            (options::ERROR, Kind::Stream(stream)) => {
                stream.take_error().map_or(0, |error| error as i32)
            }
            (options::ERROR, _) => 0,
            (options::TYPE, _) => either(libc::SOCK_STREAM, libc::SOCK_DGRAM),
            (options::PROTOCOL, _) => either(libc::IPPROTO_TCP, libc::IPPROTO_UDP),
            (options::DOMAIN, _) => libc::AF_INET,
            (options::ACCEPTS, kind) => i32::from(matches!(kind, Kind::Listener(_))),
            _ => socket.options.get(option)?,
        })
    }

    fn names(&mut self, handle: u64) -> Result<Outcome, Errno> {
        let socket = self.sockets.get_mut(&handle).ok_or(Errno::ECONNRESET)?;
        let (own, peer) = match &socket.kind {
            Kind::Stream(stream) => {
                let connection = self.stack.sockets.get::<tcp::Socket<'_>>(stream.handle);
                (connection.local_endpoint(), connection.remote_endpoint())
            }
            Kind::Datagrams(datagrams) => (None, datagrams.peer),
            Kind::Unconnected | Kind::Listener(_) => (None, None),
        };
        let own = own.map_or_else(|| pack_bound(socket.bound), super::address::pack);
        Ok(Outcome(0, [own, pack_peer(peer)]))
    }

    fn queued(&mut self, handle: u64) -> Result<u64, Errno> {
        let socket = self.sockets.get_mut(&handle).ok_or(Errno::ECONNRESET)?;
        let all = &mut self.stack.sockets;
        Ok(match &socket.kind {
            Kind::Stream(stream) => stream.queued(all.get(stream.handle)),
            Kind::Datagrams(datagrams) => datagrams.queued(all.get_mut(datagrams.handle)),
            Kind::Unconnected => 0,
            Kind::Listener(_) => return Err(Errno::EINVAL),
        })
    }
}

/// Has a connection follow the options of its socket.
pub(super) fn apply(connection: &mut tcp::Socket<'_>, options: &Options) {
    connection.set_nagle_enabled(!options.is_set(options::NO_DELAY));
    let idle = options.get(options::KEEP_IDLE).unwrap_or(0);
    let idle = Duration::from_secs(u64::try_from(idle).unwrap_or(0).max(1));
    connection.set_keep_alive(options.is_set(options::KEEP_ALIVE).then_some(idle));
    let limit = options.get(options::HOP_LIMIT).unwrap_or(0);
    connection.set_hop_limit(u8::try_from(limit).ok().filter(|limit| *limit > 0));
}
