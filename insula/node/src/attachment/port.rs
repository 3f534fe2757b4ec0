//! Ports of the base that are published: they lead to ports of a node.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::str::FromStr;

use insula_base::serde_as_text;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

/// Connections that wait to be accepted: the kernel takes no more than `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// What a port is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// Its name, as podman has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// A port of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePort {
    /// Its number.
    pub number: u16,
    /// What it is of.
    pub protocol: Protocol,
}

impl FromStr for NodePort {
    type Err = PublishError;

    fn from_str(text: &str) -> Result<Self, PublishError> {
        let (text, protocol) = split_protocol(text)?;
        Ok(Self {
            number: port(text)?,
            protocol,
        })
    }
}

impl fmt::Display for NodePort {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.number, self.protocol.name())
    }
}

/// A port of the base that is forwarded to a port of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish {
    /// Address of the base on which it is open.
    pub at: IpAddr,
    /// Port of the base.
    pub base: u16,
    /// Port of the node.
    pub node: u16,
    /// Protocol of both.
    pub protocol: Protocol,
}

/// The text is not a pair of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected [ADDRESS:]PORT[:NODE-PORT][/udp], for example 8080:80, 53:53/udp or [::1]:8080:80"
)]
pub struct PublishError;

impl FromStr for Publish {
    type Err = PublishError;

    fn from_str(text: &str) -> Result<Self, PublishError> {
        let (text, protocol) = split_protocol(text)?;
        let (at, ports) = split_address(text)?;
        let (base, node) = match ports.split_once(':') {
            Some((base, node)) => (port(base)?, port(node)?),
            // An address needs both.
            None if at.is_none() => (port(ports)?, port(ports)?),
            None => return Err(PublishError),
        };
        Ok(Self {
            at: at.unwrap_or(Ipv4Addr::UNSPECIFIED.into()),
            base,
            node,
            protocol,
        })
    }
}

/// Splits the protocol off the end.
fn split_protocol(text: &str) -> Result<(&str, Protocol), PublishError> {
    match text.split_once('/') {
        None => Ok((text, Protocol::Tcp)),
        Some((rest, "tcp")) => Ok((rest, Protocol::Tcp)),
        Some((rest, "udp")) => Ok((rest, Protocol::Udp)),
        Some(_) => Err(PublishError),
    }
}

/// Splits the address off the ports; an IPv6 address is in brackets.
fn split_address(text: &str) -> Result<(Option<IpAddr>, &str), PublishError> {
    if let Some(rest) = text.strip_prefix('[') {
        let (address, ports) = rest.split_once("]:").ok_or(PublishError)?;
        let address = address.parse().map_err(|_| PublishError)?;
        return Ok((Some(IpAddr::V6(address)), ports));
    }
    match text.splitn(3, ':').collect::<Vec<_>>()[..] {
        [address, _, _] => {
            let parsed = address.parse().map_err(|_| PublishError)?;
            Ok((Some(IpAddr::V4(parsed)), &text[address.len() + 1..]))
        }
        _ => Ok((None, text)),
    }
}

fn port(text: &str) -> Result<u16, PublishError> {
    match text.parse() {
        Ok(0) | Err(_) => Err(PublishError),
        Ok(port) => Ok(port),
    }
}

impl fmt::Display for Publish {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.address(), self.node)?;
        match self.protocol {
            Protocol::Tcp => Ok(()),
            Protocol::Udp => formatter.write_str("/udp"),
        }
    }
}

serde_as_text!(
    Publish,
    "^((([0-9]{1,3}(\\.[0-9]{1,3}){3}|\\[[0-9a-fA-F:.]+\\]):)?[0-9]+:)?[0-9]+(/(tcp|udp))?$"
);

impl Publish {
    /// Where it is open.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.at, self.base)
    }

    /// The node's port.
    #[must_use]
    pub fn node_port(&self) -> NodePort {
        NodePort {
            number: self.node,
            protocol: self.protocol,
        }
    }

    /// Checks that the port can be opened.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn check(&self) -> io::Result<()> {
        match self.protocol {
            Protocol::Tcp => self.listen().map(drop),
            Protocol::Udp => self.bind().map(drop),
        }
    }

    /// Whether both would be open on the same address and port.
    pub fn conflicts(&self, other: &Self) -> bool {
        let same_family = self.at.is_ipv4() == other.at.is_ipv4();
        let any = self.at.is_unspecified() || other.at.is_unspecified();
        (self.protocol, self.base) == (other.protocol, other.base)
            && (self.at == other.at || (same_family && any))
    }

    /// Listens on the TCP port.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn listen(&self) -> io::Result<TcpListener> {
        let socket = self.socket(SocketType::STREAM)?;
        // Connections of an earlier listener may be ending.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &self.address())?;
        listen(&socket, BACKLOG)?;
        Ok(socket.into())
    }

    /// Opens the UDP port.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn bind(&self) -> io::Result<UdpSocket> {
        let socket = self.socket(SocketType::DGRAM)?;
        bind(&socket, &self.address())?;
        Ok(socket.into())
    }

    /// A socket of the address's family only, whatever `net.ipv6.bindv6only` says.
    fn socket(&self, kind: SocketType) -> io::Result<OwnedFd> {
        let family = match self.at {
            IpAddr::V4(_) => AddressFamily::INET,
            IpAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        if self.at.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        Ok(socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(text: &str) -> Publish {
        text.parse().unwrap()
    }

    #[test]
    fn ports_read_back() {
        for (text, whole) in [
            ("80", "0.0.0.0:80:80"),
            ("80/tcp", "0.0.0.0:80:80"),
            ("53/udp", "0.0.0.0:53:53/udp"),
            ("8080:80", "0.0.0.0:8080:80"),
            ("127.0.0.1:8080:80", "127.0.0.1:8080:80"),
            ("[::1]:8080:80", "[::1]:8080:80"),
            ("[::]:53:53/udp", "[::]:53:53/udp"),
        ] {
            let publish = publish(text);
            assert_eq!(publish.to_string(), whole);
            assert_eq!(whole.parse(), Ok(publish));
        }
        for text in [
            "",
            "0",
            "80:",
            ":80",
            "a:80",
            "65536",
            "x:1:2",
            "1:2:3:4",
            "80/",
            "80/sctp",
            "::1:80:80",
            "[::1]:80",
            "[127.0.0.1]:1:2",
            "[::1:80:80",
            "127.0.0.1:80",
            "80/udp/udp",
        ] {
            assert_eq!(text.parse::<Publish>(), Err(PublishError), "{text}");
        }
    }

    #[test]
    fn a_ports_protocol_is_tcp_unless_it_is_told() {
        for (text, whole) in [("53", "53/tcp"), ("53/udp", "53/udp")] {
            assert_eq!(text.parse::<NodePort>().unwrap().to_string(), whole);
        }
        assert_eq!("53/".parse::<NodePort>(), Err(PublishError));
        assert_eq!("0/udp".parse::<NodePort>(), Err(PublishError));
    }

    #[test]
    fn only_the_same_port_of_the_same_protocol_conflicts() {
        let conflicts = |one: &str, other: &str| publish(one).conflicts(&publish(other));
        assert!(conflicts("53", "127.0.0.1:53:1"));
        assert!(conflicts("[::]:53:1", "[::1]:53:2"));
        assert!(!conflicts("53", "53/udp"));
        assert!(!conflicts("53", "[::]:53:53"));
        assert!(!conflicts("127.0.0.1:53:53", "127.0.0.2:53:53"));
    }

    #[test]
    fn the_same_port_is_open_for_each_protocol_and_family() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let texts = [
            "127.0.0.1:P:1",
            "127.0.0.1:P:1/udp",
            "[::1]:P:1",
            "[::1]:P:1/udp",
        ];
        let ports = texts.map(|text| publish(&text.replace('P', &port.to_string())));
        let has_ipv6 = std::fs::exists("/proc/net/if_inet6").unwrap();
        let ports: Vec<_> = ports
            .into_iter()
            .filter(|one| has_ipv6 || one.at.is_ipv4())
            .collect();
        let open = |one: &Publish| match one.protocol {
            Protocol::Tcp => OwnedFd::from(one.listen().unwrap()),
            Protocol::Udp => OwnedFd::from(one.bind().unwrap()),
        };
        let _open: Vec<_> = ports.iter().map(open).collect();
        for one in ports {
            let error = one.check().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{one}");
        }
    }
}
