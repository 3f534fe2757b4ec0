//! Announcing changes of a node's memory to the process that serves its devices.
//!
//! Their back ends access exactly the regions in their memory tables. So a node must not use new
//! memory before they have it, and memory must not return to the base before they have unmapped it:
//! a command that resizes a node asks here, and gets an answer when all have switched.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use insula_base::state::RUN;

/// Timeout until all devices have the memory.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The answer on success; any other is an error message.
pub const DONE: &str = "done";

/// The devices of a node could not switch to its new memory.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// The server's error.
    #[error("{0}")]
    Refused(String),
    /// The server did not answer or could not be reached.
    #[error("the node's supervisor does not answer: {0}")]
    NoReply(#[from] io::Error),
}

/// Switches all devices of a node to exactly its first `chunks` chunks of memory, if its devices
/// are served.
///
/// # Errors
/// [`ResizeError`]; the devices go on with the old memory.
pub fn resize(id: u32, chunks: usize) -> Result<(), ResizeError> {
    resize_at(&socket(Path::new(RUN), id), chunks)
}

/// Requests it from the server at `path`, if there is one.
///
/// # Errors
/// [`ResizeError`].
pub fn resize_at(path: &Path, chunks: usize) -> Result<(), ResizeError> {
    let mut stream = match UnixStream::connect(path) {
        Err(error) if is_absent(&error) => return Ok(()),
        connected => connected?,
    };
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut answer = String::new();
    let request = stream
        .write_all(&(chunks as u64).to_ne_bytes())
        .and_then(|()| stream.read_to_string(&mut answer));
    match request {
        // The server has exited, and its mappings with it.
        Err(error) if is_absent(&error) => return Ok(()),
        request => request?,
    };
    match answer.as_str() {
        "" | DONE => Ok(()),
        _ => Err(ResizeError::Refused(answer)),
    }
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

/// The server's socket in `folder`.
#[must_use]
pub fn socket(folder: &Path, id: u32) -> PathBuf {
    folder.join(format!("resize-{id}"))
}
