//! The source of a move: a container is dumped, and goes on or is removed.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use insula_agent::container::{ContainerAnswer, DumpAnswer, Dumped, MoveStep};
use insula_agent::copy::{CopyMessage, PackError, pack};
use insula_agent::frame::{self, FrameError, Reader};
use vsock::VsockStream;

use super::criu::{Criu, NETWORK};
use super::table::{Container, Containers, folder};

/// Dumps a container and sends its files; removes it if told so, and otherwise has it go on.
pub(super) fn serve(
    containers: &Containers,
    name: &str,
    stream: &VsockStream,
    mut reader: Reader<VsockStream>,
) -> Result<(), FrameError> {
    let found = containers.find(name).and_then(|one| {
        let pid = one.begin_move()?;
        Ok((one, pid.as_raw_nonzero().get()))
    });
    let (container, pid) = match found {
        Ok(found) => found,
        Err(error) => return refuse(&error, stream),
    };
    let answered = dump_and_send(&container, pid, stream, &mut reader);
    let folder = folder(name);
    if matches!(answered, Ok(Some(MoveStep::Release))) {
        containers.discard(&container)?;
        return Ok(frame::write(stream, &ContainerAnswer::Done)?);
    }
    container.resume()?;
    for part in ["images", "work"] {
        // It may not have come so far.
        let _ = fs::remove_dir_all(folder.join(part));
    }
    answered.map(drop)
}

fn refuse(error: &io::Error, stream: &VsockStream) -> Result<(), FrameError> {
    Ok(frame::write(
        stream,
        &DumpAnswer::Refused(error.to_string()),
    )?)
}

/// Dumps it, sends its files and waits for the next step; none if the connection ends.
fn dump_and_send(
    container: &Container,
    pid: i32,
    stream: &VsockStream,
    reader: &mut Reader<VsockStream>,
) -> Result<Option<MoveStep>, FrameError> {
    let folder = folder(&container.spec.name);
    let dumped = match dump(container, pid, &folder) {
        Ok(dumped) => dumped,
        Err(error) => return refuse(&error, stream).map(|()| None),
    };
    frame::write(stream, &DumpAnswer::Dumped(dumped))?;
    match pack(&folder, &mut |message| frame::write(stream, message)) {
        Ok(copied) => frame::write(stream, &CopyMessage::End(copied))?,
        Err(PackError::Send(error)) => return Err(error.into()),
        Err(error) => frame::write(stream, &CopyMessage::Failed(&error.to_string()))?,
    }
    reader.read()
}

/// Dumps a container to files in its folder, and leaves it standing still. On failure CRIU has it
/// go on.
fn dump(container: &Container, pid: i32, folder: &Path) -> io::Result<Dumped> {
    let output = fs::read_link(format!("/proc/{pid}/fd/1")).unwrap_or_default();
    let network = container.network.metadata()?.ino();
    let mut criu = Criu::new(&container.spec.name, folder, "dump")?;
    criu.command()
        .args(["--tree", &pid.to_string(), "--leave-stopped"])
        .args(["--external", &format!("net[{network}]:{NETWORK}")]);
    criu.run()?;
    container.log.drain(&container.output)?;
    fs::remove_dir_all(folder.join("work"))?;
    Ok(Dumped {
        spec: container.spec.clone(),
        output: output.to_string_lossy().into_owned(),
    })
}
