//! Requests to the kernel about network interfaces, by netlink (rtnetlink(7)).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;

use insula_agent::network::{Network, PREFIX, address};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoMacVlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, MacVlanMode,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Maximum bytes of an answer: a list comes in several.
const ANSWER_MAX: usize = 8192;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// Its MAC address.
    pub(crate) card: Option<[u8; 6]>,
}

impl Link {
    /// The interface that a message is about, if it is there.
    pub(crate) fn of(message: &RouteNetlinkMessage) -> Option<Self> {
        let RouteNetlinkMessage::NewLink(message) = message else {
            return None;
        };
        let mut link = Self {
            index: message.header.index,
            name: String::new(),
            card: None,
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Address(bytes) => link.card = bytes.as_slice().try_into().ok(),
                _ => {}
            }
        }
        Some(link)
    }
}

/// The messages in a datagram. What cannot be understood is left out.
pub(crate) fn messages(datagram: &[u8]) -> Vec<NetlinkPayload<RouteNetlinkMessage>> {
    let mut messages = Vec::new();
    let mut rest = datagram;
    while let Some(&[a, b, c, d]) = rest.first_chunk() {
        let length = u32::from_ne_bytes([a, b, c, d]) as usize;
        let Some(message) = rest.get(..length).filter(|message| message.len() > 4) else {
            break;
        };
        messages.extend(NetlinkMessage::deserialize(message).map(|one| one.payload));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    messages
}

/// A card to be made on another one.
#[derive(Debug)]
pub(crate) struct MacvlanRequest<'a> {
    pub(crate) name: &'a str,
    pub(crate) card: [u8; 6],
    /// Index of the other.
    pub(crate) lower: u32,
    /// Descriptor of the network namespace that gets it.
    pub(crate) namespace: RawFd,
}

/// A netlink socket for routing requests.
pub(crate) struct RouteSocket(Socket);

impl RouteSocket {
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self(socket))
    }

    /// All interfaces.
    pub(crate) fn links(&self) -> io::Result<Vec<Link>> {
        let all = RouteNetlinkMessage::GetLink(LinkMessage::default());
        self.send(all, NLM_F_REQUEST | NLM_F_DUMP)?;
        let mut links = Vec::new();
        loop {
            for payload in messages(&self.receive()?) {
                match payload {
                    NetlinkPayload::Done(_) => return Ok(links),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::InnerMessage(message) => links.extend(Link::of(&message)),
                    _ => {}
                }
            }
        }
    }

    pub(crate) fn add_address(&self, index: u32, address: Ipv4Addr) -> io::Result<()> {
        self.request(RouteNetlinkMessage::NewAddress(with_address(
            index, address,
        )))
    }

    pub(crate) fn remove_address(&self, index: u32, address: Ipv4Addr) -> io::Result<()> {
        self.request(RouteNetlinkMessage::DelAddress(with_address(
            index, address,
        )))
    }

    /// Adds the IPv6 address that the kernel derives from a card's.
    pub(crate) fn add_link_local(&self, index: u32, card: [u8; 6]) -> io::Result<()> {
        self.request(RouteNetlinkMessage::NewAddress(with_link_local(
            index, card,
        )))
    }

    pub(crate) fn remove_link_local(&self, index: u32, card: [u8; 6]) -> io::Result<()> {
        self.request(RouteNetlinkMessage::DelAddress(with_link_local(
            index, card,
        )))
    }

    pub(crate) fn set_card(&self, index: u32, card: [u8; 6]) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes = vec![LinkAttribute::Address(card.to_vec())];
        self.request(RouteNetlinkMessage::SetLink(message))
    }

    pub(crate) fn bring_up(&self, index: u32) -> io::Result<()> {
        self.set_flags(index, LinkFlags::Up)
    }

    /// Takes an interface down, with which its routes go.
    pub(crate) fn bring_down(&self, index: u32) -> io::Result<()> {
        self.set_flags(index, LinkFlags::empty())
    }

    /// Takes the carrier from an interface, or gives it back: without it, no packet leaves it, also while
    /// it is up and has routes.
    pub(crate) fn set_carrier(&self, index: u32, carrier: bool) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes = vec![LinkAttribute::ProtoDown((!carrier).into())];
        self.request(RouteNetlinkMessage::SetLink(message))
    }

    fn set_flags(&self, index: u32, flags: LinkFlags) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = flags;
        message.header.change_mask = LinkFlags::Up;
        self.request(RouteNetlinkMessage::SetLink(message))
    }

    /// Index of the node's card.
    pub(crate) fn node_card(&self) -> io::Result<u32> {
        let links = self.links()?;
        let card = links
            .iter()
            .find(|link| link.card.and_then(address).is_some());
        let card = card.map(|link| link.index);
        card.ok_or_else(|| io::Error::other("the node has no network card"))
    }

    /// Makes a card whose packets all go out by the other, whose switch sends back those for the
    /// node itself.
    pub(crate) fn add_macvlan(&self, request: &MacvlanRequest<'_>) -> io::Result<()> {
        let mode = InfoData::MacVlan(vec![InfoMacVlan::Mode(MacVlanMode::Vepa)]);
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(request.name.to_owned()),
            LinkAttribute::Address(request.card.to_vec()),
            LinkAttribute::Link(request.lower),
            LinkAttribute::NetNsFd(request.namespace),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::MacVlan),
                LinkInfo::Data(mode),
            ]),
        ];
        self.request(RouteNetlinkMessage::NewLink(message))
    }

    /// Renames an interface, which must be down.
    pub(crate) fn rename(&self, index: u32, name: &str) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
        self.request(RouteNetlinkMessage::SetLink(message))
    }

    /// Removes an interface.
    pub(crate) fn remove_link(&self, index: u32) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.request(RouteNetlinkMessage::DelLink(message))
    }

    /// Adds the default route through the base, from an own address.
    pub(crate) fn route_all(&self, own: Ipv4Addr) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: AddressFamily::Inet,
            table: RouteHeader::RT_TABLE_MAIN,
            protocol: RouteProtocol::Boot,
            scope: RouteScope::Universe,
            kind: RouteType::Unicast,
            ..RouteHeader::default()
        };
        let base = RouteAddress::Inet(Network::of(own).base());
        message.attributes = vec![RouteAttribute::Gateway(base)];
        self.request(RouteNetlinkMessage::NewRoute(message))
    }

    /// Sends a request and waits for its acknowledgement.
    fn request(&self, what: RouteNetlinkMessage) -> io::Result<()> {
        self.send(
            what,
            NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE,
        )?;
        match messages(&self.receive()?).into_iter().next() {
            Some(NetlinkPayload::Error(error)) if error.code.is_some() => Err(error.to_io()),
            Some(_) => Ok(()),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn send(&self, what: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(what));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.0.send(&bytes, 0).map(drop)
    }

    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut answer = Vec::with_capacity(ANSWER_MAX);
        self.0.recv(&mut answer, 0)?;
        Ok(answer)
    }
}

fn with_address(index: u32, address: Ipv4Addr) -> AddressMessage {
    of_interface(index, AddressFamily::Inet, PREFIX, IpAddr::V4(address))
}

fn with_link_local(index: u32, card: [u8; 6]) -> AddressMessage {
    let address = IpAddr::V6(link_local(card));
    of_interface(index, AddressFamily::Inet6, 64, address)
}

fn of_interface(index: u32, family: AddressFamily, prefix: u8, address: IpAddr) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family;
    message.header.prefix_len = prefix;
    message.header.index = index;
    message.attributes = vec![
        AddressAttribute::Local(address),
        AddressAttribute::Address(address),
    ];
    message
}

/// The link-local address of a card: RFC 4291, appendix A.
fn link_local([a, b, c, d, e, f]: [u8; 6]) -> Ipv6Addr {
    let pair = |high, low| u16::from_be_bytes([high, low]);
    let (first, second) = (pair(a ^ 2, b), pair(c, 0xff));
    Ipv6Addr::new(0xfe80, 0, 0, 0, first, second, pair(0xfe, d), pair(e, f))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_addresses_are_those_of_the_kernel() {
        let address = link_local([0x0a, 0x49, 0x0a, 0x4e, 0x68, 0xca]);
        assert_eq!(address.to_string(), "fe80::849:aff:fe4e:68ca");
    }

    #[test]
    fn damaged_answers_have_no_messages() {
        for bytes in [
            &[][..],
            &[1],
            &[0, 0, 0, 0],
            &[16, 0, 0, 0, 1],
            &[255, 255, 255, 255, 0, 0, 0, 0],
        ] {
            assert!(messages(bytes).is_empty(), "{bytes:?}");
        }
    }

    #[test]
    fn the_loopback_interface_is_listed() {
        let links = RouteSocket::open().and_then(|socket| socket.links());
        let links = links.unwrap();
        let found = links.iter().find(|link| link.name == "lo").unwrap();
        assert_eq!((found.index, found.card), (1, Some([0; 6])));
    }
}
