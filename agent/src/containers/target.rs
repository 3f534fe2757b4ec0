//! The target of a move: a container is restored, and goes on when the source has removed it.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use insula_agent::container::{
    ContainerAnswer, ContainerSpec, IMAGES, Images, Imported, MoveStep, Phase,
};
use insula_agent::copy::{CopyMessage, Target, UnpackError, unpack};
use insula_agent::frame::{self, FrameError, Reader};
use rustix::process::Pid;
use socket2::Socket;

use super::cgroup::{Cgroup, JOIN};
use super::criu::{Criu, NETWORK, WORK, restored_process};
use super::one::{Container, Files, Parent, folder, remove_folder};
use super::table::Containers;
use super::{FOLDER, namespaces, pre_copy, tree};
use crate::program::SELF;

/// Where CRIU finds the root of the container.
const ROOT: &str = "/run/insula/root";

/// Where a container comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Another node, which has it until it is told to release it.
    Node,
    /// A folder of the base: nobody else has it.
    Folder,
}

/// A container that comes.
#[derive(Debug)]
pub(super) struct Arrival<'a> {
    imported: Imported,
    origin: Origin,
    /// The folder that is its root.
    root: &'a Path,
}

impl<'a> Arrival<'a> {
    pub(super) fn new(imported: Imported, origin: Origin, root: &'a Path) -> Self {
        Self {
            imported,
            origin,
            root,
        }
    }
}

/// Receives a container's files and restores it; keeps it if told so, and otherwise removes it.
pub(super) fn serve(
    containers: &Containers,
    Arrival {
        imported,
        origin,
        root,
    }: Arrival<'_>,
    stream: &Socket,
    mut reader: Reader<Socket>,
) -> Result<(), FrameError> {
    let name = imported.spec.name.clone();
    let mut received = false;
    let restored = containers.add(&name, || {
        received = true;
        receive(&name, &mut reader).and_then(|()| restore(imported, root))
    });
    if !received {
        skip(&mut reader);
    }
    let container = match restored {
        Ok(container) => container,
        Err(error) => {
            let refused = ContainerAnswer::Refused(error.to_string());
            return Ok(frame::write(stream, &refused)?);
        }
    };
    let mut kept = false;
    let followed = follow(&container, origin, (stream, &mut reader), &mut kept);
    if !kept {
        containers.discard(&container)?;
    }
    followed
}

/// Reads files that are not wanted: closing a socket with unread data resets it, and an answer would
/// be lost.
fn skip(reader: &mut Reader<Socket>) {
    while let Ok(Some(message)) = reader.read() {
        if matches!(message, CopyMessage::End(_) | CopyMessage::Failed(_)) {
            return;
        }
    }
}

/// Takes the steps that follow a restore.
fn follow(
    container: &Container,
    origin: Origin,
    (stream, reader): (&Socket, &mut Reader<Socket>),
    kept: &mut bool,
) -> Result<(), FrameError> {
    frame::write(stream, &ContainerAnswer::Done)?;
    while let Some(step) = reader.read()? {
        match step {
            MoveStep::Keep => {
                container.keep_restored()?;
                *kept = true;
            }
            MoveStep::Resume if *kept || origin == Origin::Folder => {
                container.resume()?;
                *kept = true;
            }
            _ => return Ok(()),
        }
        frame::write(stream, &ContainerAnswer::Done)?;
    }
    Ok(())
}

fn receive(name: &str, reader: &mut Reader<Socket>) -> io::Result<()> {
    fs::create_dir_all(FOLDER)?;
    let target = Target {
        path: Path::new(FOLDER),
        name: Some(name.as_ref()),
    };
    unpack(reader, &target).map(drop).map_err(|error| {
        let _ = remove_folder(name);
        if !matches!(error, UnpackError::Failed(_)) {
            skip(reader);
        }
        io::Error::other(error.to_string())
    })
}

/// Restores a container from the files in its folder.
fn restore(imported: Imported, root: &Path) -> io::Result<Arc<Container>> {
    let name = imported.spec.name.clone();
    let cgroup = Cgroup::of(&name);
    let restored = cgroup.create().and_then(|()| restore_files(imported, root));
    if restored.is_err() {
        // What there is of it.
        namespaces::remove_cards(&cgroup);
        let _ = cgroup.kill().and_then(|()| cgroup.remove());
        let _ = remove_folder(&name);
    }
    restored
}

fn restore_files(imported: Imported, root: &Path) -> io::Result<Arc<Container>> {
    let Imported {
        spec,
        images,
        close_connections,
    } = imported;
    let (pid, files) = match images {
        Images::Container(output) => restore_container(&spec, root, &output, close_connections)?,
        Images::Tree => tree::restore(&spec, root, close_connections)?,
    };
    for part in [IMAGES, WORK] {
        fs::remove_dir_all(folder(&spec.name).join(part))?;
    }
    pre_copy::remove_rounds(&folder(&spec.name))?;
    Container::adopt(spec, (pid, Parent::Server), Phase::Restored, files)
}

/// Restores a whole container; its first process.
fn restore_container(
    spec: &ContainerSpec,
    root: &Path,
    output: &str,
    close_connections: bool,
) -> io::Result<(Pid, Files)> {
    let folder = folder(&spec.name);
    let address = spec.address;
    let network = namespaces::in_thread(move || {
        namespaces::enter_new_network(address, namespaces::Carrier::Off)
    })?;
    let (reader, writer) = io::pipe()?;
    let mut criu = Criu::new(&folder, "restore", &[SELF, JOIN, &spec.name])?;
    criu.restores(close_connections)
        .arg("--restore-sibling")
        .args(["--root", ROOT])
        .args(["--inherit-fd", &format!("fd[0]:{NETWORK}")])
        .args(["--inherit-fd", &format!("fd[1]:{output}")])
        .stdin(network.try_clone()?)
        .stdout(writer);
    let root = root.to_owned();
    let restored = namespaces::in_thread(move || {
        namespaces::enter_mounts(&root, ROOT)?;
        criu.run()
    });
    if restored.is_err() {
        // Its processes may have ended with CRIU, and their connections keep the namespace.
        let _ = namespaces::remove_card(&network);
    }
    restored?;
    let files = Files {
        network,
        output: File::from(OwnedFd::from(reader)),
    };
    Ok((restored_process(&folder.join(WORK))?, files))
}
