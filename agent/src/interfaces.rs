//! Configuring the node's network interfaces.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use insula_agent::network::{BASE_ADDRESS, PREFIX, address};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::io::Errno;

use crate::log::log;

/// Where the kernel lists interfaces.
const INTERFACES: &str = "/sys/class/net";
/// Time the base gets to provide the card.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Netlink group of link events (`RTMGRP_LINK`).
const LINKS: u32 = 1;
/// Maximum bytes of an acknowledgement.
const ANSWER_MAX: usize = 4096;

/// Brings up the loopback interface and the card that carries the node's address, with a default
/// route; waits for the card if `is_card`. Cards that appear later are configured as well, as after
/// a loss of the base's side. Other interfaces are left alone.
pub(crate) fn configure(is_card: bool) {
    let mut interfaces = match Interfaces::listen() {
        Ok(interfaces) => interfaces,
        Err(error) => return log(&format!("interfaces cannot be configured: {error}")),
    };
    let found = interfaces.configure_new();
    let (sender, card) = channel();
    thread::spawn(move || {
        let ended = interfaces.watch(&sender);
        ended.map_err(|error| log(&format!("new interfaces are not configured: {error}")))
    });
    if is_card && !found && card.recv_timeout(TIMEOUT).is_err() {
        log("there is no network card: see the base's log");
    }
}

/// Configured interfaces, and events of others.
struct Interfaces {
    events: Socket,
    /// Indices of configured interfaces; the kernel does not reuse them.
    done: BTreeSet<u32>,
}

impl Interfaces {
    fn listen() -> io::Result<Self> {
        let mut events = Socket::new(NETLINK_ROUTE)?;
        events.bind(&SocketAddr::new(0, LINKS))?;
        Ok(Self {
            events,
            done: BTreeSet::new(),
        })
    }

    /// Configures new interfaces, and reports each card.
    fn watch(&mut self, sender: &Sender<()>) -> io::Result<()> {
        loop {
            let mut message = Vec::with_capacity(ANSWER_MAX);
            match self.events.recv(&mut message, 0) {
                // An overflow means that there were events as well.
                Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => {}
                received => drop(received?),
            }
            if self.configure_new() {
                // The receiver may be gone.
                let _ = sender.send(());
            }
        }
    }

    /// Configures new interfaces; whether the card is among them.
    fn configure_new(&mut self) -> bool {
        let mut found = false;
        for name in names() {
            match self.configure_one(&name) {
                Ok(address) => found |= address.is_some(),
                // It was removed, or is being removed.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::InvalidInput
                    ) => {}
                Err(error) => log(&format!("{name} cannot be configured: {error}")),
            }
        }
        found
    }

    /// Configures an interface; its IP address if it is the card.
    fn configure_one(&mut self, name: &str) -> io::Result<Option<Ipv4Addr>> {
        let text = |file: &str| fs::read_to_string(format!("{INTERFACES}/{name}/{file}"));
        let index = text("ifindex")?.trim().parse().map_err(io::Error::other)?;
        let own = parse_mac(text("address")?.trim()).and_then(address);
        if !self.done.insert(index) || (name != "lo" && own.is_none()) {
            return Ok(None);
        }
        let socket = RouteSocket::open()?;
        if let Some(own) = own {
            socket.add_address(index, own)?;
        }
        socket.bring_up(index)?;
        if own.is_some() {
            socket.route_all()?;
        }
        Ok(own)
    }
}

fn names() -> Vec<String> {
    let entries = fs::read_dir(INTERFACES).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// Parses a MAC address.
fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<_>> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok())
        .collect();
    bytes?.try_into().ok()
}

/// A netlink socket for routing requests.
struct RouteSocket(Socket);

impl RouteSocket {
    fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self(socket))
    }

    fn add_address(&self, index: u32, address: Ipv4Addr) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.prefix_len = PREFIX;
        message.header.index = index;
        let address = IpAddr::V4(address);
        message.attributes = vec![
            AddressAttribute::Local(address),
            AddressAttribute::Address(address),
        ];
        self.request(RouteNetlinkMessage::NewAddress(message))
    }

    fn bring_up(&self, index: u32) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.request(RouteNetlinkMessage::SetLink(message))
    }

    /// Adds the default route through the base.
    fn route_all(&self) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: AddressFamily::Inet,
            table: RouteHeader::RT_TABLE_MAIN,
            protocol: RouteProtocol::Boot,
            scope: RouteScope::Universe,
            kind: RouteType::Unicast,
            ..RouteHeader::default()
        };
        message.attributes = vec![RouteAttribute::Gateway(RouteAddress::Inet(BASE_ADDRESS))];
        self.request(RouteNetlinkMessage::NewRoute(message))
    }

    /// Sends a request and waits for its acknowledgement.
    fn request(&self, what: RouteNetlinkMessage) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(what));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.0.send(&bytes, 0)?;
        let mut answer = Vec::with_capacity(ANSWER_MAX);
        self.0.recv(&mut answer, 0)?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer);
        match answer.map_err(io::Error::other)?.payload {
            NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses_are_parsed() {
        assert_eq!(
            parse_mac("0a:49:0a:4e:01:02"),
            Some([0x0a, 0x49, 10, 78, 1, 2])
        );
        for text in ["", "0a:49", "0a:49:0a:4e:01:02:03", "0a:49:0a:4e:01:xx"] {
            assert_eq!(parse_mac(text), None, "{text}");
        }
    }
}
