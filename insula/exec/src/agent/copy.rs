//! Copying files between the base, Linux nodes and containers.

use std::fmt;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use insula_agent::copy::{Copied, CopyMessage, PackError, Target, UnpackError, pack, unpack};
use insula_agent::frame::{self, FrameError, Reader};
use insula_agent::{Receive, Request};
use insula_base::error::Error;
use insula_driver::Driver;
use insula_driver::name::Name;
use socket2::Socket;

use super::location::Location;
use super::place::name_of;

/// An end of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyEnd {
    /// A path on the base.
    Base(PathBuf),
    /// One in a node or a container.
    There(AgentPlace, PathBuf),
}

/// A node or a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPlace {
    /// Where.
    pub at: Location,
    /// The container there, if it is one.
    pub container: Option<Name>,
}

/// Copies a file or folder as `podman cp` does: into `to` if that is a folder, else to that path. A
/// `from` that ends in `/.` is the content of a folder. Modes are kept, except set-user-ID and
/// set-group-ID bits; owners are not.
///
/// # Errors
/// When a file cannot be read or written, or a connection fails.
pub fn copy(driver: &Driver, from: &CopyEnd, to: &CopyEnd) -> Result<Copied, Error> {
    match (from, to) {
        (CopyEnd::Base(_), CopyEnd::Base(_)) => Err(no_node()),
        (CopyEnd::There(at, from), CopyEnd::Base(to)) => {
            let mut source = AgentConnection::connect(driver, at, fetching(from))?;
            let name = name_of(from);
            let target = Target {
                path: to,
                name: name.as_deref(),
            };
            unpack(&mut source.reader, &target).map_err(|error| source.attribute(error))
        }
        (CopyEnd::Base(from), CopyEnd::There(at, to)) => {
            let mut target = AgentConnection::connect(driver, at, storing(from, to))?;
            let copied = target.send_all(from)?;
            target.finish().map(|_| copied)
        }
        (CopyEnd::There(source, from), CopyEnd::There(target, to)) => {
            let mut source = AgentConnection::connect(driver, source, fetching(from))?;
            let mut target = AgentConnection::connect(driver, target, storing(from, to))?;
            let copied = source.forward(&mut target)?;
            target.finish().map(|_| copied)
        }
    }
}

fn fetching(from: &Path) -> Request {
    Request::Send(from.as_os_str().to_owned().into_vec())
}

fn storing(from: &Path, to: &Path) -> Request {
    Request::Receive(Receive {
        path: to.as_os_str().to_owned().into_vec(),
        name: name_of(from).map(OsStringExt::into_vec),
    })
}

/// A connection to an agent for one copy.
struct AgentConnection<'a> {
    at: &'a Location,
    stream: Socket,
    reader: Reader<Socket>,
}

impl<'a> AgentConnection<'a> {
    fn connect(driver: &Driver, place: &'a AgentPlace, request: Request) -> Result<Self, Error> {
        let at = &place.at;
        let stream = at.connect(driver)?;
        let failed = |error: io::Error| connection_failed(at, error);
        let request = match &place.container {
            None => request,
            Some(container) => Request::In {
                container: container.to_string(),
                request: Box::new(request),
            },
        };
        frame::write(&stream, &request).map_err(failed)?;
        let reader = Reader::new(stream.try_clone().map_err(failed)?);
        Ok(Self { at, stream, reader })
    }

    fn failed(&self, source: impl Into<FrameError>) -> Error {
        connection_failed(self.at, source)
    }

    /// Attributes an unpack error to this agent.
    fn attribute(&self, error: UnpackError) -> Error {
        match error {
            UnpackError::Frame(source) => self.failed(source),
            UnpackError::Truncated => disconnected(self.at),
            UnpackError::Failed(reason) => reported(self.at, &reason),
            error => interrupted(error.to_string()),
        }
    }

    fn send(&self, message: &CopyMessage<'_>) -> Result<(), Error> {
        frame::write(&self.stream, message).map_err(|error| self.failed(error))
    }

    /// Sends files of the base. A read error is sent to the agent as well.
    fn send_all(&self, from: &Path) -> Result<Copied, Error> {
        match pack(from, &mut |message| frame::write(&self.stream, message)) {
            Ok(copied) => self.send(&CopyMessage::End(copied)).map(|()| copied),
            Err(PackError::Send(error)) => Err(self.failed(error)),
            Err(error) => {
                // The agent also cleans up when the connection ends.
                let _ = self.send(&CopyMessage::Failed(&error.to_string()));
                Err(interrupted(error.to_string()))
            }
        }
    }

    /// Forwards what the agent sends to another one.
    fn forward(&mut self, to: &mut AgentConnection<'_>) -> Result<Copied, Error> {
        loop {
            let at = self.at;
            let read = self.reader.read();
            let read = read.map_err(|source| connection_failed(at, source))?;
            let message = read.ok_or_else(|| disconnected(at))?;
            to.send(&message)?;
            match message {
                CopyMessage::End(copied) => return Ok(copied),
                CopyMessage::Failed(reason) => {
                    return Err(reported(at, reason.escape_debug()));
                }
                _ => {}
            }
        }
    }

    /// Waits for the agent's final report.
    fn finish(&mut self) -> Result<(), Error> {
        let at = self.at;
        let read = self.reader.read();
        match read.map_err(|source| connection_failed(at, source))? {
            Some(CopyMessage::End(_)) => Ok(()),
            Some(CopyMessage::Failed(reason)) => Err(reported(at, reason.escape_debug())),
            Some(_) => Err(interrupted(UnpackError::InvalidOrder.to_string())),
            None => Err(disconnected(at)),
        }
    }
}

/// The error for two paths of the base.
fn no_node() -> Error {
    Error::new("neither path is in a node or container")
        .leaving("nothing was copied")
        .hint("use NODE:PATH for one of them, or `cp`")
}

/// The error for files that cannot be read here, or written.
fn interrupted(what: String) -> Error {
    Error::new(what).hint("the files copied before are complete")
}

/// The error that the agent reports.
fn reported(at: &Location, reason: impl fmt::Display) -> Error {
    interrupted(format!("{} reports: {reason}", at.agent()))
}

fn connection_failed(at: &Location, source: impl Into<FrameError>) -> Error {
    Error::new(format!("the connection to {} failed", at.kernel()))
        .because(source.into())
        .leaving("the copy is incomplete")
}

/// The error for a node, or an agent, that has ended.
fn disconnected(at: &Location) -> Error {
    let kernel = at.kernel();
    let what = format!("{kernel} closed the connection before all was copied");
    Error::new(what).hint(
        "`insula ps -a` shows its state; an agent of an older Insula cannot copy: build its image \
         again",
    )
}
