//! Ports of the base that lead to ports of a node.
//!
//! The node's supervisor, or a process of a container's, accepts and forwards connections: one thread per port, two descriptors per
//! connection, limited by its descriptors. A client beyond the limit gets a reset.

mod flow;
mod relay;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use insula_node::attachment::Publish;
use mio::Waker;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

pub(super) use relay::Limit;
use relay::Relay;

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

/// An open port. Dropping it closes the port; connections go on.
#[derive(Debug)]
pub(super) struct Published {
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
        let listener = publish.listen()?;
        listener.set_nonblocking(true)?;
        let listener = mio::net::TcpListener::from_std(listener);
        let node = SocketAddrV4::new(node, publish.node);
        let (sender, closed) = mpsc::channel();
        let limit = Arc::clone(limit);
        let (relay, waker) = Relay::new(listener, node, limit, sender, Box::new(report))?;
        thread::Builder::new()
            .name("publish".into())
            .spawn(move || relay.run())?;
        Ok(Self { waker, closed })
    }
}

/// Open ports that lead to a container. Dropping it closes them.
#[derive(Debug)]
pub struct PublishedPorts(#[expect(dead_code, reason = "held, not used")] Vec<Published>);

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
        Ok(Self(opened.collect::<io::Result<_>>()?))
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
    use std::net::{Shutdown, TcpListener, TcpStream};

    use super::*;

    /// A server, and a port that is forwarded to it.
    fn published(connections: usize) -> (TcpListener, Publish, Published) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let publish = Publish {
            at: Ipv4Addr::LOCALHOST,
            base: port(&TcpListener::bind("127.0.0.1:0").unwrap()),
            node: port(&server),
        };
        let limit = Limit::new(connections, NODE_TIMEOUT);
        let published = Published::open(&publish, Ipv4Addr::LOCALHOST, &limit, |_| ()).unwrap();
        (server, publish, published)
    }

    fn connect(publish: &Publish) -> TcpStream {
        TcpStream::connect((publish.at, publish.base)).unwrap()
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
            let mut late = connect(&publish);
            let refused = late.read(&mut [0]).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionReset);
        }
        // Existing connections go on, and one that ends makes room.
        clients[0].write_all(b"!").unwrap();
        peers[0].read_exact(&mut [0]).unwrap();
        drop((clients.remove(0), peers.remove(0)));
        let served = || {
            let mut client = connect(&publish);
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
}
