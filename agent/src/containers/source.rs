//! The source of a move: a container is dumped, and goes on or is removed.

use std::fs;
use std::io;
use std::path::Path;

use insula_agent::container::{ContainerAnswer, DumpAnswer, Dumped, IMAGES, MoveStep};
use insula_agent::copy::{Copied, CopyMessage, PackError, pack};
use insula_agent::frame::{self, FrameError, Reader};
use rustix::process::Pid;
use socket2::Socket;

use super::cgroup::Cgroup;
use super::criu::{Criu, WORK};
use super::one::{Container, folder};
use super::pre_copy::remove_rounds;
use super::table::Containers;
use super::{namespaces, repair, timers};
use crate::log::log;

/// Dumps a container and sends its files; removes it if told so, and otherwise has it go on.
pub(super) fn serve(
    containers: &Containers,
    name: &str,
    stream: &Socket,
    mut reader: Reader<Socket>,
) -> Result<(), FrameError> {
    let container = match containers.find(name) {
        Ok(found) => found,
        Err(error) => return refuse(&error, stream),
    };
    let _alone = container.lock_copying();
    dump_and_send(containers, &container, None, (stream, &mut reader)).map(drop)
}

/// What has become of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decided {
    /// The container goes on here, or was removed.
    Ended,
    /// It goes on, since it was busy.
    Busy,
}

/// Dumps a container, beside images of its memory in the folder `parent` if there are, and sends its files;
/// removes it if told so, and otherwise has it go on.
pub(super) fn dump_and_send(
    containers: &Containers,
    container: &Container,
    parent: Option<&str>,
    (stream, reader): (&Socket, &mut Reader<Socket>),
) -> Result<Decided, FrameError> {
    let pid = match container.begin_move() {
        Ok(pid) => pid,
        Err(error) => return refuse(&error, stream).map(|()| Decided::Ended),
    };
    let folder = folder(&container.spec.name);
    let decided = match dump(container, pid, &folder, parent) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            go_on(container, &folder)?;
            frame::write(stream, &DumpAnswer::Busy)?;
            return Ok(Decided::Busy);
        }
        Ok(dumped) => send(&folder, dumped, stream, reader),
        Err(error) => {
            // Its programs may have ended by what has failed, which is told in any case.
            if let Err(error) = go_on(container, &folder) {
                log(&format!("container {}: {error}", container.spec.name));
            }
            return refuse(&error, stream).map(|()| Decided::Ended);
        }
    };
    if matches!(decided, Ok(Some(MoveStep::Release))) {
        containers.discard(container)?;
        frame::write(stream, &ContainerAnswer::Done)?;
        return Ok(Decided::Ended);
    }
    go_on(container, &folder)?;
    decided.map(|_| Decided::Ended)
}

pub(super) fn refuse(error: &io::Error, stream: &Socket) -> Result<(), FrameError> {
    let refused = DumpAnswer::Refused(error.to_string());
    Ok(frame::write(stream, &refused)?)
}

/// Has the container go on here.
fn go_on(container: &Container, folder: &Path) -> io::Result<()> {
    for part in [IMAGES, WORK] {
        // It may not have come so far.
        let _ = fs::remove_dir_all(folder.join(part));
    }
    repair::end(&container.spec.name);
    container.resume()
}

/// Sends its files and waits for the next step; none if the connection ends.
fn send(
    folder: &Path,
    dumped: Dumped,
    stream: &Socket,
    reader: &mut Reader<Socket>,
) -> Result<Option<MoveStep>, FrameError> {
    frame::write(stream, &DumpAnswer::Dumped(dumped))?;
    send_files(stream, |send| pack(folder, send))?;
    reader.read()
}

/// Sends files, and how that has ended.
pub(super) fn send_files(
    stream: &Socket,
    pack: impl FnOnce(&mut dyn FnMut(&CopyMessage<'_>) -> io::Result<()>) -> Result<Copied, PackError>,
) -> Result<(), FrameError> {
    match pack(&mut |message| frame::write(stream, message)) {
        Ok(copied) => frame::write(stream, &CopyMessage::End(copied))?,
        Err(PackError::Send(error)) => return Err(error.into()),
        Err(error) => frame::write(stream, &CopyMessage::Failed(&error.to_string()))?,
    }
    Ok(())
}

/// What there is to restore of a container with this first process.
pub(super) fn description(container: &Container, pid: Pid) -> Dumped {
    let pid = pid.as_raw_nonzero();
    let output = fs::read_link(format!("/proc/{pid}/fd/1")).unwrap_or_default();
    Dumped {
        spec: container.spec.clone(),
        output: output.to_string_lossy().into_owned(),
    }
}

/// Dumps a container to files in its folder, and leaves it standing still, also on failure.
fn dump(
    container: &Container,
    pid: Pid,
    folder: &Path,
    parent: Option<&str>,
) -> io::Result<Dumped> {
    let dumped = description(container, pid);
    let cgroup = Cgroup::of(&container.spec.name);
    cgroup.freeze(true).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::other("its programs have ended"),
        _ => error,
    })?;
    // What came later than its state is dumped would be confirmed, and lost. Nobody is told so either.
    namespaces::take_card_down(&container.network)?;
    if has_unowned_connection(pid.as_raw_nonzero().get()) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let mut criu = Criu::new(folder, "dump", &[])?;
    criu.reads(container, pid)?.arg("--leave-running");
    if let Some(parent) = parent {
        criu.changes_since(parent);
    }
    criu.run()?;
    timers::rearm(&folder.join(IMAGES))?;
    container.log.drain(&container.output)?;
    fs::remove_dir_all(folder.join(WORK))?;
    // The target has those.
    remove_rounds(folder)?;
    Ok(dumped)
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
