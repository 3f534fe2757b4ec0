//! The source of a move: a container is dumped, and goes on or is removed.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use insula_agent::container::{ContainerAnswer, DumpAnswer, Dumped, MoveStep};
use insula_agent::copy::{CopyMessage, PackError, pack};
use insula_agent::frame::{self, FrameError, Reader};
use vsock::VsockStream;

use super::cgroup::Cgroup;
use super::criu::{Criu, NETWORK};
use super::namespaces;
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
    let folder = folder(name);
    let decided = match dump(&container, pid, &folder) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            go_on(&container, &folder)?;
            return Ok(frame::write(stream, &DumpAnswer::Busy)?);
        }
        Ok(dumped) => send(&folder, dumped, stream, &mut reader),
        Err(error) => {
            go_on(&container, &folder)?;
            return refuse(&error, stream);
        }
    };
    if matches!(decided, Ok(Some(MoveStep::Release))) {
        containers.discard(&container)?;
        return Ok(frame::write(stream, &ContainerAnswer::Done)?);
    }
    go_on(&container, &folder)?;
    decided.map(drop)
}

fn refuse(error: &io::Error, stream: &VsockStream) -> Result<(), FrameError> {
    let refused = DumpAnswer::Refused(error.to_string());
    Ok(frame::write(stream, &refused)?)
}

/// Has the container go on here.
fn go_on(container: &Container, folder: &Path) -> io::Result<()> {
    for part in ["images", "work"] {
        // It may not have come so far.
        let _ = fs::remove_dir_all(folder.join(part));
    }
    container.resume()
}

/// Sends its files and waits for the next step; none if the connection ends.
fn send(
    folder: &Path,
    dumped: Dumped,
    stream: &VsockStream,
    reader: &mut Reader<VsockStream>,
) -> Result<Option<MoveStep>, FrameError> {
    frame::write(stream, &DumpAnswer::Dumped(dumped))?;
    match pack(folder, &mut |message| frame::write(stream, message)) {
        Ok(copied) => frame::write(stream, &CopyMessage::End(copied))?,
        Err(PackError::Send(error)) => return Err(error.into()),
        Err(error) => frame::write(stream, &CopyMessage::Failed(&error.to_string()))?,
    }
    reader.read()
}

/// Dumps a container to files in its folder, and leaves it standing still, also on failure.
fn dump(container: &Container, pid: i32, folder: &Path) -> io::Result<Dumped> {
    let output = fs::read_link(format!("/proc/{pid}/fd/1")).unwrap_or_default();
    let network = container.network.metadata()?.ino();
    let cgroup = Cgroup::of(&container.spec.name);
    cgroup.freeze(true)?;
    // What came later than its state is dumped would be confirmed, and lost. Nobody is told so either.
    namespaces::take_card_down(&container.network)?;
    if has_request(&fs::read_to_string(format!("/proc/{pid}/net/tcp"))?) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let mut criu = Criu::new(folder, "dump", &[])?;
    criu.command()
        .args(["--tree", &pid.to_string(), "--leave-running"])
        .arg("--freeze-cgroup")
        .arg(cgroup.path())
        .args(["--external", &format!("net[{network}]:{NETWORK}")]);
    criu.run()?;
    container.log.drain(&container.output)?;
    fs::remove_dir_all(folder.join("work"))?;
    Ok(Dumped {
        spec: container.spec.clone(),
        output: output.to_string_lossy().into_owned(),
    })
}

/// State of a connection that is being made by a peer (`TCP_NEW_SYN_RECV` is shown as
/// `TCP_SYN_RECV`).
const SYN_RECV: &str = "03";

/// Whether a table of connections, as of `/proc/net/tcp`, has one that is being made by a peer.
fn has_request(table: &str) -> bool {
    let mut states = table
        .lines()
        .filter_map(|line| line.split_whitespace().nth(3));
    states.any(|state| state == SYN_RECV)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_seen() {
        let line =
            |state: &str| format!("   0: 00000000:0050 00000000:0000 {state} 00000000:00000000");
        let head = "  sl  local_address rem_address   st tx_queue rx_queue".to_owned();
        let table = |states: &[&str]| {
            let lines = states.iter().map(|state| line(state));
            std::iter::once(head.clone())
                .chain(lines)
                .collect::<Vec<_>>()
                .join("\n")
        };
        assert!(has_request(&table(&["0A", "03"])));
        assert!(!has_request(&table(&["0A", "01", "08"])));
    }
}
