//! Calls on sockets of a network server (`abi/include/insula_net.h`), which processes have that were
//! started with one: by messages, without the base.
//!
//! A server replies at once. A call that waits is a handler of this kernel ([`wait`]), which goes on
//! when the server announces that the socket is ready; then the server is asked again. So a signal
//! interrupts a call without anything being lost.
//!
//! A descriptor's number is the base's: an unconnected socket there stands for it. An epoll instance is
//! the base's, too: that watches its own descriptors, this kernel the server's sockets ([`epoll`]).

mod address;
mod control;
mod epoll;
mod names;
mod open;
mod options;
mod poll;
pub(super) mod route;
mod select;
mod sendfile;
mod time;
mod transfer;
mod wait;
