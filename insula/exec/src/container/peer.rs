//! A connection to the agent at one end of a move.

use std::time::Duration;

use insula_agent::Request;
use insula_agent::container::{ContainerAnswer, ContainerRequest, DumpAnswer, Dumped, MoveStep};
use insula_agent::copy::CopyMessage;
use insula_agent::frame::{self, FrameError, Reader};
use insula_base::error::{Error, Kind};
use insula_driver::Driver;
use insula_driver::name::Name;
use serde::{Deserialize, Serialize};
use vsock::VsockStream;

use super::ask::{refused, unanswered};
use crate::agent::to_agent_at_once;

/// Time that CRIU has for a dump or a restore.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The agent at one end of a move. Dropping it ends the connection, with which that end gives up.
pub(super) struct Peer<'a> {
    node: &'a Name,
    stream: VsockStream,
    reader: Reader<VsockStream>,
}

impl<'a> Peer<'a> {
    pub(super) fn connect(driver: &Driver, node: &'a Name) -> Result<Self, Error> {
        let stream = to_agent_at_once(driver, node)?;
        let attempt = || {
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            stream.try_clone()
        };
        let reader = attempt().map_err(|error| unanswered(node).because(error))?;
        Ok(Self {
            node,
            stream,
            reader: Reader::new(reader),
        })
    }

    fn send(&self, message: &impl Serialize) -> Result<(), Error> {
        let sent = frame::write(&self.stream, message);
        sent.map_err(|error| unanswered(self.node).because(error))
    }

    /// Has the container dumped; its files follow.
    pub(super) fn dump(&mut self, name: &Name) -> Result<Dumped, Error> {
        let request = ContainerRequest::Dump(name.to_string());
        self.send(&Request::Container(request))?;
        match receive(&mut self.reader, self.node)? {
            DumpAnswer::Dumped(dumped) => Ok(dumped),
            DumpAnswer::Refused(reason) => Err(refused(self.node, &reason)),
            DumpAnswer::Busy => Err(busy()),
        }
    }

    /// Forwards a container's files to the target, which restores it from them; their size in bytes.
    pub(super) fn forward(&mut self, to: &mut Peer<'_>, dumped: Dumped) -> Result<u64, Error> {
        to.send(&Request::Container(ContainerRequest::Restore(dumped)))?;
        let mut bytes = 0;
        loop {
            let message: CopyMessage<'_> = receive(&mut self.reader, self.node)?;
            to.send(&message)?;
            match message {
                CopyMessage::Bytes(content) => bytes += content.len() as u64,
                CopyMessage::End(_) => break,
                CopyMessage::Failed(reason) => return Err(refused(self.node, reason)),
                _ => {}
            }
        }
        to.answer()?;
        Ok(bytes)
    }

    /// Has it take a step.
    pub(super) fn step(&mut self, step: MoveStep) -> Result<(), Error> {
        self.send(&step)?;
        self.answer()
    }

    fn answer(&mut self) -> Result<(), Error> {
        match receive(&mut self.reader, self.node)? {
            ContainerAnswer::Refused(reason) => Err(refused(self.node, &reason)),
            _ => Ok(()),
        }
    }
}

/// The error of a container to which a connection is just being made.
fn busy() -> Error {
    Error::of(Kind::Unavailable, "a connection to it is just being made")
}

fn receive<'r, T: Deserialize<'r>>(
    reader: &'r mut Reader<VsockStream>,
    node: &Name,
) -> Result<T, Error> {
    match reader.read() {
        Ok(Some(message)) => Ok(message),
        Ok(None) => Err(unanswered(node)),
        Err::<_, FrameError>(error) => Err(unanswered(node).because(error)),
    }
}
