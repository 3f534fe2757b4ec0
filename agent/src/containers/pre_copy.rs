//! The source of a move whose memory is copied while the container runs.
//!
//! CRIU writes the memory in rounds: the first one all of it, each other what has changed since
//! (kernel: Documentation/admin-guide/mm/soft-dirty.rst). The last dump has what has changed after the last
//! round, and all else but memory. Each folder of images names the one before it as its parent.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use insula_agent::container::{DumpAnswer, PreCopyStep};
use insula_agent::copy::{CopyMessage, pack_part};
use insula_agent::frame::{self, FrameError, Reader};
use rustix::process::Pid;
use socket2::Socket;

use super::criu::{Criu, WORK};
use super::one::{Container, folder};
use super::source::{Decided, description, dump_and_send, refuse, send_files};
use super::table::Containers;

/// What the names of the rounds' folders begin with; the number follows.
const ROUND: &str = "round-";
/// What the names of images begin with that have the content of memory.
const PAGES: &str = "pages-";

/// Takes steps until the container was dumped, or the connection ends.
pub(super) fn serve(
    containers: &Containers,
    name: &str,
    stream: &Socket,
    mut reader: Reader<Socket>,
) -> Result<(), FrameError> {
    let found = containers.find(name);
    let found = found.and_then(|one| one.running().map(|pid| (one, pid)));
    let (container, pid) = match found {
        Ok(found) => found,
        Err(error) => return refuse(&error, stream),
    };
    let alone = container.lock_copying();
    let what = DumpAnswer::Dumped(description(&container, pid));
    let taken = frame::write(stream, &what).map_err(FrameError::from);
    let taken = taken.and_then(|()| follow(containers, &container, stream, &mut reader));
    // After a move it is gone with the container's.
    let _ = remove_rounds(&folder(name));
    drop(alone);
    taken
}

fn follow(
    containers: &Containers,
    container: &Arc<Container>,
    stream: &Socket,
    reader: &mut Reader<Socket>,
) -> Result<(), FrameError> {
    let mut rounds = 0;
    while let Some(step) = reader.read()? {
        match step {
            PreCopyStep::Round => {
                copy(container, rounds, stream)?;
                rounds += 1;
            }
            PreCopyStep::Last => {
                let parent = newest(rounds);
                let parent = parent.as_deref();
                let decided = dump_and_send(containers, container, parent, (stream, reader))?;
                if decided == Decided::Ended {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Copies the memory that has changed since the rounds before, and sends it.
fn copy(container: &Container, rounds: u32, stream: &Socket) -> Result<(), FrameError> {
    let (folder, name) = (folder(&container.spec.name), round(rounds));
    let parent = newest(rounds);
    let written = container
        .running()
        .and_then(|pid| write(container, pid, (&folder, &name), parent.as_deref()));
    if let Err(error) = written {
        return Ok(frame::write(
            stream,
            &CopyMessage::Failed(&error.to_string()),
        )?);
    }
    send_files(stream, |send| pack_part(&folder, &name, send))?;
    Ok(forget_pages(&folder.join(name))?)
}

fn write(
    container: &Container,
    pid: Pid,
    (folder, name): (&Path, &str),
    parent: Option<&str>,
) -> io::Result<()> {
    let mut criu = Criu::with_images(folder, name, "pre-dump", &[])?;
    criu.reads(container, pid)?;
    if let Some(parent) = parent {
        criu.changes_since(parent);
    }
    criu.run()?;
    fs::remove_dir_all(folder.join(WORK))
}

fn round(number: u32) -> String {
    format!("{ROUND}{number}")
}

/// The newest of so many rounds.
fn newest(rounds: u32) -> Option<String> {
    rounds.checked_sub(1).map(round)
}

/// Gives up the memory of pages that were sent: of a round before it CRIU reads only which there are.
fn forget_pages(images: &Path) -> io::Result<()> {
    for image in fs::read_dir(images)? {
        let image = image?;
        if image.file_name().to_string_lossy().starts_with(PAGES) {
            File::create(image.path())?;
        }
    }
    Ok(())
}

/// Removes the images of all rounds from a container's folder.
pub(super) fn remove_rounds(folder: &Path) -> io::Result<()> {
    for part in fs::read_dir(folder)? {
        let part = part?;
        if part.file_name().to_string_lossy().starts_with(ROUND) {
            fs::remove_dir_all(part.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_given_up_and_rounds_removed() {
        let folder = tempfile::tempdir().unwrap();
        let images = folder.path().join(round(0));
        fs::create_dir(&images).unwrap();
        for name in ["pages-1.img", "pagemap-1.img"] {
            fs::write(images.join(name), "content").unwrap();
        }
        fs::write(folder.path().join("log"), "line").unwrap();
        forget_pages(&images).unwrap();
        let length = |name: &str| fs::metadata(images.join(name)).unwrap().len();
        assert_eq!((length("pages-1.img"), length("pagemap-1.img")), (0, 7));
        remove_rounds(folder.path()).unwrap();
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert!(!images.exists() && left == 1);
    }

    #[test]
    fn each_round_follows_the_one_before() {
        assert_eq!(newest(0), None);
        assert_eq!(newest(3), Some(round(2)));
    }
}
