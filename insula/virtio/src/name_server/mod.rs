//! The name server of a network of nodes, at the base's address.
//!
//! It knows the names of nodes and containers, `web` or `web.insula`; for all others it asks the name servers
//! of the base. Each supervisor of a node on the network has one; they share the port, and the kernel gives a
//! query to any of them. So there is one as long as there is a node that asks, and none has to hand over to
//! another one.
//!
//! Nothing of what a node sends is interpreted but one question: a response has that and an address, or is
//! passed on as it came.

mod message;
mod upstream;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use insula_agent::network::PREFIX;
use insula_base::root::Root;
use insula_node::attachment::{Link, nameservers};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen, setsockopt, socket,
    sockopt::{ReuseAddr, ReusePort},
};

use message::{Code, Question};
use upstream::Transport;

/// The port of name servers.
const PORT: u16 = 53;
/// The domain of all nodes and containers.
const DOMAIN: &str = ".insula";
/// Queries that are passed on at the same time. Others are dropped, and come again.
const PASSED_ON_MAX: usize = 64;
/// Most bytes of a query in a packet.
const QUERY_MAX: usize = 4096;
/// Pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Time that a client of a stream has for a query.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The address of a node or container by its name.
pub type Names = Arc<dyn Fn(&str) -> Option<Ipv4Addr> + Send + Sync>;

/// What it serves: in tests not the base's.
struct Service {
    at: SocketAddrV4,
    /// Length of the prefix that all clients have in common with it.
    prefix: u8,
    names: Names,
    upstream: Box<dyn Fn() -> Vec<SocketAddr> + Send + Sync>,
}

/// A name server, until it is dropped.
pub(super) struct NameServer {
    ended: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl NameServer {
    /// Starts one at the base's address on a network, which must exist.
    pub(super) fn start(link: &Link, names: Names) -> io::Result<Self> {
        let own = link.network.base();
        let is_internal = link.internal;
        Self::serve(Service {
            at: SocketAddrV4::new(own, PORT),
            prefix: PREFIX,
            names,
            // Names could carry out what nothing else does.
            upstream: Box::new(move || match is_internal {
                true => Vec::new(),
                false => upstream_servers(own),
            }),
        })
    }

    fn serve(service: Service) -> io::Result<Self> {
        let sockets = Sockets::open(service.at)?;
        let ended = Arc::new(EventFd::new()?);
        let until = Arc::clone(&ended);
        let service = Arc::new(service);
        let thread = thread::Builder::new()
            .name("names".into())
            .spawn(move || sockets.run(&service, &until))?;
        Ok(Self {
            ended,
            thread: Some(thread),
        })
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        if self.ended.write(1).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // A thread that panicked has ended as well.
            let _ = thread.join();
        }
    }
}

/// The base's name servers, without this one.
fn upstream_servers(own: Ipv4Addr) -> Vec<SocketAddr> {
    let servers = nameservers(&Root::default()).into_iter();
    let others = servers.filter(|&server| server != IpAddr::V4(own));
    others.map(|server| SocketAddr::new(server, PORT)).collect()
}

struct Sockets {
    packets: UdpSocket,
    streams: TcpListener,
}

impl Sockets {
    fn open(at: SocketAddrV4) -> io::Result<Self> {
        let packets = open(at, SockType::Datagram)?;
        let streams = open(at, SockType::Stream)?;
        listen(&streams, Backlog::new(16)?)?;
        Ok(Self {
            packets: packets.into(),
            streams: streams.into(),
        })
    }

    /// Serves until `ended` is written.
    fn run(&self, service: &Arc<Service>, ended: &EventFd) {
        let passed_on = Arc::new(AtomicUsize::new(0));
        let ended = ended.as_fd();
        loop {
            let wanted = [self.packets.as_fd(), self.streams.as_fd(), ended];
            let mut polled = wanted.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            match poll(&mut polled, PollTimeout::NONE) {
                Err(nix::errno::Errno::EINTR) => continue,
                Err(_) => return,
                Ok(_) => {}
            }
            let [packet, stream, end] = polled.map(|one| one.any().unwrap_or(true));
            if end {
                return;
            }
            if packet {
                self.take_packet(service, &passed_on);
            }
            if stream {
                match self.streams.accept() {
                    Ok((stream, client)) => take_stream(service, &passed_on, stream, client),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    // Without descriptors, for example: it would be tried again at once.
                    Err(_) => thread::sleep(ACCEPT_PAUSE),
                }
            }
        }
    }

    fn take_packet(&self, service: &Arc<Service>, passed_on: &Arc<AtomicUsize>) {
        let mut query = [0; QUERY_MAX];
        let Ok((size, client)) = self.packets.recv_from(&mut query) else {
            return;
        };
        let query = &query[..size];
        if !service.has_client(client) {
            return;
        }
        // Who gets no response asks again.
        if let Some(response) = service.response(query) {
            let _ = self.packets.send_to(&response, client);
            return;
        }
        let (Ok(socket), query) = (self.packets.try_clone(), query.to_vec()) else {
            return;
        };
        pass_on(service, passed_on, move |service| {
            let response = service.ask(&query, Transport::Datagram);
            response.map(|response| socket.send_to(&response, client));
        });
    }
}

/// Answers one query of a stream.
fn take_stream(
    service: &Arc<Service>,
    passed_on: &Arc<AtomicUsize>,
    mut stream: TcpStream,
    client: SocketAddr,
) {
    if !service.has_client(client) {
        return;
    }
    pass_on(service, passed_on, move |service| {
        let mut answer = || {
            stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
            stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
            let query = upstream::read(&mut stream)?;
            let response = service.response(&query);
            let response = response.or_else(|| service.ask(&query, Transport::Stream));
            response.map_or(Ok(()), |response| upstream::write(&mut stream, &response))
        };
        // Who gets no response asks again.
        let _: io::Result<()> = answer();
    });
}

/// Does something that waits for others, in a thread of its own, unless there are too many.
fn pass_on(
    service: &Arc<Service>,
    passed_on: &Arc<AtomicUsize>,
    work: impl FnOnce(&Service) + Send + 'static,
) {
    if passed_on.fetch_add(1, Ordering::Relaxed) >= PASSED_ON_MAX {
        passed_on.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let (service, counted) = (Arc::clone(service), Arc::clone(passed_on));
    let spawned = thread::Builder::new().name("name".into()).spawn(move || {
        work(&service);
        counted.fetch_sub(1, Ordering::Relaxed);
    });
    if spawned.is_err() {
        passed_on.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Service {
    /// Whether a client is on the network.
    fn has_client(&self, client: SocketAddr) -> bool {
        let SocketAddr::V4(client) = client else {
            return false;
        };
        let network = |address: &Ipv4Addr| address.to_bits() >> (32 - self.prefix);
        network(client.ip()) == network(self.at.ip())
    }

    /// The response to a query for a name of its own; `None` if others are to be asked.
    fn response(&self, query: &[u8]) -> Option<Vec<u8>> {
        let question = Question::parse(query)?;
        let (name, is_own) = match question.name.strip_suffix(DOMAIN) {
            Some(name) => (name, true),
            None => (question.name.as_str(), false),
        };
        let address = (self.names)(name);
        match address {
            Some(_) => Some(question.response(Code::Success, address)),
            // Others would ask this server.
            None if is_own => Some(question.response(Code::NoName, None)),
            None => None,
        }
    }

    /// Asks others.
    fn ask(&self, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let response = upstream::ask(query, &(self.upstream)(), transport);
        response.or_else(|| message::failure(query))
    }
}

/// A socket at an address that others may share.
fn open(at: SocketAddrV4, kind: SockType) -> io::Result<OwnedFd> {
    // What was there to be read may be gone, or damaged.
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Inet, kind, flags, None)?;
    setsockopt(&socket, ReuseAddr, &true)?;
    setsockopt(&socket, ReusePort, &true)?;
    bind(socket.as_raw_fd(), &SockaddrIn::from(at))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use insula_agent::network::Network;
    use std::net::{TcpListener, UdpSocket};
    use std::time::Instant;

    use super::message::tests::query;
    use super::*;

    const WEB: Ipv4Addr = Ipv4Addr::new(10, 78, 1, 2);
    const TIMEOUT: Duration = Duration::from_secs(20);

    /// A server at a port that is free for packets and for streams, which asks these.
    fn server(upstream: &[SocketAddr]) -> (NameServer, SocketAddrV4) {
        loop {
            let free = UdpSocket::bind("127.0.0.1:0").unwrap();
            let port = free.local_addr().unwrap().port();
            drop(free);
            let upstream = upstream.to_vec();
            let service = Service {
                at: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port),
                prefix: 8,
                names: Arc::new(|name| (name == "web").then_some(WEB)),
                upstream: Box::new(move || upstream.clone()),
            };
            let at = service.at;
            match NameServer::serve(service) {
                Ok(server) => return (server, at),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn ask(at: SocketAddrV4, query: &[u8]) -> Vec<u8> {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.send_to(query, at).unwrap();
        let mut response = [0; 512];
        let size = socket.recv(&mut response).unwrap();
        response[..size].to_vec()
    }

    #[test]
    fn nodes_are_known() {
        let (server, at) = server(&[]);
        for name in ["web", "WEB.insula"] {
            assert!(ask(at, &query(name, 1)).ends_with(&WEB.octets()), "{name}");
        }
        // No address of the kind, no such node, and nobody to ask.
        for (name, kind, code) in [("web", 28, 0), ("db.insula", 1, 3), ("db", 1, 2)] {
            let response = ask(at, &query(name, kind));
            assert_eq!((response[3] & 15, response[7]), (code, 0), "{name}");
        }
        drop(server);
        // The port is free, unless another test has got it meanwhile: soon then.
        let began = Instant::now();
        while let Err(error) = UdpSocket::bind(at) {
            assert!(began.elapsed() < TIMEOUT, "{error}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn others_are_asked() {
        // The first one answers nothing that counts.
        let [silent, other] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let servers = [&silent, &other].map(|socket| socket.local_addr().unwrap());
        let (_server, at) = server(&servers);
        let answering = thread::spawn(move || {
            let mut query = [0; 512];
            let (_, client) = silent.recv_from(&mut query).unwrap();
            silent.send_to(b"no response at all", client).unwrap();
            let (size, client) = other.recv_from(&mut query).unwrap();
            query[2] |= 0x80;
            other
                .send_to(&[&query[..size], b"answer"].concat(), client)
                .unwrap();
        });
        assert!(ask(at, &query("example.org", 1)).ends_with(b"answer"));
        answering.join().unwrap();
    }

    #[test]
    fn large_responses_come_by_a_stream() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let (_server, at) = server(&[other.local_addr().unwrap()]);
        let answering = thread::spawn(move || {
            let (mut stream, _) = other.accept().unwrap();
            let mut response = upstream::read(&mut stream).unwrap();
            response[2] |= 0x80;
            response.resize(60_000, 7);
            upstream::write(&mut stream, &response).unwrap();
        });
        for (name, size) in [("web", 37), ("example.org", 60_000)] {
            let mut stream = TcpStream::connect(at).unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            upstream::write(&mut stream, &query(name, 1)).unwrap();
            assert_eq!(upstream::read(&mut stream).unwrap().len(), size, "{name}");
        }
        answering.join().unwrap();
    }

    #[test]
    fn only_the_network_is_served() {
        let service = Service {
            at: SocketAddrV4::new(Network::new(10, 78).base(), PORT),
            prefix: PREFIX,
            names: Arc::new(|_| None),
            upstream: Box::new(Vec::new),
        };
        for (client, has) in [
            ("10.78.255.1:9", true),
            ("10.79.0.1:9", false),
            ("127.0.0.1:9", false),
            ("[::1]:9", false),
        ] {
            assert_eq!(service.has_client(client.parse().unwrap()), has, "{client}");
        }
    }
}
