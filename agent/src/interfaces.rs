//! Configuring the node's network interfaces.

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv4Addr;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use insula_agent::network::{address, card};
use netlink_packet_core::NetlinkPayload;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::io::Errno;

use crate::log::log;
use crate::route::{Link, RouteSocket, messages};

/// Time the base gets to provide the card.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Netlink group of link events (`RTMGRP_LINK`).
const LINKS: u32 = 1;
/// Maximum bytes of an event.
const EVENT_MAX: usize = 4096;

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

/// Gives the card another address, in a copy of a node: it has the original's until then. The kernel has
/// the card work when it has the hardware address that the base has given it.
pub(crate) fn readdress(new: Ipv4Addr) -> io::Result<()> {
    let socket = RouteSocket::open()?;
    for link in socket.links()? {
        let old = link.card.and_then(address).filter(|old| *old != new);
        let changed = old.map_or(Ok(()), |old| change(&socket, link.index, old, new));
        if let Err(error) = changed
            && !is_gone(&error)
        {
            return Err(error);
        }
    }
    Ok(())
}

fn change(socket: &RouteSocket, index: u32, old: Ipv4Addr, new: Ipv4Addr) -> io::Result<()> {
    // The node's user may have given it others instead.
    let removed = socket.remove_address(index, old);
    removed.or_else(|error| unless_absent(error, ()))?;
    let removed = socket.remove_link_local(index, card(old)).map(|()| true);
    let has_ipv6 = removed.or_else(|error| unless_absent(error, false))?;
    socket.set_card(index, card(new))?;
    socket.add_address(index, new)?;
    socket.route_all(new)?;
    match has_ipv6 {
        true => socket.add_link_local(index, card(new)),
        false => Ok(()),
    }
}

/// An interface without that address, or a kernel without addresses of the kind.
fn unless_absent<T>(error: io::Error, otherwise: T) -> io::Result<T> {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        // The last one if its MTU is too small for IPv6.
        Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT | Errno::OPNOTSUPP | Errno::NXIO) => {
            Ok(otherwise)
        }
        _ => Err(error),
    }
}

/// Whether an interface was removed, or is being removed.
fn is_gone(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(number, Some(Errno::NODEV | Errno::INVAL))
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
            let mut message = Vec::with_capacity(EVENT_MAX);
            let is_new = match self.events.recv(&mut message, 0) {
                // An overflow means that there were events as well.
                Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => true,
                Err(error) => return Err(error),
                Ok(_) => self.is_of_a_new_one(&message),
            };
            if is_new && self.configure_new() {
                // The receiver may be gone.
                let _ = sender.send(());
            }
        }
    }

    /// Whether an event may be about an interface that is not configured yet: one that cannot be
    /// understood, too, as it may be cut off.
    fn is_of_a_new_one(&self, event: &[u8]) -> bool {
        let messages = messages(event);
        messages.is_empty()
            || messages.iter().any(|payload| match payload {
                NetlinkPayload::InnerMessage(message) => {
                    Link::of(message).is_some_and(|link| !self.done.contains(&link.index))
                }
                _ => false,
            })
    }

    /// Configures new interfaces; whether the card is among them.
    fn configure_new(&mut self) -> bool {
        let listed = RouteSocket::open().and_then(|socket| Ok((socket.links()?, socket)));
        let (links, socket) = match listed {
            Ok(listed) => listed,
            Err(error) => {
                log(&format!("interfaces cannot be listed: {error}"));
                return false;
            }
        };
        let mut found = false;
        for link in links {
            match self.configure_one(&socket, &link) {
                Ok(address) => found |= address.is_some(),
                Err(error) if is_gone(&error) => {}
                Err(error) => log(&format!("{} cannot be configured: {error}", link.name)),
            }
        }
        found
    }

    /// Configures an interface; its IP address if it is the card.
    fn configure_one(&mut self, socket: &RouteSocket, link: &Link) -> io::Result<Option<Ipv4Addr>> {
        let own = link.card.and_then(address);
        if !self.done.insert(link.index) || (link.name != "lo" && own.is_none()) {
            return Ok(None);
        }
        if let Some(own) = own {
            socket.add_address(link.index, own)?;
        }
        socket.bring_up(link.index)?;
        if let Some(own) = own {
            socket.route_all(own)?;
        }
        Ok(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_is_cut_off_may_be_about_a_new_interface() {
        let interfaces = Interfaces::listen().unwrap();
        assert!(interfaces.is_of_a_new_one(&[200, 0, 0, 0, 16, 0]));
    }

    #[test]
    fn an_absent_address_is_no_failure() {
        let error = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        assert!(unless_absent(error(Errno::ADDRNOTAVAIL), ()).is_ok());
        assert!(unless_absent(error(Errno::NXIO), ()).is_ok());
        assert!(unless_absent(error(Errno::PERM), ()).is_err());
        assert!(is_gone(&error(Errno::NODEV)) && !is_gone(&error(Errno::PERM)));
    }
}
