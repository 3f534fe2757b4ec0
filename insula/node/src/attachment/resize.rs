//! Announcing changes of a node's memory to the process that serves its devices.
//!
//! Their back ends access exactly the regions in their memory tables. So a node must not use new
//! memory before they have it, and memory must not return to the base before they have unmapped it:
//! a command that resizes a node asks here, and gets an answer when all have switched.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use insula_base::error::Source;
use insula_base::state::RUN;

/// Timeout until all devices have the memory.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The answer on success; any other is an error message.
pub const DONE: &str = "done";

/// Switches all devices of a node to exactly its first `chunks` chunks of memory, if its devices
/// are served.
///
/// # Errors
/// What the server says, or why it does not answer; the devices go on with the old memory.
pub fn resize(id: u32, chunks: usize) -> Result<(), Source> {
    resize_at(&socket(Path::new(RUN), id), chunks)
}

/// Requests it from the server at `path`, if there is one.
///
/// # Errors
/// As of [`resize`].
pub fn resize_at(path: &Path, chunks: usize) -> Result<(), Source> {
    match ask(path, chunks) {
        // There is none, or it has exited, and its mappings with it.
        Err(error) if is_absent(&error) => Ok(()),
        Err(error) => Err(format!("the node's supervisor does not answer: {error}").into()),
        Ok(answer) if ["", DONE].contains(&answer.as_str()) => Ok(()),
        Ok(answer) => Err(answer.into()),
    }
}

fn ask(path: &Path, chunks: usize) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(&(chunks as u64).to_ne_bytes())?;
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

/// The server's socket in `folder`.
#[must_use]
pub fn socket(folder: &Path, id: u32) -> PathBuf {
    folder.join(format!("resize-{id}"))
}
