//! Requests to the agent and their messages.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::container::ContainerRequest;
use crate::options::Clock;
use crate::pod::PodContainer;
use crate::restrictions::Restrictions;

/// The port on which the agent listens: "IN".
pub const PORT: u32 = 0x494e;
/// The base's CID as nodes see it (`VMADDR_CID_HOST`), the only accepted peer.
pub const COMMAND_CID: u32 = 2;
/// The command's highest source port, which is privileged (`LAST_RESERVED_PORT` of the kernel's
/// vsock). So no other user of the base can pose as the command.
pub const COMMAND_PORT_MAX: u32 = 1023;

/// Maximum bytes of standard input in flight to a program that does not read them. So a signal
/// never waits behind them.
pub const STDIN_WINDOW: usize = 256 << 10;

/// The first frame of a connection, from the command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Run a program. [`Input`] frames follow from the command, [`Output`] frames from the agent.
    Exec(Exec),
    /// Send the file or folder at this path as [messages](crate::copy::CopyMessage).
    Send(Vec<u8>),
    /// Take another identity: this node is a copy. [`Renamed`] follows.
    Rename(Identity),
    /// Receive the [messages](crate::copy::CopyMessage) that follow, and answer the last one.
    Receive(Receive),
    /// Do something about [containers](crate::container).
    Container(ContainerRequest),
    /// Tell or set the clock: [`ClockRequest`] frames follow from the command, each of which is answered by a
    /// [`ClockAnswer`].
    Clock,
    /// Run a program as a user, or in a container: otherwise as [`Exec`](Self::Exec).
    ExecAs(ExecAs),
    /// [`Send`](Self::Send) or [`Receive`](Self::Receive) files as the programs of a container have them.
    In {
        /// Its name.
        container: String,
        /// The request.
        request: Box<Request>,
    },
    /// Tell what the node has used: answered by `Result<Usage, String>` of [`Usage`](crate::usage::Usage).
    Usage,
    /// Start a container of a [pod](crate::pod) and run its program: otherwise as [`ExecAs`](Self::ExecAs). It ends with
    /// the program, and is killed when the connection ends.
    Pod(Box<PodContainer>),
    /// Attach to the node's main program: otherwise as [`Exec`](Self::Exec), but it goes on when the command
    /// leaves.
    Attach(Attach),
    /// Run a program as [`ExecAs`](Self::ExecAs), without input and without the command: its output goes to the node's log.
    /// Answered by `Result<(), String>` when it is started.
    Detached(ExecAs),
}

/// What a command that is attached to the main program does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// Whether it sends standard input, if the program has one.
    pub stdin: bool,
}

/// A program to run as a user, or in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecAs {
    /// The program.
    pub exec: Exec,
    /// The container whose namespaces it joins, if it does.
    pub container: Option<String>,
    /// User and group, `USER[:GROUP[,GROUP]...]`, by their names or numbers; root if nothing is said.
    pub user: Option<String>,
    /// What it is restricted by.
    pub restrictions: Restrictions,
}

/// Request about the node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClockRequest {
    /// Tell the time.
    Read,
    /// Add this number of nanoseconds to it.
    Adjust(i64),
    /// Follow the base's clock, unless a program of the node keeps its own: be slewed to it, or set if it is far away.
    Follow(Clock),
}

/// The node's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockAnswer {
    /// Its time, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// Why it was not adjusted.
    pub error: Option<String>,
}

/// What makes a copy of a node another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its host name.
    pub host: String,
    /// Its machine id, as in `/etc/machine-id`.
    pub machine: String,
    /// Random bytes, which nobody else gets.
    pub seed: Vec<u8>,
    /// The time, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// Its IP address, if it has a network card.
    pub address: Option<Ipv4Addr>,
}

/// What of an [`Identity`] could not be taken, with the errors; empty if all was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renamed {
    /// Messages for the user.
    pub errors: Vec<String>,
}

/// Files to receive: see [`crate::copy::Target`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receive {
    /// An existing folder to put them in, or their new path.
    pub path: Vec<u8>,
    /// Their name in that folder.
    pub name: Option<Vec<u8>>,
}

/// A program to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// The program, by path or by name in `PATH`, and its arguments; empty for the user's shell.
    pub words: Vec<Vec<u8>>,
    /// Additional environment variables.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Its working directory, `/` by default.
    pub directory: Option<Vec<u8>>,
    /// Whether it gets standard input; otherwise that is empty.
    pub stdin: bool,
    /// Its terminal, if it gets one.
    pub terminal: Option<Terminal>,
}

/// A terminal for a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    /// The value of `TERM`.
    pub kind: Vec<u8>,
    /// The initial size.
    pub size: TerminalSize,
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

/// Messages of the command for a running program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input<'a> {
    /// Standard input, at most [`STDIN_WINDOW`] bytes ahead of [`Output::Taken`].
    #[serde(borrow)]
    Stdin(#[serde(with = "serde_bytes")] &'a [u8]),
    /// The end of its standard input.
    StdinEnd,
    /// A signal, with the number of the x86 and arm64 kernels: for its process group, or in a container for it alone, as
    /// OCI runtimes send them.
    Signal(i32),
    /// New size of its terminal.
    Resize(TerminalSize),
}

/// Messages about a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output<'a> {
    /// Standard output; with a terminal, all output.
    #[serde(borrow)]
    Stdout(#[serde(with = "serde_bytes")] &'a [u8]),
    /// Standard error.
    #[serde(borrow)]
    Stderr(#[serde(with = "serde_bytes")] &'a [u8]),
    /// It has read this number of bytes of its standard input, or will never read them. With 0, as the first message of a
    /// program that the request has started, it says no more than that.
    Taken(u32),
    /// It has exited. Nothing follows.
    Ended(ExitStatus),
    /// It could not be started, with the error. Nothing follows.
    Refused(&'a str),
}

/// Exit status of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// It exited with this status.
    Exited(u8),
    /// It was killed by this signal.
    Killed(u8),
}

impl ExitStatus {
    /// The status as a shell reports it.
    #[must_use]
    pub fn status(self) -> u8 {
        match self {
            Self::Exited(status) => status,
            Self::Killed(signal) => 128_u8.saturating_add(signal),
        }
    }
}
