//! The protocol between the command and the agent of a Linux node.
//!
//! The agent (this package's program) listens on a vsock port, that of the [base] on a socket there; each connection carries one
//! [`Request`] and its messages as [frames](frame): a program's input and output, [files](copy), or
//! an answer about [containers](container).
//! Settings that the agent needs before a connection are [options] on the kernel's command line.
//!
//! Neither side trusts the other: frames are bounded, and an invalid one ends the connection.

pub mod base;
pub mod container;
pub mod copy;
pub mod frame;
pub mod network;
pub mod options;
pub mod pod;
pub mod processor;
mod protocol;
pub mod restrictions;
pub mod usage;
pub mod view;

pub use protocol::{
    Attach, COMMAND_CID, COMMAND_PORT_MAX, ClockAnswer, ClockRequest, Exec, ExecAs, ExitStatus,
    Identity, Input, Output, PORT, Receive, Renamed, Request, STDIN_WINDOW, Terminal, TerminalSize,
};
