//! Giving the node's network card its address.

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

use crate::say::say;

/// Where the kernel lists interfaces.
const INTERFACES: &str = "/sys/class/net";
/// How long the base may take to bring the card.
const PATIENCE: Duration = Duration::from_secs(60);
/// The kernel's news of interfaces (`RTMGRP_LINK`).
const LINKS: u32 = 1;
/// Bytes of an answer that says yes or no.
const ANSWER_MAX: usize = 4096;

/// Brings the interfaces up: the node's own, and the card that tells its address, by which all
/// others are reached; if there `is_card`, it is waited for. So is each that comes later: when the
/// base's end was lost, there is another card. Interfaces of other cards are left to others.
pub(crate) fn configure(is_card: bool) {
    let mut interfaces = match Interfaces::listen() {
        Ok(interfaces) => interfaces,
        Err(error) => return say(&format!("interfaces cannot be brought up: {error}")),
    };
    let found = interfaces.configure_new();
    let (tell, told) = channel();
    thread::spawn(move || {
        let ended = interfaces.watch(&tell);
        ended.map_err(|error| say(&format!("new interfaces are not brought up: {error}")))
    });
    if is_card && !found && told.recv_timeout(PATIENCE).is_err() {
        say("there is no network card: the base's log tells why");
    }
}

/// Those that were brought up, and news of others.
struct Interfaces {
    news: Socket,
    /// By the kernel's numbers, of which none is given twice.
    done: BTreeSet<u32>,
}

impl Interfaces {
    fn listen() -> io::Result<Self> {
        let mut news = Socket::new(NETLINK_ROUTE)?;
        news.bind(&SocketAddr::new(0, LINKS))?;
        Ok(Self {
            news,
            done: BTreeSet::new(),
        })
    }

    /// Tells of each card.
    fn watch(&mut self, tell: &Sender<()>) -> io::Result<()> {
        loop {
            let mut message = Vec::with_capacity(ANSWER_MAX);
            match self.news.recv(&mut message, 0) {
                // There was more than could be kept: news all the same.
                Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => {}
                received => drop(received?),
            }
            if self.configure_new() {
                // Nobody may wait for it any more.
                let _ = tell.send(());
            }
        }
    }

    /// Whether the card is among those that are new.
    fn configure_new(&mut self) -> bool {
        let mut found = false;
        for name in names() {
            match self.configure_one(&name) {
                Ok(address) => found |= address.is_some(),
                // It may have gone again.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => say(&format!("{name} cannot be brought up: {error}")),
            }
        }
        found
    }

    /// Its address, if it is the card.
    fn configure_one(&mut self, name: &str) -> io::Result<Option<Ipv4Addr>> {
        let text = |file: &str| fs::read_to_string(format!("{INTERFACES}/{name}/{file}"));
        let index = text("ifindex")?.trim().parse().map_err(io::Error::other)?;
        let own = parse(text("address")?.trim()).and_then(address);
        if !self.done.insert(index) || (name != "lo" && own.is_none()) {
            return Ok(None);
        }
        let kernel = Kernel::open()?;
        if let Some(own) = own {
            kernel.add_address(index, own)?;
        }
        kernel.bring_up(index)?;
        if own.is_some() {
            kernel.route_all()?;
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

/// The address of a card, as `/sys` has it.
fn parse(text: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<_>> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok())
        .collect();
    bytes?.try_into().ok()
}

/// The part of the kernel that has the interfaces.
struct Kernel(Socket);

impl Kernel {
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
        self.ask(RouteNetlinkMessage::NewAddress(message))
    }

    fn bring_up(&self, index: u32) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.ask(RouteNetlinkMessage::SetLink(message))
    }

    /// All that is not of the nodes' network goes by way of the base.
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
        self.ask(RouteNetlinkMessage::NewRoute(message))
    }

    /// Asks for something, and waits until it is done.
    fn ask(&self, what: RouteNetlinkMessage) -> io::Result<()> {
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
    fn addresses_of_cards_are_read() {
        assert_eq!(parse("0a:49:0a:4e:01:02"), Some([0x0a, 0x49, 10, 78, 1, 2]));
        for text in ["", "0a:49", "0a:49:0a:4e:01:02:03", "0a:49:0a:4e:01:xx"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
