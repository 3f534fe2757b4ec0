//! Copying files between the base and Linux nodes.

use std::fmt;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use insula_agent::copy::{Copied, CopyMessage, PackError, Target, UnpackError, pack, unpack};
use insula_agent::frame::{self, FrameError, Reader};
use insula_agent::{Receive, Request};
use insula_base::error::Error;
use insula_driver::Driver;
use insula_driver::name::Name;
use socket2::Socket;

use super::connect::to_agent;
use super::place::{Place, name_of};

/// Copies a file or folder as `podman cp` does: into `to` if that is a folder, else to that path. A
/// `from` that ends in `/.` is the content of a folder. Modes are kept, except set-user-ID and
/// set-group-ID bits; owners are not.
///
/// # Errors
/// When a file cannot be read or written, or a connection fails.
pub fn copy(driver: &Driver, from: &Place, to: &Place) -> Result<Copied, Error> {
    match (from, to) {
        (Place::Base(_), Place::Base(_)) => Err(no_node()),
        (Place::Node(node, from), Place::Base(to)) => {
            let mut source = AgentConnection::connect(driver, node, &fetching(from))?;
            let name = name_of(from);
            let target = Target {
                path: to,
                name: name.as_deref(),
            };
            unpack(&mut source.reader, &target).map_err(|error| source.attribute(error))
        }
        (Place::Base(from), Place::Node(node, to)) => {
            let mut target = AgentConnection::connect(driver, node, &storing(from, to))?;
            let copied = target.send_all(from)?;
            target.finish().map(|_| copied)
        }
        (Place::Node(source, from), Place::Node(target, to)) => {
            let mut source = AgentConnection::connect(driver, source, &fetching(from))?;
            let mut target = AgentConnection::connect(driver, target, &storing(from, to))?;
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
    node: &'a Name,
    stream: Socket,
    reader: Reader<Socket>,
}

impl<'a> AgentConnection<'a> {
    fn connect(driver: &Driver, node: &'a Name, request: &Request) -> Result<Self, Error> {
        let stream = to_agent(driver, node)?;
        let failed = |error: io::Error| connection_failed(node, error);
        frame::write(&stream, request).map_err(failed)?;
        let reader = Reader::new(stream.try_clone().map_err(failed)?);
        Ok(Self {
            node,
            stream,
            reader,
        })
    }

    fn failed(&self, source: impl Into<FrameError>) -> Error {
        connection_failed(self.node, source)
    }

    /// Attributes an unpack error to this agent.
    fn attribute(&self, error: UnpackError) -> Error {
        match error {
            UnpackError::Frame(source) => self.failed(source),
            UnpackError::Truncated => disconnected(self.node),
            UnpackError::Failed(reason) => reported(self.node, &reason),
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
            let node = self.node;
            let read = self.reader.read();
            let read = read.map_err(|source| connection_failed(node, source))?;
            let message = read.ok_or_else(|| disconnected(node))?;
            to.send(&message)?;
            match message {
                CopyMessage::End(copied) => return Ok(copied),
                CopyMessage::Failed(reason) => {
                    return Err(reported(node, reason.escape_debug()));
                }
                _ => {}
            }
        }
    }

    /// Waits for the agent's final report.
    fn finish(&mut self) -> Result<(), Error> {
        let node = self.node;
        let read = self.reader.read();
        match read.map_err(|source| connection_failed(node, source))? {
            Some(CopyMessage::End(_)) => Ok(()),
            Some(CopyMessage::Failed(reason)) => Err(reported(node, reason.escape_debug())),
            Some(_) => Err(interrupted(UnpackError::InvalidOrder.to_string())),
            None => Err(disconnected(node)),
        }
    }
}

/// The error for two paths of the base.
fn no_node() -> Error {
    Error::new("neither path is in a node")
        .leaving("nothing was copied")
        .hint("use NODE:PATH for one of them, or `cp`")
}

/// The error for files that cannot be read here, or written.
fn interrupted(what: String) -> Error {
    Error::new(what).hint("the files copied before are complete")
}

/// The error that the agent reports.
fn reported(node: &Name, reason: impl fmt::Display) -> Error {
    interrupted(format!("the agent of node '{node}' reports: {reason}"))
}

fn connection_failed(node: &Name, source: impl Into<FrameError>) -> Error {
    Error::new(format!("the connection to node '{node}' failed"))
        .because(source.into())
        .leaving("the copy is incomplete")
}

/// The error for a node, or an agent, that has ended.
fn disconnected(node: &Name) -> Error {
    let what = format!("the node '{node}' closed the connection before all was copied");
    Error::new(what).hint(
        "`insula ps -a` shows its state; an agent of an older Insula cannot copy: build its image \
         again",
    )
}
