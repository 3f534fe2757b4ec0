//! One thread that forwards the datagrams of a published UDP port.
//!
//! UDP has no connections: what a client sends from one of its ports is a *flow*, which has a socket of its own
//! to the node, by whose port the node's answers find the client. A flow ends when nothing of it was seen
//! for a while, sooner if it was never answered, as in Linux' connection tracking.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use mio::net::UdpSocket;
use mio::{Events, Interest, Poll, Token, Waker};
use nix::cmsg_space;
use nix::libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
    sockopt,
};

use super::CLOSE;
use super::limit::{Admission, Limit, Reports};

/// Time after which a flow without datagrams ends: `nf_conntrack_udp_timeout_stream` of Linux, and
/// `nf_conntrack_udp_timeout` if it was never answered.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
const UNANSWERED_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which flows are checked.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longest datagram.
const BYTES_MAX: usize = 64 << 10;
/// Datagrams before other sockets get their turn.
const DATAGRAMS: usize = 64;
/// Events per poll.
const EVENTS: usize = 256;

const PORT: Token = Token(usize::MAX);

/// Where the datagrams of a flow come from, and to which address of the base, from which the answers are sent:
/// a client takes them from no other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Origin {
    client: SocketAddr,
    local: Option<IpAddr>,
}

struct Flow {
    origin: Origin,
    node: UdpSocket,
    last: Instant,
    answered: bool,
    _admission: Admission,
}

impl Flow {
    fn is_idle(&self) -> bool {
        let timeout = match self.answered {
            true => IDLE_TIMEOUT,
            false => UNANSWERED_TIMEOUT,
        };
        self.last.elapsed() > timeout
    }
}

/// A published port and its flows.
pub(super) struct DatagramRelay {
    poll: Poll,
    port: UdpSocket,
    node: SocketAddrV4,
    limit: Arc<Limit>,
    flows: BTreeMap<usize, Flow>,
    numbers: BTreeMap<Origin, usize>,
    next: usize,
    /// When idle flows were ended last.
    checked: Instant,
    /// Dropped when the port is closed.
    closed: Sender<()>,
    reports: Reports,
}

impl DatagramRelay {
    /// Forwards datagrams of the port to a node; `closed` is dropped when the port is closed.
    pub(super) fn new(
        port: std::net::UdpSocket,
        node: SocketAddrV4,
        limit: Arc<Limit>,
        closed: Sender<()>,
        reports: Reports,
    ) -> io::Result<(Self, Waker)> {
        port.set_nonblocking(true)?;
        tell_local_addresses(&port)?;
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), CLOSE)?;
        let mut port = UdpSocket::from_std(port);
        poll.registry()
            .register(&mut port, PORT, Interest::READABLE)?;
        let relay = Self {
            poll,
            port,
            node,
            limit,
            flows: BTreeMap::new(),
            numbers: BTreeMap::new(),
            next: 0,
            checked: Instant::now(),
            closed,
            reports,
        };
        Ok((relay, waker))
    }

    /// Closes the port, and tells that only then.
    fn close(self) {
        let Self { port, closed, .. } = self;
        drop(port);
        drop(closed);
    }

    /// Runs until the port is closed.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        let mut buffer = vec![0; BYTES_MAX];
        let mut ready = VecDeque::new();
        loop {
            let wait = match ready.is_empty() {
                true => INTERVAL,
                false => Duration::ZERO,
            };
            // An interrupting signal counts as a timeout.
            let _ = self.poll.poll(&mut events, Some(wait));
            for event in &events {
                match event.token() {
                    CLOSE => return self.close(),
                    token if ready.contains(&token) => {}
                    token => ready.push_back(token),
                }
            }
            // One round: sockets with more datagrams wait for the others.
            for _ in 0..ready.len() {
                if let Some(token) = ready.pop_front()
                    && self.forward(token, &mut buffer)
                {
                    ready.push_back(token);
                }
            }
            if self.checked.elapsed() >= INTERVAL {
                self.end_idle();
                self.checked = Instant::now();
            }
        }
    }

    /// Forwards datagrams of a socket; whether there may be more.
    fn forward(&mut self, Token(number): Token, buffer: &mut [u8]) -> bool {
        for _ in 0..DATAGRAMS {
            let forwarded = match Token(number) {
                PORT => self.forward_to_node(buffer),
                _ => self.forward_to_client(number, buffer),
            };
            match forwarded {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                // A datagram that cannot be sent is lost, as any may be; an error of the socket, as of a port
                // that nobody has open, is told once, by its next call.
                _ => {}
            }
        }
        true
    }

    fn forward_to_node(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let (length, origin) = receive(&self.port, buffer)?;
        let Some(flow) = self.flow(origin) else {
            return Ok(());
        };
        flow.last = Instant::now();
        sent(flow.node.send(&buffer[..length]))
    }

    fn forward_to_client(&mut self, number: usize, buffer: &mut [u8]) -> io::Result<()> {
        let Some(flow) = self.flows.get_mut(&number) else {
            return Err(ErrorKind::WouldBlock.into());
        };
        let length = flow.node.recv(buffer)?;
        (flow.last, flow.answered) = (Instant::now(), true);
        sent(send(&self.port, &buffer[..length], &flow.origin))
    }

    /// The flow of an origin, which begins if there is room for it.
    fn flow(&mut self, origin: Origin) -> Option<&mut Flow> {
        let number = match self.numbers.get(&origin) {
            Some(&number) => number,
            None => self.begin(origin)?,
        };
        self.flows.get_mut(&number)
    }

    fn begin(&mut self, origin: Origin) -> Option<usize> {
        let most = self.limit.flows_max();
        if self.flows.len() >= most {
            self.reports
                .tell(&format!("there are {most} senders already"));
            return None;
        }
        let Some(admission) = self.limit.admit() else {
            self.reports.tell(&self.limit.reached());
            return None;
        };
        match self.connect(self.next) {
            Ok(node) => {
                let number = self.next;
                let flow = Flow {
                    origin,
                    node,
                    last: Instant::now(),
                    answered: false,
                    _admission: admission,
                };
                self.flows.insert(number, flow);
                self.numbers.insert(origin, number);
                self.next += 1;
                Some(number)
            }
            Err(error) => {
                self.reports.tell(&error.to_string());
                None
            }
        }
    }

    fn connect(&self, number: usize) -> io::Result<UdpSocket> {
        let mut node = UdpSocket::bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
        node.connect(self.node.into())?;
        let registry = self.poll.registry();
        registry.register(&mut node, Token(number), Interest::READABLE)?;
        Ok(node)
    }

    /// Ends flows of which nothing was seen.
    fn end_idle(&mut self) {
        let is_idle = |_: &usize, flow: &mut Flow| flow.is_idle();
        for (_, flow) in self.flows.extract_if(.., is_idle) {
            self.numbers.remove(&flow.origin);
        }
    }
}

/// What became of a datagram that was sent: one for which there is no room is lost.
fn sent(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}

/// Has the kernel tell with each datagram to which address it was sent.
fn tell_local_addresses(port: &std::net::UdpSocket) -> io::Result<()> {
    match port.local_addr()? {
        SocketAddr::V4(_) => setsockopt(&port, sockopt::Ipv4PacketInfo, &true)?,
        SocketAddr::V6(_) => setsockopt(&port, sockopt::Ipv6RecvPacketInfo, &true)?,
    }
    Ok(())
}

/// Receives a datagram: its length, and whose it is.
fn receive(port: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, Origin)> {
    let mut control = cmsg_space!(in6_pktinfo);
    let mut parts = [IoSliceMut::new(buffer)];
    let fd = port.as_fd().as_raw_fd();
    let flags = MsgFlags::MSG_DONTWAIT;
    let received = recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut control), flags)?;
    let mut local = None;
    for message in received.cmsgs()? {
        match message {
            ControlMessageOwned::Ipv4PacketInfo(told) => {
                local = Some(from_ipv4(told.ipi_spec_dst).into())
            }
            ControlMessageOwned::Ipv6PacketInfo(told) => {
                local = Some(IpAddr::from(told.ipi6_addr.s6_addr))
            }
            _ => {}
        }
    }
    let client = received
        .address
        .as_ref()
        .and_then(address)
        .ok_or(ErrorKind::InvalidData)?;
    // Nothing is sent from a group's address.
    let local = local.filter(|address| !address.is_multicast());
    Ok((received.bytes, Origin { client, local }))
}

/// Sends a datagram to where a flow comes from.
fn send(port: &UdpSocket, bytes: &[u8], origin: &Origin) -> io::Result<usize> {
    let parts = [IoSlice::new(bytes)];
    let (fd, flags) = (port.as_fd().as_raw_fd(), MsgFlags::MSG_DONTWAIT);
    let client = SockaddrStorage::from(origin.client);
    let sent = match origin.local {
        Some(IpAddr::V4(local)) => {
            let from = in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: in_addr {
                    s_addr: u32::from_ne_bytes(local.octets()),
                },
                ipi_addr: in_addr { s_addr: 0 },
            };
            sendmsg(
                fd,
                &parts,
                &[ControlMessage::Ipv4PacketInfo(&from)],
                flags,
                Some(&client),
            )
        }
        Some(IpAddr::V6(local)) => {
            let from = in6_pktinfo {
                ipi6_addr: in6_addr {
                    s6_addr: local.octets(),
                },
                ipi6_ifindex: 0,
            };
            sendmsg(
                fd,
                &parts,
                &[ControlMessage::Ipv6PacketInfo(&from)],
                flags,
                Some(&client),
            )
        }
        None => sendmsg(fd, &parts, &[], flags, Some(&client)),
    };
    Ok(sent?)
}

fn from_ipv4(address: in_addr) -> Ipv4Addr {
    Ipv4Addr::from(address.s_addr.to_ne_bytes())
}

/// A socket's address, if it is one of the Internet's.
fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let ipv4 = storage
        .as_sockaddr_in()
        .map(|one| SocketAddr::V4((*one).into()));
    ipv4.or_else(|| {
        storage
            .as_sockaddr_in6()
            .map(|one| SocketAddr::V6((*one).into()))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;

    #[test]
    fn idle_flows_make_room_and_those_without_an_answer_sooner() {
        let server = std::net::UdpSocket::bind((LOCAL, 0)).unwrap();
        let port = std::net::UdpSocket::bind((LOCAL, 0)).unwrap();
        let at = port.local_addr().unwrap();
        let node = SocketAddrV4::new(LOCAL, server.local_addr().unwrap().port());
        // A quarter of them are for flows: one.
        let limit = Limit::new(4, Duration::ZERO);
        let (sender, _closed) = mpsc::channel();
        let reports = Reports::new(Box::new(|_| ()));
        let (mut relay, _waker) = DatagramRelay::new(port, node, limit, sender, reports).unwrap();
        let mut buffer = [0; 16];
        let mut send_from_new = |relay: &mut DatagramRelay| {
            let client = std::net::UdpSocket::bind((LOCAL, 0)).unwrap();
            client.send_to(b"!", at).unwrap();
            relay.forward(PORT, &mut buffer);
            relay.flows.keys().copied().collect::<Vec<_>>()
        };
        let age = |relay: &mut DatagramRelay, answered, seconds| {
            let flow = relay.flows.values_mut().next().unwrap();
            flow.answered = answered;
            flow.last = Instant::now() - Duration::from_secs(seconds);
            relay.end_idle();
        };
        assert_eq!(send_from_new(&mut relay), [0]);
        age(&mut relay, false, 29);
        assert_eq!(
            send_from_new(&mut relay),
            [0],
            "there is no room for another"
        );
        age(&mut relay, false, 31);
        assert_eq!(send_from_new(&mut relay), [1]);
        age(&mut relay, true, 119);
        assert_eq!(send_from_new(&mut relay), [1]);
        age(&mut relay, true, 121);
        assert_eq!(send_from_new(&mut relay), [2]);
        assert_eq!(
            relay.numbers.len(),
            1,
            "nothing is left of those that ended"
        );
    }
}
