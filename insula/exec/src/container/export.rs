//! Writing a container to a folder, from which it can be restored: by Insula, or by plain CRIU.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use insula_agent::container::{Dumped, IMAGES, MoveStep};
use insula_base::error::Error;
use insula_base::root::Root;
use insula_checkpoint::{Checkpoint, Description};
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_virtio::PacketHold;

use super::ask::refused;
use super::base_agent;
use super::check::{check_container, check_node_alone, processor};
use super::peer::Peer;
use super::ports;
use super::processes::check_is_whole;
use super::record::{self, ContainerRecord, Records};
use super::settle::source_has_it;
use super::start::check_node;
use super::transfer::{as_it_is, until_not_busy};
use crate::agent::Location;

/// A container to be written to a folder.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointRequest<'a> {
    /// Its name.
    pub name: &'a Name,
    /// The folder: a new or an empty one.
    pub folder: &'a Path,
    /// Whether it goes on afterwards; otherwise it is removed when all of it is on the disk.
    pub leave_running: bool,
}

/// A container that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Time from the request to dump it until it went on or was removed.
    pub stood_still: Duration,
    /// Bytes of the folder's files.
    pub bytes: u64,
}

/// What every failure before the last step leaves.
const GOES_ON: &str = "the container goes on, and nothing was kept";

/// Writes a container to a folder.
///
/// # Errors
/// When it cannot be dumped, or the folder cannot be written; the container goes on.
pub fn checkpoint(
    driver: &Driver,
    root: &Root,
    request: &CheckpointRequest<'_>,
) -> Result<Written, Error> {
    let _lock = record::lock_moves(root)?;
    let record = as_it_is(driver, root, request.name)?;
    check(driver, &record)?;
    let is_new = make_folder(request.folder)?;
    let dumped = until_not_busy(|| Dump::make(driver, &record, request.folder));
    let finished = dumped.and_then(|dump| match request.leave_running {
        true => Ok(dump.resume(driver)),
        false => dump.remove(driver, root),
    });
    if finished.is_err() {
        clear(request.folder, is_new);
    }
    finished
}

fn check(driver: &Driver, record: &ContainerRecord) -> Result<(), Error> {
    let name = &record.name;
    check_is_whole(record)?;
    if let Location::Node(node) = &record.node {
        check_node(driver, node)?;
    }
    check_node_alone(driver, &record.node)
        .and_then(|()| check_container(driver, &record.node, name))
        .map_err(|error| {
            let what = format!("the container '{name}' cannot be dumped");
            error.context(what).unchanged()
        })
}

/// A container that was dumped to a folder, and stands still.
struct Dump<'a> {
    record: &'a ContainerRecord,
    from: Peer<'a>,
    began: Instant,
    hold: Option<PacketHold>,
    bytes: u64,
}

impl<'a> Dump<'a> {
    /// Dumps it. On failure it goes on.
    fn make(driver: &Driver, record: &'a ContainerRecord, folder: &Path) -> Result<Self, Error> {
        let began = Instant::now();
        let hold = record.address.map(PacketHold::begin).transpose();
        let hold = hold
            .map_err(|error| not_dumped(record, Error::new("its packets go on").because(error)))?;
        match copy(driver, record, folder) {
            Ok((from, bytes)) => Ok(Self {
                record,
                from,
                began,
                hold,
                bytes,
            }),
            Err(error) => {
                release(driver, record, hold);
                Err(not_dumped(record, error))
            }
        }
    }

    /// Has it go on.
    fn resume(self, driver: &Driver) -> Written {
        // The end of the connection tells its node.
        drop(self.from);
        release(driver, self.record, self.hold);
        Written {
            stood_still: self.began.elapsed(),
            bytes: self.bytes,
        }
    }

    /// Has its node remove it. From then on it is in the folder only.
    fn remove(mut self, driver: &Driver, root: &Root) -> Result<Written, Error> {
        let released = self.from.step(MoveStep::Release);
        drop(self.from);
        if let Err(error) = released {
            // A node that does not tell has removed it, or has ended with it, or is about to.
            if source_has_it(driver, self.record).unwrap_or(false) {
                release(driver, self.record, self.hold);
                return Err(not_dumped(self.record, error));
            }
        }
        Records::lock(root)?.remove(&self.record.name)?;
        ports::closed(root, self.record);
        if self.record.node == Location::Base {
            base_agent::end_if_unused(root);
        }
        Ok(Written {
            stood_still: self.began.elapsed(),
            bytes: self.bytes,
        })
    }
}

/// Sends on what was held, once it goes on.
fn release(driver: &Driver, record: &ContainerRecord, hold: Option<PacketHold>) {
    let _ = source_has_it(driver, record);
    if let (Some(hold), Ok(port)) = (hold, record.node.port(driver)) {
        // Those that are lost come again from their senders.
        let _ = hold.release(port);
    }
}

fn not_dumped(record: &ContainerRecord, error: Error) -> Error {
    let context = format!("the container '{}' was not dumped", record.name);
    error.context(context).leaving(GOES_ON)
}

/// Has it dumped and its files written. Returns its node's agent, and the size of the files in bytes.
fn copy<'a>(
    driver: &Driver,
    record: &'a ContainerRecord,
    folder: &Path,
) -> Result<(Peer<'a>, u64), Error> {
    let bytes_max = record.node.memory_bytes(driver)?;
    let processor = processor(driver, &record.node)?;
    let mut from = Peer::connect(driver, &record.node)?;
    let dumped = from.dump(&record.name)?;
    from.receive(folder, bytes_max)?;
    let description = Description {
        version: Description::version(),
        name: record.name.to_string(),
        address: record.address,
        publish: record.publish.iter().map(ToString::to_string).collect(),
        command: record.command.clone(),
        created_unix_s: record.created_unix_s,
        dumped_unix_s: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |now| now.as_secs()),
        kernel: record.node.release(driver)?,
        output: output(&record.node, dumped)?,
        processor,
    };
    let bytes = complete(folder, &description)?;
    Ok((from, bytes))
}

fn output(node: &Location, dumped: Dumped) -> Result<String, Error> {
    match insula_checkpoint::is_pipe(&dumped.output) {
        true => Ok(dumped.output),
        false => Err(refused(node, "its output is no pipe")),
    }
}

/// Completes a folder in which a container's files are, and has it written to the disk.
fn complete(folder: &Path, description: &Description) -> Result<u64, Error> {
    flatten(folder).map_err(|error| unwritten(folder).because(error))?;
    let checkpoint = Checkpoint::complete(folder, description);
    let checkpoint = checkpoint.map_err(|error| unwritten(folder).because(error))?;
    let synced = fs::File::open(folder).and_then(|folder| Ok(rustix::fs::syncfs(folder)?));
    synced.map_err(|error| unwritten(folder).because(error))?;
    let names = checkpoint.images().chain(checkpoint.logs());
    let sizes = names.map(|name| checkpoint.file(name).map(|(_, size)| size));
    let size: Result<u64, _> = sizes.sum();
    size.map_err(|error| unwritten(folder).because(error))
}

/// Moves images to where plain CRIU looks for them. Nobody else can have changed the folder.
fn flatten(folder: &Path) -> io::Result<()> {
    let images = folder.join(IMAGES);
    if !fs::symlink_metadata(&images)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    for image in fs::read_dir(&images)? {
        let image = image?;
        fs::rename(image.path(), folder.join(image.file_name()))?;
    }
    fs::remove_dir(images)
}

/// Makes a folder that only its owner may read; whether it is a new one.
fn make_folder(path: &Path) -> Result<bool, Error> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let is_empty = fs::read_dir(path).map(|mut entries| entries.next().is_none());
            match is_empty {
                Ok(true) => Ok(false),
                Ok(false) => Err(Error::new(format!("{} is not empty", path.display()))
                    .untouched()
                    .hint("give it a new folder")),
                Err(error) => Err(unwritten(path).because(error).untouched()),
            }
        }
        Err(error) => Err(unwritten(path).because(error).untouched()),
    }
}

/// Removes what was written.
fn clear(folder: &Path, is_new: bool) {
    if is_new {
        let _ = fs::remove_dir_all(folder);
        return;
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let _ = match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        };
    }
}

fn unwritten(folder: &Path) -> Error {
    Error::new(format!("the folder {} cannot be written", folder.display()))
}
