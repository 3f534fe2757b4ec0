//! Ports of the base that lead to ports of a node.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::str::FromStr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// While the base has no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// A port of the base, and the node's that it leads to (TCP).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publish {
    /// The address of the base at which it is open.
    pub at: Ipv4Addr,
    /// The base's.
    pub base: u16,
    /// The node's.
    pub node: u16,
}

/// The text is no such pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has the form [ADDRESS:]PORT[:NODE-PORT], as 8080:80")]
pub struct NoPublish;

impl FromStr for Publish {
    type Err = NoPublish;

    fn from_str(text: &str) -> Result<Self, NoPublish> {
        let port = |text: &str| match text.parse() {
            Ok(0) | Err(_) => Err(NoPublish),
            Ok(port) => Ok(port),
        };
        let at = |text: &str| text.parse().map_err(|_| NoPublish);
        let parts: Vec<_> = text.split(':').collect();
        let (at, base, node) = match parts[..] {
            [both] => (Ipv4Addr::UNSPECIFIED, both, both),
            [base, node] => (Ipv4Addr::UNSPECIFIED, base, node),
            [address, base, node] => (at(address)?, base, node),
            _ => return Err(NoPublish),
        };
        Ok(Self {
            at,
            base: port(base)?,
            node: port(node)?,
        })
    }
}

impl fmt::Display for Publish {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}:{}", self.at, self.base, self.node)
    }
}

impl Publish {
    /// Opens the port and closes it again.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn check(&self) -> io::Result<()> {
        self.listen().map(drop)
    }

    /// Whether both would listen at the same place.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        let is_any = |publish: &Self| publish.at == Ipv4Addr::UNSPECIFIED;
        self.base == other.base && (self.at == other.at || is_any(self) || is_any(other))
    }

    fn listen(&self) -> io::Result<TcpListener> {
        TcpListener::bind((self.at, self.base))
    }
}

/// A port that is open. It is closed with this value; connections go on.
#[derive(Debug)]
pub(super) struct Published {
    listener: Arc<TcpListener>,
    accepting: Option<JoinHandle<()>>,
}

impl Published {
    /// Opens it, and passes connections on to the node's address.
    pub(super) fn open(publish: &Publish, node: Ipv4Addr) -> io::Result<Self> {
        let listener = Arc::new(publish.listen()?);
        let node = SocketAddrV4::new(node, publish.node);
        let accepting = Arc::clone(&listener);
        let accepting = thread::Builder::new()
            .name("publish".into())
            .spawn(move || accept(&accepting, node))?;
        Ok(Self {
            listener,
            accepting: Some(accepting),
        })
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        // Whoever waits for connections there is woken, and told that there will be none.
        let how = nix::sys::socket::Shutdown::Both;
        let _ = nix::sys::socket::shutdown(self.listener.as_raw_fd(), how);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn accept(listener: &TcpListener, node: SocketAddrV4) {
    loop {
        match listener.accept() {
            Ok((client, _)) => {
                // Without a thread the connection is closed.
                let _ = thread::Builder::new().spawn(move || pass_on(client, node));
            }
            // It was shut down.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// Until both have said all.
fn pass_on(client: TcpStream, node: SocketAddrV4) -> io::Result<()> {
    let node = TcpStream::connect_timeout(&node.into(), PATIENCE)?;
    client.set_nodelay(true)?;
    node.set_nodelay(true)?;
    let (from_client, to_client) = (client.try_clone()?, client);
    let (from_node, to_node) = (node.try_clone()?, node);
    let back = thread::Builder::new().spawn(move || one_way(from_node, to_client))?;
    one_way(from_client, to_node);
    let _ = back.join();
    Ok(())
}

fn one_way(mut from: TcpStream, mut to: TcpStream) {
    // An error is an end, too.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn pairs_read_back() {
        for (text, whole) in [
            ("80", "0.0.0.0:80:80"),
            ("8080:80", "0.0.0.0:8080:80"),
            ("127.0.0.1:8080:80", "127.0.0.1:8080:80"),
        ] {
            let publish: Publish = text.parse().unwrap();
            assert_eq!(publish.to_string(), whole);
            assert_eq!(whole.parse(), Ok(publish));
        }
        for text in ["", "0", "80:", ":80", "a:80", "65536", "x:1:2", "1:2:3:4"] {
            assert_eq!(text.parse::<Publish>(), Err(NoPublish), "{text}");
        }
    }

    #[test]
    fn connections_are_passed_on_until_the_port_is_closed() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let free = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let publish = Publish {
            at: Ipv4Addr::LOCALHOST,
            base: free,
            node: server.local_addr().unwrap().port(),
        };
        let published = Published::open(&publish, Ipv4Addr::LOCALHOST).unwrap();
        assert!(publish.check().is_err(), "it is taken");
        let mut client = TcpStream::connect((publish.at, publish.base)).unwrap();
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
        assert_eq!(heard, "and back", "what is open is not cut");
        publish.check().unwrap();
    }
}
