//! Servers on a lightweight-kernel node: ordinary programs that others ask by messages.
//!
//! # What it is
//!
//! A server creates an *endpoint* under a name ([`Endpoint::create`]) and handles what is sent there
//! ([`Handler`]), one request at a time for each thread that calls [`Endpoint::serve`]. A client opens the endpoint ([`Client::open`])
//! and calls ([`Client::call`]): it sends an operation, some words, and two parts of its memory, one
//! that the server may read and one that it may write, and waits for the reply. All of it stays on the
//! node: no call to the base. If client and server are on one core, the kernel switches straight
//! between them; if not, the server's core is woken if it sleeps.
//!
//! # Whom it trusts
//!
//! Nobody. A server reads and writes only what the client has named, and only until its reply; a client
//! sees nothing of the server's memory. A client that is killed takes its request back; a server that is
//! killed leaves its clients an error ([`Error::ServerGone`]), and what it had not received to the next
//! server of that name.
//!
//! # How it is tested
//!
//! A handler does not know where its requests come from: [`local::call`] hands it one within a test, on
//! any computer.
//!
//! # Where servers run
//!
//! Any program of the node can list endpoints ([`endpoints`]), and put a server on other cores while it
//! serves ([`place`]).
//!
//! The protocol is in `abi/include/insula_server.h`; on a Linux its calls do not exist
//! ([`Error::NotOnANode`]).

pub mod block;
mod client;
pub mod command;
mod endpoint;
mod error;
pub mod ext4;
pub mod files;
mod handler;
pub mod local;
pub mod net;
pub mod nvme;
pub mod pages;
pub mod pci;
mod placement;
pub mod programs;
mod sys;
pub mod virtio_net;

pub use client::{Call, Client};
pub use endpoint::Endpoint;
pub use error::Error;
pub use handler::{Access, Announcement, Handler, Reply, Request};
pub use insula_abi::server::MESSAGE_WORDS;
pub use placement::{EndpointState, endpoints, place};

/// Words of a message.
pub type Words = [u64; MESSAGE_WORDS];
