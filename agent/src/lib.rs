//! What the command and a Linux node's first process say to each other.
//!
//! The agent (this package's program) listens on a port of the node's sockets (`AF_VSOCK`); each
//! connection is one [`Request`] and what follows from it, as [frames](frame): a program's input and
//! output, or [files](copy). What a node is to be
//! before anybody connects to it is told by [options] on its kernel's command line.
//!
//! Neither side trusts the other: frames are bounded, and what is none ends the connection.

pub mod copy;
pub mod frame;
pub mod network;
pub mod options;
mod protocol;

pub use protocol::{
    COMMAND_CID, COMMAND_PORT_MAX, Ending, Exec, Input, Output, PORT, Request, STDIN_WINDOW, Take,
    Terminal, TerminalSize,
};
