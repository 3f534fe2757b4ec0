//! Namespaces for a container (namespaces(7)), and its card in them.
//!
//! Its card is a macvlan on the node's: it has a MAC address and an IP address of its own in the
//! network of nodes and base, so both can go along to another node, and the base's bridge sees on
//! which node they are. In mode `vepa` all its packets go through that bridge, also those to
//! containers of the same node.
//!
//! While a container is in two nodes, neither may send: the bridge takes the last one that it has seen
//! a packet of for the container's. At the source its card is down; at the target it has no carrier,
//! since restored sockets need its address and its routes. Where the container goes on the card comes
//! up, and tells the bridge so (`arp_notify`), though the container itself may have nothing to send.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use insula_agent::container::{self, card};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::process::{Pid, getpid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::cgroup::Cgroup;
use crate::namespace::unshare;
use crate::route::{Link, MacvlanRequest, RouteSocket};

/// Name of a container's card.
const CARD: &str = "eth0";
/// Its name until then: the kernel looks for one of its name where the node's is, too.
const NEW_CARD: &str = "new-card";
/// Time that the kernel has to remove another card of its address, and the pause between attempts.
const GONE_TIMEOUT: Duration = Duration::from_secs(20);
const GONE_INTERVAL: Duration = Duration::from_millis(5);
/// The calling thread's network namespace.
const NETWORK: &str = "/proc/thread-self/ns/net";
/// Keeps new interfaces from having an IPv6 address that is derived from their MAC address: for a
/// moment of a move there are two of it, and the kernel would take the address out of use.
const ADDRESS_MODE: &str = "/proc/sys/net/ipv6/conf/default/addr_gen_mode";
const NONE: &str = "1";
/// Has interfaces send a gratuitous ARP request when they come up (ip-sysctl.rst).
const ARP_NOTIFY: &str = "/proc/sys/net/ipv4/conf/default/arp_notify";

/// Gives the calling thread namespaces for the processes that it starts from now on, with a network
/// in them. Such a thread can start no other.
pub(super) fn enter_new(address: Option<Ipv4Addr>, carrier: Carrier) -> io::Result<File> {
    let network = enter_new_network(address, carrier)?;
    unshare(
        UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS | UnshareFlags::NEWPID,
    )?;
    Ok(network)
}

/// Whether packets leave a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    On,
    Off,
}

/// Gives the calling thread a network namespace with a loopback interface and a card.
pub(super) fn enter_new_network(address: Option<Ipv4Addr>, carrier: Carrier) -> io::Result<File> {
    let outside = RouteSocket::open()?;
    unshare(UnshareFlags::NEWNET)?;
    let network = File::open(NETWORK)?;
    // A kernel without IPv6 lacks it.
    let _ = fs::write(ADDRESS_MODE, NONE);
    fs::write(ARP_NOTIFY, "1")?;
    let inside = RouteSocket::open()?;
    for link in inside.links()?.iter().filter(|link| link.name == "lo") {
        inside.bring_up(link.index)?;
    }
    if let Some(address) = address {
        add_card(&outside, &inside, &network, (address, carrier))?;
    }
    Ok(network)
}

/// Adds a card to a network namespace: sockets in the node's, and in that one.
fn add_card(
    outside: &RouteSocket,
    inside: &RouteSocket,
    network: &File,
    (address, carrier): (Ipv4Addr, Carrier),
) -> io::Result<()> {
    let added = outside.node_card().and_then(|lower| {
        outside.add_macvlan(&MacvlanRequest {
            name: NEW_CARD,
            card: card(address),
            lower,
            namespace: network.as_raw_fd(),
        })
    });
    added.map_err(|error| io::Error::other(format!("its network card: {error}")))?;
    for link in inside.links()?.iter().filter(|link| link.name == NEW_CARD) {
        inside.rename(link.index, CARD)?;
        inside.add_address(link.index, address)?;
        if carrier == Carrier::Off {
            inside.set_carrier(link.index, false)?;
        }
        bring_up_alone(inside, link.index)?;
        inside.route_all(address)?;
    }
    Ok(())
}

/// Gives a network namespace its card again, if it has gone with the node's: when that comes back,
/// connections go on.
pub(super) fn renew_card(network: &File, address: Ipv4Addr) -> io::Result<()> {
    let network = network.try_clone()?;
    in_thread(move || {
        let outside = RouteSocket::open()?;
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        let inside = RouteSocket::open()?;
        match inside.links()?.iter().any(|link| link.name == CARD) {
            true => Ok(()),
            false => add_card(&outside, &inside, &network, (address, Carrier::On)),
        }
    })
}

/// Gives the calling thread a mount namespace in which `place` is a mount of the folder `root`.
pub(super) fn enter_mounts(root: &Path, place: &str) -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private)?;
    fs::create_dir_all(place)?;
    Ok(mount_bind(root, place)?)
}

/// The network namespace of a process.
pub(super) fn network_of(pid: Pid) -> io::Result<File> {
    File::open(format!("/proc/{}/ns/net", pid.as_raw_nonzero()))
}

/// Removes the card in a network namespace: no packet leaves it any more.
pub(super) fn remove_card(network: &File) -> io::Result<()> {
    with_card(network, |inside, card| inside.remove_link(card.index))
}

/// Removes the cards in the network namespaces of a group's processes, which are to be killed. Connections outlive
/// them, and each keeps its namespace, with a card whose address the next one would have, too.
pub(super) fn remove_cards(cgroup: &Cgroup) {
    let inode = |network: &File| network.metadata().map(|metadata| metadata.ino()).ok();
    let own = network_of(getpid()).ok();
    let own = own.as_ref().and_then(inode);
    let processes = cgroup.processes().unwrap_or_default();
    for pid in processes.into_iter().filter_map(Pid::from_raw) {
        // It may have ended. CRIU is in the node's namespace.
        let network = network_of(pid).ok();
        if let Some(network) = network.filter(|network| inode(network) != own) {
            let _ = remove_card(&network);
        }
    }
}

/// Takes the card down: no packet comes or goes, and none is confirmed.
pub(super) fn take_card_down(network: &File) -> io::Result<()> {
    with_card(network, |inside, card| inside.bring_down(card.index))
}

/// Has packets leave and come to a card that was taken down, or had no carrier.
pub(super) fn bring_card_up(network: &File) -> io::Result<()> {
    with_card(network, |inside, card| {
        // Coming up tells the bridge where it is.
        inside.bring_down(card.index)?;
        inside.set_carrier(card.index, true)?;
        bring_up_alone(inside, card.index)?;
        let own = card.card.and_then(container::address);
        own.map_or(Ok(()), |own| inside.route_all(own))
    })
}

/// Brings a card up when no other has its address: the card of a container that was here before goes with its network
/// namespace, which the kernel removes some time after its last process has ended.
fn bring_up_alone(inside: &RouteSocket, card: u32) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match inside.bring_up(card) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && began.elapsed() < GONE_TIMEOUT =>
            {
                thread::sleep(GONE_INTERVAL);
            }
            done => return done,
        }
    }
}

/// Does something with the card in a network namespace, if there is one.
fn with_card(
    network: &File,
    what: impl FnOnce(&RouteSocket, &Link) -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    let network = network.try_clone()?;
    in_thread(move || {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        let inside = RouteSocket::open()?;
        let links = inside.links()?;
        let card = links.iter().find(|link| link.name == CARD);
        card.map_or(Ok(()), |card| what(&inside, card))
    })
}

/// Does something by a thread of its own, since namespaces are a thread's.
pub(super) fn in_thread<T: Send + 'static>(
    what: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = thread::spawn(what).join();
    done.unwrap_or_else(|_| Err(io::Error::other("a thread has failed")))
}
