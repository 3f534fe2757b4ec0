//! Ports of the base that lead to ports of a node.
//!
//! Most connections of other hosts the base's kernel forwards ([`port_forward`](super::port_forward)). For all others
//! the node's supervisor, or a process of a container's, accepts and forwards connections, and datagrams: one thread
//! per port, two descriptors per connection, limited by its descriptors. A client beyond the limit gets a reset, or no
//! answer.

mod datagrams;
mod flow;
mod limit;
mod relay;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use insula_node::attachment::{Protocol, Publish};
use mio::{Token, Waker};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::port_forward;
use datagrams::DatagramRelay;
pub(super) use limit::Limit;
use limit::Reports;
use relay::Relay;

/// Wake-up of a port's thread, to close the port.
const CLOSE: Token = Token(usize::MAX - 1);
/// Maximum connections of a node, regardless of descriptors: each may buffer some 128 KiB.
const CONNECTIONS_MAX: usize = 4096;
/// Descriptors reserved for everything else: devices and their backends.
const DESCRIPTORS_KEPT: u64 = 256;

/// Time a node gets to accept a connection.
pub(super) const NODE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time a container gets: while it is moved, it accepts none. TCP itself gives up before that.
const CONTAINER_TIMEOUT: Duration = Duration::from_secs(300);

/// As many connections as this process has descriptors for.
pub(super) fn limit(connect_timeout: Duration) -> Arc<Limit> {
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    let connections = descriptors.saturating_sub(DESCRIPTORS_KEPT) / 2;
    let connections = usize::try_from(connections).unwrap_or(CONNECTIONS_MAX);
    Limit::new(connections.clamp(1, CONNECTIONS_MAX), connect_timeout)
}

/// An open port. Dropping it closes the port; connections go on, flows of datagrams end.
#[derive(Debug)]
pub(super) struct Published {
    port: Publish,
    waker: Waker,
    closed: Receiver<()>,
}

impl Published {
    /// Opens the port and forwards up to `limit` connections to the node's address. Refused clients
    /// are reported to `report`.
    pub(super) fn open(
        publish: &Publish,
        node: Ipv4Addr,
        limit: &Arc<Limit>,
        report: impl Fn(&str) + Send + 'static,
    ) -> io::Result<Self> {
        let node = SocketAddrV4::new(node, publish.node);
        let (sender, closed) = mpsc::channel();
        let limit = Arc::clone(limit);
        let reports = Reports::new(Box::new(report));
        let waker = match publish.protocol {
            Protocol::Tcp => {
                let listener = publish.listen()?;
                let (relay, waker) = Relay::new(listener, node, limit, sender, reports)?;
                run(move || relay.run())?;
                waker
            }
            Protocol::Udp => {
                let port = publish.bind()?;
                let (relay, waker) = DatagramRelay::new(port, node, limit, sender, reports)?;
                run(move || relay.run())?;
                waker
            }
        };
        Ok(Self {
            port: *publish,
            waker,
            closed,
        })
    }

    /// Which it is.
    pub(super) fn port(&self) -> Publish {
        self.port
    }
}

/// Runs a port in a thread of its own.
fn run(relay: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new().name("publish".into());
    thread.spawn(relay).map(drop)
}

/// Open ports that lead to a container. Dropping it closes them.
#[derive(Debug)]
pub struct PublishedPorts {
    #[expect(dead_code, reason = "held, not used")]
    relayed: Vec<Published>,
    address: Ipv4Addr,
}

impl PublishedPorts {
    /// Opens ports, and forwards connections to this address. Raises the limit of descriptors of this process
    /// for them.
    ///
    /// # Errors
    /// When one cannot be opened; none is.
    pub fn open(ports: &[Publish], address: Ipv4Addr) -> io::Result<Self> {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        let limit = limit(CONTAINER_TIMEOUT);
        let opened = ports
            .iter()
            .map(|port| Published::open(port, address, &limit, |_| ()));
        let relayed = opened.collect::<io::Result<_>>()?;
        // If not, all of it is relayed.
        let _ = port_forward::set(address, ports);
        Ok(Self { relayed, address })
    }

    /// Closes those of a container whose process was killed, as far as the base's kernel has them.
    ///
    /// # Errors
    /// When a command fails.
    pub fn forget(address: Ipv4Addr) -> io::Result<()> {
        port_forward::set(address, &[]).map(drop)
    }
}

impl Drop for PublishedPorts {
    fn drop(&mut self) {
        // Who removes the container does so again.
        let _ = Self::forget(self.address);
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        // If the wake-up fails, the thread notices at its next timeout.
        if self.waker.wake().is_ok() {
            // Nothing is ever sent: this returns when the port is closed.
            let _ = self.closed.recv();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{IpAddr, Shutdown, TcpListener, TcpStream, UdpSocket};
    use std::sync::atomic::{AtomicU16, Ordering};

    use super::*;

    /// A port that no other test gets, also after it is closed: the kernel itself gives those from 32768 on.
    fn own_port(is_free: impl Fn(u16) -> bool) -> u16 {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let first = 10_000 + (std::process::id() % 200) as u16 * 100;
        let ports = std::iter::repeat_with(|| first + NEXT.fetch_add(1, Ordering::Relaxed) % 100);
        ports.take(100).find(|port| is_free(*port)).unwrap()
    }

    /// A server, and a port that is forwarded to it.
    fn published(connections: usize) -> (TcpListener, Publish, Published) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let publish = Publish {
            at: Ipv4Addr::LOCALHOST.into(),
            base: own_port(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()),
            node: port(&server),
            protocol: Protocol::Tcp,
        };
        let limit = Limit::new(connections, NODE_TIMEOUT);
        let published = Published::open(&publish, Ipv4Addr::LOCALHOST, &limit, |_| ()).unwrap();
        (server, publish, published)
    }

    fn connect(publish: &Publish) -> TcpStream {
        try_connect(publish).unwrap()
    }

    /// A connection that may be reset before it is known to this side.
    fn try_connect(publish: &Publish) -> io::Result<TcpStream> {
        TcpStream::connect((publish.at, publish.base))
    }

    #[test]
    fn connections_are_forwarded_until_the_port_is_closed() {
        let (server, publish, published) = published(1);
        assert!(publish.check().is_err(), "the port is in use");
        let mut client = connect(&publish);
        let (mut peer, _) = server.accept().unwrap();
        client.write_all(b"there").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut heard = String::new();
        peer.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "there");
        drop(published);
        peer.write_all(b"and back").unwrap();
        drop(peer);
        heard.clear();
        client.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "and back", "open connections go on");
        publish.check().unwrap();
    }

    #[test]
    fn clients_beyond_the_limit_are_refused_at_once() {
        let (server, publish, _published) = published(3);
        let mut clients: Vec<_> = (0..3).map(|_| connect(&publish)).collect();
        let mut peers: Vec<_> = clients.iter().map(|_| server.accept().unwrap().0).collect();
        for _ in 0..100 {
            let read = try_connect(&publish).and_then(|mut late| late.read(&mut [0]));
            let refused = read.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionReset);
        }
        // Existing connections go on, and one that ends makes room.
        clients[0].write_all(b"!").unwrap();
        peers[0].read_exact(&mut [0]).unwrap();
        drop((clients.remove(0), peers.remove(0)));
        let served = || {
            let mut client = try_connect(&publish).ok()?;
            client.write_all(b"?").ok()?;
            client
                .set_read_timeout(Some(std::time::Duration::from_millis(50)))
                .unwrap();
            let error = client.read(&mut [0]).unwrap_err();
            (error.kind() == io::ErrorKind::WouldBlock).then_some(())
        };
        assert!((0..100).find_map(|_| served()).is_some());
    }

    #[test]
    fn much_is_forwarded_both_ways_at_once() {
        const BYTES: usize = 8 << 20;
        let (server, publish, _published) = published(1);
        let client = connect(&publish);
        let (peer, _) = server.accept().unwrap();
        let bytes: Vec<u8> = (0..BYTES).map(|number| (number >> 3) as u8).collect();
        let send = |mut to: &TcpStream| {
            to.write_all(&bytes).unwrap();
            to.shutdown(Shutdown::Write).unwrap();
        };
        let receive = |mut from: &TcpStream| {
            let mut received = Vec::new();
            from.read_to_end(&mut received).unwrap();
            assert!(received == bytes, "{} bytes", received.len());
        };
        thread::scope(|scope| {
            for stream in [&client, &peer] {
                scope.spawn(move || send(stream));
                scope.spawn(move || receive(stream));
            }
        });
    }

    #[test]
    fn a_missing_server_resets_the_client() {
        let (server, publish, _published) = published(1);
        drop(server);
        let error = connect(&publish).read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    /// A server, and a UDP port of an address that is forwarded to it, by so many flows.
    fn published_udp(at: IpAddr, flows: usize) -> (UdpSocket, Publish, Published) {
        let server = bound(Ipv4Addr::LOCALHOST.into());
        let publish = Publish {
            at,
            base: own_port(|port| UdpSocket::bind((at, port)).is_ok()),
            node: server.local_addr().unwrap().port(),
            protocol: Protocol::Udp,
        };
        let limit = Limit::new(4 * flows, NODE_TIMEOUT);
        assert_eq!(limit.flows_max(), flows);
        let published = Published::open(&publish, Ipv4Addr::LOCALHOST, &limit, |_| ()).unwrap();
        (server, publish, published)
    }

    fn bound(at: IpAddr) -> UdpSocket {
        let socket = UdpSocket::bind((at, 0)).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        socket
    }

    /// A client that takes datagrams only from where it sends them to.
    fn client(at: impl Into<IpAddr>, publish: &Publish) -> UdpSocket {
        let at = at.into();
        let client = bound(at);
        client.connect((at, publish.base)).unwrap();
        client
    }

    fn receive(socket: &UdpSocket) -> Vec<u8> {
        let mut buffer = vec![0; 65_536];
        let length = socket.recv(&mut buffer).unwrap();
        buffer.truncate(length);
        buffer
    }

    #[test]
    fn each_clients_datagrams_are_answered_from_where_they_were_sent_to() {
        let (server, publish, published) = published_udp(Ipv4Addr::UNSPECIFIED.into(), 2);
        assert!(publish.check().is_err(), "the port is in use");
        // All of 127/8 are addresses of the base: an answer from another one is not taken.
        let clients = [[127, 0, 0, 1], [127, 0, 0, 9]].map(|at| client(at, &publish));
        let mut froms = Vec::new();
        for (client, text) in clients.iter().zip(["one", "two"]) {
            client.send(text.as_bytes()).unwrap();
            let mut buffer = [0; 16];
            let (length, from) = server.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], text.as_bytes());
            froms.push(from);
        }
        for (from, text) in froms.iter().zip(["1", "2"]) {
            server.send_to(text.as_bytes(), from).unwrap();
        }
        assert_eq!(clients.each_ref().map(receive), [b"1", b"2"]);
        // The longest that there can be, and an empty one.
        for length in [65_507, 0] {
            let sent = vec![7; length];
            clients[0].send(&sent).unwrap();
            let mut buffer = vec![0; 65_536];
            let (length, from) = server.recv_from(&mut buffer).unwrap();
            assert!(
                buffer[..length] == sent && from == froms[0],
                "{length} bytes"
            );
            server.send_to(&buffer[..length], from).unwrap();
            assert!(receive(&clients[0]) == sent);
        }
        drop(published);
        publish.check().unwrap();
    }

    #[test]
    fn datagrams_come_by_ipv6() {
        let at = std::net::Ipv6Addr::LOCALHOST;
        if UdpSocket::bind((at, 0)).is_err() {
            return;
        }
        let (server, publish, _published) = published_udp(at.into(), 1);
        let client = client(at, &publish);
        client.send(b"there").unwrap();
        let (_, from) = server.recv_from(&mut [0; 16]).unwrap();
        server.send_to(b"and back", from).unwrap();
        assert_eq!(receive(&client), b"and back");
    }

    #[test]
    fn flows_beyond_the_limit_are_lost_and_others_go_on() {
        let (server, publish, _published) = published_udp(Ipv4Addr::LOCALHOST.into(), 1);
        let [first, late] = [1, 1].map(|last| client([127, 0, 0, last], &publish));
        let echoes = |client: &UdpSocket, text: &[u8]| {
            client.send(text).unwrap();
            let mut buffer = [0; 16];
            let (length, from) = server.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], text);
            server.send_to(text, from).unwrap();
            assert_eq!(receive(client), text);
        };
        echoes(&first, b"one");
        // The relay takes datagrams in order: this one was lost when the next comes.
        late.send(b"late").unwrap();
        echoes(&first, b"two");
        // A server that is not there for a while costs the datagrams of that while only.
        let address = server.local_addr().unwrap();
        drop(server);
        first.send(b"lost").unwrap();
        thread::sleep(Duration::from_millis(100));
        let server = UdpSocket::bind(address).unwrap();
        first.send(b"again").unwrap();
        let mut buffer = [0; 16];
        let (length, _) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"again");
    }
}
