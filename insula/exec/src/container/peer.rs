//! A connection to the agent at one end of a move.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use insula_agent::Request;
use insula_agent::container::{
    ContainerAnswer, ContainerRequest, DumpAnswer, Dumped, IMAGES, Imported, MoveStep, PreCopyStep,
};
use insula_agent::copy::{Copied, CopyMessage, Target, unpack};
use insula_agent::frame::{self, BYTES_MAX, FrameError, Reader};
use insula_base::error::{Error, Kind};
use insula_checkpoint::Checkpoint;
use insula_driver::Driver;
use insula_driver::name::Name;
use serde::{Deserialize, Serialize};
use socket2::Socket;

use super::ask::{refused, unanswered};
use crate::agent::{Location, in_root};

/// Time that CRIU has for a dump or a restore.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Whether no files follow others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IsLast {
    Yes,
    No,
}

/// The agent at one end of a move. Dropping it ends the connection, with which that end gives up.
pub(super) struct Peer<'a> {
    node: &'a Location,
    stream: Socket,
    reader: Reader<Socket>,
}

impl<'a> Peer<'a> {
    pub(super) fn connect(driver: &Driver, node: &'a Location) -> Result<Self, Error> {
        let stream = node.connect_at_once(driver)?;
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
        self.dumped()
    }

    /// Begins to copy the container's memory while it runs.
    pub(super) fn pre_copy(&mut self, name: &Name) -> Result<Dumped, Error> {
        let request = ContainerRequest::PreCopy(name.to_string());
        self.send(&Request::Container(request))?;
        self.dumped()
    }

    /// Has it copy memory that has changed; files follow.
    pub(super) fn pre_copy_round(&mut self) -> Result<(), Error> {
        self.send(&PreCopyStep::Round)
    }

    /// Has the container dumped after that; its files follow.
    pub(super) fn pre_copy_last(&mut self) -> Result<Dumped, Error> {
        self.send(&PreCopyStep::Last)?;
        self.dumped()
    }

    fn dumped(&mut self) -> Result<Dumped, Error> {
        match receive(&mut self.reader, self.node)? {
            DumpAnswer::Dumped(dumped) => Ok(dumped),
            DumpAnswer::Refused(reason) => Err(refused(self.node, &reason)),
            DumpAnswer::Busy => Err(busy()),
        }
    }

    /// Has it restore a container, whose files follow; on the base in the folder `rootfs`.
    pub(super) fn restore(&mut self, dumped: Dumped, rootfs: Option<&Path>) -> Result<(), Error> {
        let request = in_root(self.node, rootfs, ContainerRequest::Restore(dumped));
        self.send(&Request::Container(request))
    }

    /// Forwards files of a container to the target; their size in bytes. After the last ones the target has
    /// restored it.
    pub(super) fn forward(&mut self, to: &mut Peer<'_>, last: IsLast) -> Result<u64, Error> {
        let mut bytes = 0;
        loop {
            let message: CopyMessage<'_> = receive(&mut self.reader, self.node)?;
            if last == IsLast::Yes || !matches!(message, CopyMessage::End(_)) {
                to.send(&message)?;
            }
            match message {
                CopyMessage::Bytes(content) => bytes += content.len() as u64,
                CopyMessage::End(_) => break,
                CopyMessage::Failed(reason) => return Err(refused(self.node, reason)),
                _ => {}
            }
        }
        if last == IsLast::Yes {
            to.answer()?;
        }
        Ok(bytes)
    }

    /// Receives the files of a container that was dumped into a folder; at most as many bytes as its node
    /// can have.
    pub(super) fn receive(&mut self, folder: &Path, bytes_max: u64) -> Result<(), Error> {
        let target = Target {
            path: folder,
            name: None,
        };
        let stream = self.stream.try_clone();
        let stream = stream.map_err(|error| unanswered(self.node).because(error))?;
        // A reader takes no more than it is asked for, so the other one goes on after it.
        let mut reader = Reader::new(stream.take(bytes_max));
        let received = unpack(&mut reader, &target);
        received.map(drop).map_err(|error| {
            Error::new(format!("its files did not all come from '{}'", self.node)).because(error)
        })
    }

    /// Has a container restored of the files of a folder; their size in bytes.
    pub(super) fn import(
        &mut self,
        imported: Imported,
        rootfs: Option<&Path>,
        checkpoint: &Checkpoint,
    ) -> Result<u64, Error> {
        let request = in_root(self.node, rootfs, ContainerRequest::Import(imported));
        self.send(&Request::Container(request))?;
        let mut send = |message: &CopyMessage<'_>| self.send(message);
        let sent = send_checkpoint(checkpoint, &mut send);
        match sent {
            Ok(bytes) => {
                self.send(&CopyMessage::End(Copied::default()))?;
                self.answer().map(|()| bytes)
            }
            Err(error) => {
                self.send(&CopyMessage::Failed("its files cannot be read"))?;
                // It is of no interest any more.
                let _ = self.answer();
                Err(error)
            }
        }
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

/// Mode bits of the files of a container.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Sends the files of a checkpoint; their size in bytes.
fn send_checkpoint(
    checkpoint: &Checkpoint,
    send: &mut dyn FnMut(&CopyMessage<'_>) -> Result<(), Error>,
) -> Result<u64, Error> {
    for path in ["", IMAGES] {
        send(&CopyMessage::Folder {
            path: path.as_bytes(),
            mode: FOLDER_MODE,
        })?;
    }
    let images = checkpoint
        .images()
        .map(|name| (name, format!("{IMAGES}/{name}")));
    let logs = checkpoint.logs().map(|name| (name, name.to_owned()));
    let mut all = 0;
    for (name, path) in images.chain(logs) {
        send(&CopyMessage::File {
            path: path.as_bytes(),
            mode: FILE_MODE,
            modified_unix_s: 0,
        })?;
        all += send_file(checkpoint, name, send)?;
    }
    Ok(all)
}

/// Sends a file's content; its size in bytes.
fn send_file(
    checkpoint: &Checkpoint,
    name: &str,
    send: &mut dyn FnMut(&CopyMessage<'_>) -> Result<(), Error>,
) -> Result<u64, Error> {
    let failed = || Error::new(format!("the file {name} cannot be read"));
    let (mut file, size) = checkpoint
        .file(name)
        .map_err(|error| failed().because(error))?;
    let (mut left, mut piece) = (size, vec![0; BYTES_MAX]);
    while left > 0 {
        let wanted = usize::try_from(left).map_or(BYTES_MAX, |left| left.min(BYTES_MAX));
        // All that was checked, and nothing else.
        let read = file.read_exact(&mut piece[..wanted]);
        read.map_err(|error| failed().because(error))?;
        send(&CopyMessage::Bytes(&piece[..wanted]))?;
        left -= wanted as u64;
    }
    Ok(size)
}

/// The error of a container to which a connection is just being made.
fn busy() -> Error {
    Error::of(Kind::Unavailable, "a connection to it is just being made")
}

fn receive<'r, T: Deserialize<'r>>(
    reader: &'r mut Reader<Socket>,
    node: &Location,
) -> Result<T, Error> {
    match reader.read() {
        Ok(Some(message)) => Ok(message),
        Ok(None) => Err(unanswered(node)),
        Err::<_, FrameError>(error) => Err(unanswered(node).because(error)),
    }
}
