//! Messages between processes of this node: the calls of `abi/include/insula_server.h`.
//!
//! A thread that waits for a reply, or for a request, is in its endpoint's queues
//! ([`crate::task::endpoint`]). Who brings what it waits for writes it into its memory, and it goes on
//! with its result. If that needs a page of a base mapping, the call of the thread that brings it is
//! made again once the page has been faulted in; all that it has done by then is not done twice.

pub(in crate::syscall) mod copy;
pub(in crate::syscall) mod handles;
pub(in crate::syscall) mod list;
pub(in crate::syscall) mod receive;
mod request;
pub(in crate::syscall) mod send;
