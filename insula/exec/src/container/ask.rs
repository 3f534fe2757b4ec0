//! Requests about containers to their kernel's agent.

use std::io;
use std::time::Duration;

use insula_agent::Request;
use insula_agent::base::LOG_FILE;
use insula_agent::container::{ContainerAnswer, ContainerRequest};
use insula_agent::frame::{self, FrameError, Reader};
use insula_base::error::Error;
use socket2::Socket;

use crate::agent::Location;

/// Time that an agent has to answer, besides what it waits for itself: it is one of many programs of a
/// node that is busy, and may have to run CRIU first.
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);

/// Sends a request by a new connection, and returns the answer.
///
/// # Errors
/// When the agent refuses it, with its reason, or does not answer in time.
pub(super) fn ask(
    at: &Location,
    stream: &Socket,
    timeout: Duration,
    request: ContainerRequest,
) -> Result<ContainerAnswer, Error> {
    let attempt = || -> Result<Option<ContainerAnswer>, FrameError> {
        stream.set_read_timeout(Some(timeout))?;
        frame::write(stream, &Request::Container(request))?;
        Reader::new(stream).read()
    };
    match attempt() {
        Ok(Some(ContainerAnswer::Refused(reason))) => Err(refused(at, &reason)),
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(unanswered(at).because(io::Error::from(io::ErrorKind::UnexpectedEof))),
        Err(FrameError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
            let why = format!("{} s have passed", timeout.as_secs());
            Err(unanswered(at).because(why))
        }
        Err(error) => Err(unanswered(at).because(error)),
    }
}

/// The error of an agent that does not do it.
pub(super) fn refused(at: &Location, reason: &str) -> Error {
    let reason = reason.escape_debug();
    Error::new(format!("{} reports: {reason}", at.agent()))
}

/// The error of an agent that does not answer.
pub(super) fn unanswered(at: &Location) -> Error {
    Error::new(format!("{} did not answer", at.agent())).hint(match at {
        Location::Base => format!("its log is {LOG_FILE}"),
        Location::Node(node) => format!(
            "`insula logs {node}` shows what the node does; an agent of an older Insula has no \
             containers: build its image again"
        ),
    })
}
