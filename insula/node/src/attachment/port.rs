//! Ports of the base that are published: they lead to ports of a node.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::str::FromStr;

use insula_base::serde_as_text;

/// A TCP port of the base that is forwarded to a port of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish {
    /// Address of the base on which it listens.
    pub at: Ipv4Addr,
    /// Port of the base.
    pub base: u16,
    /// Port of the node.
    pub node: u16,
}

/// The text is not a pair of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected [ADDRESS:]PORT[:NODE-PORT], for example 8080:80")]
pub struct PublishError;

impl FromStr for Publish {
    type Err = PublishError;

    fn from_str(text: &str) -> Result<Self, PublishError> {
        let port = |text: &str| match text.parse() {
            Ok(0) | Err(_) => Err(PublishError),
            Ok(port) => Ok(port),
        };
        let at = |text: &str| text.parse().map_err(|_| PublishError);
        let parts: Vec<_> = text.split(':').collect();
        let (at, base, node) = match parts[..] {
            [both] => (Ipv4Addr::UNSPECIFIED, both, both),
            [base, node] => (Ipv4Addr::UNSPECIFIED, base, node),
            [address, base, node] => (at(address)?, base, node),
            _ => return Err(PublishError),
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

serde_as_text!(
    Publish,
    "^(([0-9]{1,3}(\\.[0-9]{1,3}){3}:)?[0-9]+:)?[0-9]+$"
);

impl Publish {
    /// Checks that the port can be opened.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn check(&self) -> io::Result<()> {
        self.listen().map(drop)
    }

    /// Whether both would listen on the same address and port.
    pub fn conflicts(&self, other: &Self) -> bool {
        let is_any = |publish: &Self| publish.at == Ipv4Addr::UNSPECIFIED;
        self.base == other.base && (self.at == other.at || is_any(self) || is_any(other))
    }

    /// Listens on the port.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn listen(&self) -> io::Result<TcpListener> {
        TcpListener::bind((self.at, self.base))
    }
}

#[cfg(test)]
mod tests {
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
            assert_eq!(text.parse::<Publish>(), Err(PublishError), "{text}");
        }
    }
}
