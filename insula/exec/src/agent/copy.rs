//! Copying files between the base and Linux nodes.

use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use insula_agent::copy::{Copied, CopyMessage, PackError, Target, UnpackError, pack, unpack};
use insula_agent::frame::{self, FrameError, Reader};
use insula_agent::{Receive, Request};
use insula_driver::Driver;
use insula_driver::name::Name;
use vsock::VsockStream;

use super::connect::{ConnectError, to_agent};
use super::place::{Place, name_of};

/// Why a copy failed.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// Neither path is in a node.
    #[error(
        "neither path is in a node; nothing was copied\nuse NODE:PATH for one of them, or `cp`"
    )]
    NoNode,
    /// There is no connection to an agent.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The files of the base cannot be read.
    #[error("{0}\nthe files copied before are complete")]
    Pack(PackError),
    /// The received files cannot be written.
    #[error("{0}\nthe files copied before are complete")]
    Unpack(UnpackError),
    /// The agent reports an error.
    #[error("the agent of node '{node}' reports: {reason}\nthe files copied before are complete")]
    Agent {
        /// The node.
        node: Name,
        /// Why.
        reason: String,
    },
    /// The connection failed.
    #[error("the connection to node '{node}' failed: {source}; the copy is incomplete")]
    Connection {
        /// The node.
        node: Name,
        /// Why.
        source: FrameError,
    },
    /// The node or its agent has ended.
    #[error(
        "the node '{0}' closed the connection before all was copied\n\
         `insula ps -a` shows its state; an agent of an older Insula cannot \
         copy: build its image again"
    )]
    Disconnected(Name),
}

/// Copies a file or folder as `podman cp` does: into `to` if that is a folder, else to that path. A
/// `from` that ends in `/.` is the content of a folder. Modes are kept, except set-user-ID and
/// set-group-ID bits; owners are not.
///
/// # Errors
/// [`CopyError`].
pub fn copy(driver: &Driver, from: &Place, to: &Place) -> Result<Copied, CopyError> {
    match (from, to) {
        (Place::Base(_), Place::Base(_)) => Err(CopyError::NoNode),
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
    stream: VsockStream,
    reader: Reader<VsockStream>,
}

impl<'a> AgentConnection<'a> {
    fn connect(driver: &Driver, node: &'a Name, request: &Request) -> Result<Self, CopyError> {
        let stream = to_agent(driver, node)?;
        let failed = |source: io::Error| CopyError::Connection {
            node: node.clone(),
            source: source.into(),
        };
        frame::write(&stream, request).map_err(failed)?;
        let reader = Reader::new(stream.try_clone().map_err(failed)?);
        Ok(Self {
            node,
            stream,
            reader,
        })
    }

    fn failed(&self, source: impl Into<FrameError>) -> CopyError {
        CopyError::Connection {
            node: self.node.clone(),
            source: source.into(),
        }
    }

    /// Attributes an unpack error to this agent.
    fn attribute(&self, error: UnpackError) -> CopyError {
        match error {
            UnpackError::Frame(source) => self.failed(source),
            UnpackError::Truncated => CopyError::Disconnected(self.node.clone()),
            UnpackError::Failed(reason) => CopyError::Agent {
                node: self.node.clone(),
                reason,
            },
            error => CopyError::Unpack(error),
        }
    }

    fn send(&self, message: &CopyMessage<'_>) -> Result<(), CopyError> {
        frame::write(&self.stream, message).map_err(|error| self.failed(error))
    }

    /// Sends files of the base. A read error is sent to the agent as well.
    fn send_all(&self, from: &Path) -> Result<Copied, CopyError> {
        match pack(from, &mut |message| frame::write(&self.stream, message)) {
            Ok(copied) => self.send(&CopyMessage::End(copied)).map(|()| copied),
            Err(PackError::Send(error)) => Err(self.failed(error)),
            Err(error) => {
                // The agent also cleans up when the connection ends.
                let _ = self.send(&CopyMessage::Failed(&error.to_string()));
                Err(CopyError::Pack(error))
            }
        }
    }

    /// Forwards what the agent sends to another one.
    fn forward(&mut self, to: &mut AgentConnection<'_>) -> Result<Copied, CopyError> {
        loop {
            let node = self.node;
            let read = self.reader.read().map_err(|source| CopyError::Connection {
                node: node.clone(),
                source,
            })?;
            let message = read.ok_or_else(|| CopyError::Disconnected(node.clone()))?;
            to.send(&message)?;
            match message {
                CopyMessage::End(copied) => return Ok(copied),
                CopyMessage::Failed(reason) => {
                    return Err(CopyError::Agent {
                        node: node.clone(),
                        reason: reason.escape_debug().to_string(),
                    });
                }
                _ => {}
            }
        }
    }

    /// Waits for the agent's final report.
    fn finish(&mut self) -> Result<(), CopyError> {
        let node = self.node;
        let read = self.reader.read().map_err(|source| CopyError::Connection {
            node: node.clone(),
            source,
        })?;
        match read {
            Some(CopyMessage::End(_)) => Ok(()),
            Some(CopyMessage::Failed(reason)) => Err(CopyError::Agent {
                node: node.clone(),
                reason: reason.escape_debug().to_string(),
            }),
            Some(_) => Err(CopyError::Unpack(UnpackError::InvalidOrder)),
            None => Err(CopyError::Disconnected(node.clone())),
        }
    }
}
