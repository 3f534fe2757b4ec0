//! The source of a move: a container is dumped, and goes on or is removed.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use insula_agent::container::{ContainerAnswer, DumpAnswer, Dumped, IMAGES, MoveStep};
use insula_agent::copy::{CopyMessage, PackError, pack};
use insula_agent::frame::{self, FrameError, Reader};
use vsock::VsockStream;

use super::cgroup::Cgroup;
use super::criu::{Criu, NETWORK};
use super::table::{Container, Containers, folder};
use super::{namespaces, timers};

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
    if has_unowned_connection(pid) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let mut criu = Criu::new(folder, "dump", &[])?;
    criu.command()
        .args(["--tree", &pid.to_string(), "--leave-running"])
        .arg("--freeze-cgroup")
        .arg(cgroup.path())
        .args(["--external", &format!("net[{network}]:{NETWORK}")]);
    criu.run()?;
    timers::rearm(&folder.join(IMAGES))?;
    container.log.drain(&container.output)?;
    fs::remove_dir_all(folder.join("work"))?;
    Ok(Dumped {
        spec: container.spec.clone(),
        output: output.to_string_lossy().into_owned(),
    })
}

/// States of a connection that is being made by a peer, and of a socket that listens.
const SYN_RECV: &str = "03";
const LISTEN: &str = "0A";
/// States of a socket whose last bytes are not confirmed: FIN_WAIT1, LAST_ACK and CLOSING.
const CLOSING: [&str; 3] = ["04", "09", "0B"];
/// Inode of a socket that no process has any more.
const NO_INODE: &str = "0";
/// Tables of connections in `/proc/PID/net`.
const TABLES: [&str; 2] = ["tcp", "tcp6"];

/// Whether a connection to the process's network is being made, or is not accepted yet, or one still
/// sends what a program wrote before it closed it: only the kernel has these, and CRIU dumps none of them.
fn has_unowned_connection(pid: i32) -> bool {
    let mut tables = TABLES
        .iter()
        .map(|table| format!("/proc/{pid}/net/{table}"));
    // A kernel without IPv6 has but one.
    tables.any(|table| fs::read_to_string(table).is_ok_and(|table| has_unowned(&table)))
}

/// The same of a table. As its received bytes a socket that listens has those not accepted.
fn has_unowned(table: &str) -> bool {
    let is_unowned = |line: &str| {
        let mut words = line.split_whitespace().skip(3);
        let (state, queues, inode) = (words.next(), words.next(), words.nth(4));
        match (state, queues) {
            (Some(SYN_RECV), _) => true,
            (Some(LISTEN), Some(queues)) => !queues.ends_with(":00000000"),
            (Some(state), _) => CLOSING.contains(&state) && inode == Some(NO_INODE),
            _ => false,
        }
    };
    table.lines().any(is_unowned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_only_the_kernel_has_are_seen() {
        let has_unowned = |state: &str, received: &str, inode: u32| {
            let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   \
                        uid  timeout inode\n";
            let line = format!(
                "   0: 00000000:0050 00000000:0000 {state} 00000000:{received} 00:00000000 00000000     \
                 0        0 {inode} 1 0000000000000000 100 0 0 10 0"
            );
            has_unowned(&format!("{head}{line}\n"))
        };
        assert!(has_unowned("03", "00000000", 0));
        assert!(has_unowned("0A", "00000001", 7));
        assert!(!has_unowned("0A", "00000000", 7));
        assert!(!has_unowned("01", "00000005", 7));
        for state in CLOSING {
            assert!(has_unowned(state, "00000000", 0));
            assert!(!has_unowned(state, "00000000", 7));
        }
    }
}
