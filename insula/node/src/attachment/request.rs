//! Requests to the process that serves a node's devices.
//!
//! Each kind of request has a socket of its own, in the command's private folder. A request is a number,
//! the answer [`DONE`] or an error message.
//!
//! - [`resize`]: back ends access exactly the regions in their memory tables. So a node must not use new
//!   memory before they have it, and memory must not return to the base before they have unmapped it: a
//!   command that resizes a node asks here, and gets an answer when all have switched.
//! - [`drain`]: a snapshot must not be taken while a disk executes requests, since nobody would complete
//!   them in a copy.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use insula_base::error::Source;
use insula_base::state::RUN;

use super::drained::Drained;

/// Timeout of an answer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The answer on success, which more may follow; any other is an error message.
pub const DONE: &str = "done";

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Use exactly so many chunks of the node's memory.
    Resize,
    /// Complete all requests to disks. The number means nothing.
    Drain,
}

impl RequestKind {
    /// The socket for such requests in `folder`.
    #[must_use]
    pub fn socket(self, folder: &Path, id: u32) -> PathBuf {
        let name = match self {
            Self::Resize => "resize",
            Self::Drain => "drain",
        };
        folder.join(format!("{name}-{id}"))
    }
}

/// Switches all devices of a node to exactly its first `chunks` chunks of memory, if its devices
/// are served.
///
/// # Errors
/// What the server says, or why it does not answer; the devices go on with the old memory.
pub fn resize(id: u32, chunks: usize) -> Result<(), Source> {
    let socket = RequestKind::Resize.socket(Path::new(RUN), id);
    // If there is no server, or it has exited, nobody has mapped the memory.
    request_at(&socket, chunks as u64).map(drop)
}

/// Waits until the disks of a node, which is paused, have completed all of its requests. `None` if nobody
/// serves its devices.
///
/// # Errors
/// When they do not.
pub fn drain(id: u32) -> Result<Option<Drained>, Source> {
    match request_at(&RequestKind::Drain.socket(Path::new(RUN), id), 0)? {
        Some(answer) => Ok(Some(answer.parse()?)),
        None => Ok(None),
    }
}

/// Sends a request to the server at `path`, and returns what follows [`DONE`]; `None` if there is none.
///
/// # Errors
/// What the server says, or why it does not answer.
pub fn request_at(path: &Path, number: u64) -> Result<Option<String>, Source> {
    match ask(path, number) {
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(format!("the node's supervisor does not answer: {error}").into()),
        Ok(answer) => match answer.strip_prefix(DONE) {
            Some(more) => Ok(Some(more.to_owned())),
            None if answer.is_empty() => Ok(None),
            None => Err(answer.into()),
        },
    }
}

fn ask(path: &Path, number: u64) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(&number.to_ne_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
    )
}
