//! Requests, and what is said about them.

use serde::{Deserialize, Serialize};

/// Where the agent listens: "IN".
pub const PORT: u32 = 0x494e;
/// The base's address, as nodes see it (`VMADDR_CID_HOST`): nobody else is listened to.
pub const COMMAND_CID: u32 = 2;
/// The command speaks from a port up to this one, for which it needs a right (`LAST_RESERVED_PORT`
/// of the kernel's vsock). So no other user of the base can speak for it.
pub const COMMAND_PORT_MAX: u32 = 1023;

/// Bytes of standard input that may be under way to a program that does not read them. So a signal
/// never waits behind them.
pub const STDIN_WINDOW: usize = 256 << 10;

/// The first frame of a connection, from the command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Run a program. Frames of [`Input`] follow, and are answered by frames of [`Output`].
    Exec(Exec),
    /// Send the file or folder at this path, as [parcels](crate::copy::Parcel) to their end.
    Send(Vec<u8>),
    /// Take what follows as [parcels](crate::copy::Parcel), and answer the last of them with one.
    Take(Take),
}

/// Files to be taken: see [`crate::copy::Target`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Take {
    /// A folder to put them in, or their own new path.
    pub path: Vec<u8>,
    /// What they are called in a folder.
    pub name: Option<Vec<u8>>,
}

/// A program to be run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// The program, by its path or by a name to be looked for in `PATH`, and its arguments; none for
    /// the user's shell.
    pub words: Vec<Vec<u8>>,
    /// What is set in its environment beyond the usual: names and values.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where it begins, if not in `/`.
    pub directory: Option<Vec<u8>>,
    /// Whether there will be standard input; else it is empty.
    pub stdin: bool,
    /// The terminal that it gets, if it gets one.
    pub terminal: Option<Terminal>,
}

/// A terminal for a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    /// The kind: the value of `TERM`.
    pub kind: Vec<u8>,
    /// How large it is in the beginning.
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

/// What the command says to a running program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input<'a> {
    /// More of its standard input; at most [`STDIN_WINDOW`] bytes ahead of [`Output::Taken`].
    #[serde(borrow)]
    Stdin(#[serde(with = "serde_bytes")] &'a [u8]),
    /// The end of its standard input.
    StdinEnd,
    /// A signal for it and its children, by the number of the x86 and arm64 kernels.
    Signal(i32),
    /// Its terminal has another size.
    Resize(TerminalSize),
}

/// What comes of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output<'a> {
    /// It has printed this. With a terminal all comes here.
    #[serde(borrow)]
    Stdout(#[serde(with = "serde_bytes")] &'a [u8]),
    /// It has complained of this.
    #[serde(borrow)]
    Stderr(#[serde(with = "serde_bytes")] &'a [u8]),
    /// It has taken so many more bytes of its standard input, or will not take them any more.
    Taken(u32),
    /// It has ended. Nothing follows.
    Ended(Ending),
    /// It was not begun, and why. Nothing follows.
    Refused(&'a str),
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// By itself, with this status.
    Exited(u8),
    /// By this signal.
    Killed(u8),
}

impl Ending {
    /// The status that a shell gives it.
    #[must_use]
    pub fn status(self) -> u8 {
        match self {
            Self::Exited(status) => status,
            Self::Killed(signal) => 128_u8.saturating_add(signal),
        }
    }
}
