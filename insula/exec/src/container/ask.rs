//! Requests about containers to a node's agent.

use std::io;
use std::time::Duration;

use insula_agent::Request;
use insula_agent::container::{ContainerAnswer, ContainerRequest};
use insula_agent::frame::{self, FrameError, Reader};
use insula_base::error::Error;
use insula_driver::name::Name;
use vsock::VsockStream;

/// Time that an agent has to answer, besides what it waits for itself: it is one of many programs of a
/// node that is busy, and may have to run CRIU first.
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);

/// Sends a request by a new connection, and returns the answer.
///
/// # Errors
/// When the agent refuses it, with its reason, or does not answer in time.
pub(super) fn ask(
    node: &Name,
    stream: &VsockStream,
    timeout: Duration,
    request: ContainerRequest,
) -> Result<ContainerAnswer, Error> {
    let attempt = || -> Result<Option<ContainerAnswer>, FrameError> {
        stream.set_read_timeout(Some(timeout))?;
        frame::write(stream, &Request::Container(request))?;
        Reader::new(stream).read()
    };
    match attempt() {
        Ok(Some(ContainerAnswer::Refused(reason))) => Err(refused(node, &reason)),
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(unanswered(node).because(io::Error::from(io::ErrorKind::UnexpectedEof))),
        Err(FrameError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
            let why = format!("{} s have passed", timeout.as_secs());
            Err(unanswered(node).because(why))
        }
        Err(error) => Err(unanswered(node).because(error)),
    }
}

/// The error of an agent that does not do it.
pub(super) fn refused(node: &Name, reason: &str) -> Error {
    let reason = reason.escape_debug();
    Error::new(format!("the agent of node '{node}' reports: {reason}"))
}

/// The error of an agent that does not answer.
pub(super) fn unanswered(node: &Name) -> Error {
    Error::new(format!("the agent of node '{node}' did not answer")).hint(format!(
        "`insula logs {node}` shows what the node does; an agent of an older Insula has no \
         containers: build its image again"
    ))
}
