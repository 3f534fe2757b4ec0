//! The node's network card, with which the containers' go: when the base's side of it is lost, the
//! kernel removes it, and they with it. It comes back as another interface.

use std::io;

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::io::Errno;

use crate::route::RouteSocket;

/// Netlink group of link events (`RTMGRP_LINK`).
const LINKS: u32 = 1;
/// Bytes of an event that are read: what it says is looked up.
const EVENT: usize = 512;

/// Does something whenever the node has got another card.
pub(super) fn watch(renewed: impl Fn()) -> io::Result<()> {
    let mut events = Socket::new(NETLINK_ROUTE)?;
    events.bind(&SocketAddr::new(0, LINKS))?;
    let mut card = now();
    loop {
        let mut event = Vec::with_capacity(EVENT);
        match events.recv(&mut event, 0) {
            // An overflow means that there were events.
            Err(error) if error.raw_os_error() != Some(Errno::NOBUFS.raw_os_error()) => {
                return Err(error);
            }
            _ => {}
        }
        let found = now();
        if found.is_some() && found != card {
            card = found;
            renewed();
        }
    }
}

/// Index of the node's card, while it has one.
fn now() -> Option<u32> {
    RouteSocket::open()
        .and_then(|socket| socket.node_card())
        .ok()
}
