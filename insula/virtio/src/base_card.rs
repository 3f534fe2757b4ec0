//! The network card of the agent of the base (`insula_agent::base`), which the cards of containers on the base
//! go through: one end of a pair (veth(4)) in a network namespace of its own, whose other end is a port of the
//! nodes' bridge. So that agent has what a node's has.

use std::io;
use std::path::Path;
use std::process::Command;

use insula_agent::base::{CARD_ADDRESS, NETWORK, NETWORK_NAME};
use insula_agent::network::{Network, card};
use insula_node::attachment::Link;

use super::bridge;
use super::command::run;
use super::nat::{self, COMMAND_TIMEOUT};

/// The end that is a port of the bridge.
pub(super) const PORT: &str = NETWORK_NAME;
/// Name of the other one.
const CARD: &str = "eth0";

/// Makes namespace and card on a network, as far as they are not there. Returns why containers on the base reach no other
/// hosts, if they do not.
///
/// # Errors
/// When the base's kernel refuses it, or the program `ip` is not installed.
pub fn make_base_card(network: Network) -> io::Result<Option<io::Error>> {
    if !Path::new(NETWORK).exists() {
        ip(&["netns", "add", NETWORK_NAME])?;
    }
    if !Path::new("/sys/class/net").join(PORT).exists() {
        let address = bridge::text(card(CARD_ADDRESS));
        let pair = ["link", "add", PORT, "type", "veth", "peer", "name", CARD];
        ip(&[&pair[..], &["address", &address, "netns", NETWORK_NAME]].concat())?;
    }
    let link = Link::of_all(network);
    bridge::join(&link, PORT)?;
    Ok(nat::let_out(&link).err())
}

/// Removes both, and with the last port the bridge.
///
/// # Errors
/// When the base's kernel refuses it.
pub fn remove_base_card() -> io::Result<()> {
    let removed = [
        &["link", "delete", PORT][..],
        &["netns", "delete", NETWORK_NAME],
    ]
    .map(ip);
    nat::leave()?;
    removed.into_iter().collect()
}

fn ip(words: &[&str]) -> io::Result<()> {
    run(Command::new("ip").args(words), COMMAND_TIMEOUT)
}
