//! What the command and the agent of the base have in common.
//!
//! The agent of the base serves containers beside those of nodes, and nothing else: the base's files and
//! programs are there without it. Its folder is root's alone, and so is the socket in it.

use std::net::Ipv4Addr;

/// Its folder, in memory, which it sees as `/run/insula`.
pub const FOLDER: &str = "/run/insula/base";
/// Its lock, which the agent holds for as long as it lives.
pub const LOCK: &str = "/run/insula/base/lock";
/// The socket (AF_UNIX) on which it listens, as the command sees it, and as it does itself.
pub const SOCKET: &str = "/run/insula/base/socket";
/// See [`SOCKET`].
pub const OWN_SOCKET: &str = "/run/insula/socket";
/// Its log, as the command sees it, and as it does itself.
pub const LOG_FILE: &str = "/run/insula/base/log";
/// See [`LOG_FILE`].
pub const OWN_LOG: &str = "/run/insula/log";
/// Its network namespace, by name and by file.
pub const NETWORK_NAME: &str = "insula-base";
/// See [`NETWORK_NAME`].
pub const NETWORK: &str = "/run/netns/insula-base";
/// The address that the MAC address of its card is [made](crate::network::card) of: none of a node or a container.
pub const CARD_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 78, 255, 0);
