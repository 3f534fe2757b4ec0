//! Copying files between this system and Linux nodes.

use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use insula_agent::copy::{Copied, PackError, Parcel, Target, UnpackError, pack, unpack};
use insula_agent::frame::{self, FrameError, Reader};
use insula_agent::{Request, Take};
use vsock::VsockStream;

use super::connect::{ConnectError, to_agent};
use super::place::{Place, name_of};
use crate::driver::Driver;
use crate::name::Name;

/// Why not all was copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// Neither is in a node.
    #[error("neither place is in a node; nothing was copied\nsay NODE:PATH, or use `cp`")]
    NoNode,
    /// An agent cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// What is here cannot be read.
    #[error("{0}\nwhat was copied until then is whole, file by file")]
    Pack(PackError),
    /// What comes from a node cannot be written here.
    #[error("{0}\nwhat was copied until then is whole, file by file")]
    Unpack(UnpackError),
    /// The agent of a node cannot do its part.
    #[error(
        "the agent of node '{node}' says: {reason}\nwhat was copied until then is whole, file by file"
    )]
    Agent {
        /// Which.
        node: Name,
        /// Why.
        reason: String,
    },
    /// The connection has failed.
    #[error("the connection to node '{node}' has failed: {source}; not all was copied")]
    Connection {
        /// Which.
        node: Name,
        /// How.
        source: FrameError,
    },
    /// The node, or its agent, is gone.
    #[error(
        "the node '{0}' has left before all was copied\n\
         `insula ps -a` shows what became of it; an agent of an older Insula does not know how to \
         copy: build its image anew"
    )]
    Left(Name),
}

/// Copies a file, or a folder with all that is in it, as `podman cp` does: into `to` if that is a
/// folder, else to that path. With `/.` at its end `from` stands for the content of a folder. Modes
/// are kept but for the bits that make a program run as another user; owners are not.
///
/// # Errors
/// [`CopyError`].
pub fn copy(driver: &Driver, from: &Place, to: &Place) -> Result<Copied, CopyError> {
    match (from, to) {
        (Place::Here(_), Place::Here(_)) => Err(CopyError::NoNode),
        (Place::In(node, from), Place::Here(to)) => {
            let mut source = Peer::reach(driver, node, &fetching(from))?;
            let name = name_of(from);
            let target = Target {
                path: to,
                name: name.as_deref(),
            };
            unpack(&mut source.reader, &target).map_err(|error| source.explain(error))
        }
        (Place::Here(from), Place::In(node, to)) => {
            let mut target = Peer::reach(driver, node, &storing(from, to))?;
            let copied = target.send_all(from)?;
            target.answer().map(|_| copied)
        }
        (Place::In(source, from), Place::In(target, to)) => {
            let mut source = Peer::reach(driver, source, &fetching(from))?;
            let mut target = Peer::reach(driver, target, &storing(from, to))?;
            let copied = source.pass_on(&mut target)?;
            target.answer().map(|_| copied)
        }
    }
}

fn fetching(from: &Path) -> Request {
    Request::Send(from.as_os_str().to_owned().into_vec())
}

fn storing(from: &Path, to: &Path) -> Request {
    Request::Take(Take {
        path: to.as_os_str().to_owned().into_vec(),
        name: name_of(from).map(OsStringExt::into_vec),
    })
}

/// A node's agent that does its part.
struct Peer<'a> {
    node: &'a Name,
    stream: VsockStream,
    reader: Reader<VsockStream>,
}

impl<'a> Peer<'a> {
    fn reach(driver: &Driver, node: &'a Name, request: &Request) -> Result<Self, CopyError> {
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

    /// Why what it sends was not unpacked.
    fn explain(&self, error: UnpackError) -> CopyError {
        match error {
            UnpackError::Frame(source) => self.failed(source),
            UnpackError::Cut => CopyError::Left(self.node.clone()),
            UnpackError::Failed(reason) => CopyError::Agent {
                node: self.node.clone(),
                reason,
            },
            error => CopyError::Unpack(error),
        }
    }

    fn send(&self, parcel: &Parcel<'_>) -> Result<(), CopyError> {
        frame::write(&self.stream, parcel).map_err(|error| self.failed(error))
    }

    /// Sends what is here. If that cannot be read, the agent is told so, too.
    fn send_all(&self, from: &Path) -> Result<Copied, CopyError> {
        match pack(from, &mut |parcel| frame::write(&self.stream, parcel)) {
            Ok(copied) => self.send(&Parcel::End(copied)).map(|()| copied),
            Err(PackError::Send(error)) => Err(self.failed(error)),
            Err(error) => {
                // It cleans up as well when the connection ends.
                let _ = self.send(&Parcel::Failed(&error.to_string()));
                Err(CopyError::Pack(error))
            }
        }
    }

    /// Passes what it sends to another one.
    fn pass_on(&mut self, to: &mut Peer<'_>) -> Result<Copied, CopyError> {
        loop {
            let node = self.node;
            let read = self.reader.read().map_err(|source| CopyError::Connection {
                node: node.clone(),
                source,
            })?;
            let parcel = read.ok_or_else(|| CopyError::Left(node.clone()))?;
            to.send(&parcel)?;
            match parcel {
                Parcel::End(copied) => return Ok(copied),
                Parcel::Failed(reason) => {
                    return Err(CopyError::Agent {
                        node: node.clone(),
                        reason: reason.escape_debug().to_string(),
                    });
                }
                _ => {}
            }
        }
    }

    /// What it says when it has all.
    fn answer(&mut self) -> Result<(), CopyError> {
        let node = self.node;
        let read = self.reader.read().map_err(|source| CopyError::Connection {
            node: node.clone(),
            source,
        })?;
        match read {
            Some(Parcel::End(_)) => Ok(()),
            Some(Parcel::Failed(reason)) => Err(CopyError::Agent {
                node: node.clone(),
                reason: reason.escape_debug().to_string(),
            }),
            Some(_) => Err(CopyError::Unpack(UnpackError::Disorder)),
            None => Err(CopyError::Left(node.clone())),
        }
    }
}
