//! Network servers: TCP and UDP over IPv4, for the sockets of unmodified programs.
//!
//! # What it is
//!
//! The kernel asks a server for what programs do with their sockets
//! (`abi/include/insula_net.h`). A [`Network`] answers: it has a network card ([`Nic`]), the network
//! stack of the crate `smoltcp`, and what is Linux' own about sockets: queues of connections, errors,
//! options, what a socket is ready for.
//!
//! # Nobody waits here
//!
//! Each request is answered at once. What cannot be done now fails with `EAGAIN`, and whatever changes a
//! socket later is announced to the kernel ([`Network::take_announcements`]), which has programs wait,
//! and knows without asking what their sockets are ready for. So a program that a signal interrupts has
//! lost nothing that had arrived: nothing is taken for a call that waits.
//!
//! # Whom it trusts
//!
//! Neither its clients nor the network: bad requests fail, and bad frames are the stack's to drop.

mod address;
mod datagram;
mod handler;
mod listener;
mod network;
mod nic;
mod options;
mod serve;
mod socket;
mod stack;
mod stream;
mod wire;

pub use network::Network;
pub use nic::{FRAME_MAX, Nic};
pub use serve::{Arrivals, ServeError, serve};
pub use smoltcp::wire::{Ipv4Address, Ipv4Cidr};
pub use stack::Addressing;

#[cfg(test)]
mod tests;
