//! Putting a container's mounts in place, within its root whatever links it has.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use insula_agent::view::Volume;
use insula_base::error::Error;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, move_mount};

use super::mounts::{Placed, hidden, is_covered};

/// Where what a path leads to is told.
const DESCRIPTORS: &str = "/proc/self/fd";
/// What every failure leaves.
const STARTED: &str = "the container was not started";

/// Makes places for mounts in the root, each a folder or a file, where they are missing.
///
/// # Errors
/// The first that cannot be made.
pub(super) fn make_all(
    rootfs: &Path,
    places: impl Iterator<Item = (PathBuf, bool)>,
) -> Result<(), Error> {
    let root = folder(rootfs).map_err(|error| failed(rootfs, error))?;
    for (path, is_folder) in places {
        open(&root, &path, is_folder).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::new(format!("nothing can be mounted at {}", path.display()))
        .because(error)
        .leaving(STARTED)
}

/// Moves each mount from where it waits to its place in the root. Returns what the node's agent mounts once more.
///
/// # Errors
/// The first that cannot be moved; the others stay where they are.
pub(super) fn place(rootfs: &Path, mounts: &[Placed]) -> Result<Vec<Volume>, Error> {
    let root = folder(rootfs).map_err(|error| failed(rootfs, error))?;
    let mut volumes = Vec::new();
    for mount in mounts {
        let is_folder = mount.waits_at.is_dir();
        let place = open(&root, &mount.destination, is_folder);
        let place = place.map_err(|error| failed(&mount.destination, error))?;
        let inside = inside(&root, &place).map_err(|error| failed(&mount.destination, error))?;
        if is_covered(&inside) {
            return Err(hidden(&mount.destination).leaving(STARTED));
        }
        volumes.push(Volume {
            path: inside.to_string_lossy().into_owned(),
            flags: mount.flags,
        });
        if mount.copies_up {
            copy_up(&place, &mount.waits_at).map_err(|error| failed(&mount.destination, error))?;
        }
        let to_itself = MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(CWD, &mount.waits_at, &place, "", to_itself)
            .map_err(|errno| failed(&mount.destination, errno.into()))?;
    }
    Ok(volumes)
}

/// Copies what is in a folder, with all that is said about it, and follows no link.
fn copy_up(folder: &OwnedFd, to: &Path) -> io::Result<()> {
    // The path of the descriptor in another process.
    let from = format!("/proc/{}/fd/{}/.", std::process::id(), folder.as_raw_fd());
    let mut cp = Command::new("cp");
    let copied = cp
        .args(["-a", &from])
        .arg(to)
        .stdin(Stdio::null())
        .output()?;
    match copied.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(
            String::from_utf8_lossy(&copied.stderr).trim().to_owned(),
        )),
    }
}

/// Opens a container's root.
pub(super) fn folder(path: &Path) -> io::Result<OwnedFd> {
    Ok(File::open(path)?.into())
}

/// Opens the path in the root, as a program with that root would. What is missing is made: folders, the last one
/// a file unless it is to be one, too.
pub(super) fn open(root: &OwnedFd, path: &Path, is_folder: bool) -> io::Result<OwnedFd> {
    let names: Vec<_> = path.iter().skip(1).collect();
    let mut parent = PathBuf::from(".");
    for (number, name) in names.iter().enumerate() {
        let path = parent.join(name);
        match open_existing(root, &path) {
            Err(Errno::NOENT) => {
                let within = open_existing(root, &parent)?;
                make(
                    &within,
                    Path::new(name),
                    is_folder || number + 1 < names.len(),
                )?;
            }
            found => drop(found?),
        }
        parent = path;
    }
    Ok(open_existing(root, &parent)?)
}

/// Opens what is at a path of the root, as a program with that root would.
pub(super) fn open_existing(root: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    openat2(root, path, flags, Mode::empty(), within)
}

fn make(parent: &OwnedFd, name: &Path, is_folder: bool) -> Result<(), Errno> {
    if is_folder {
        return mkdirat(parent, name, Mode::from_raw_mode(0o755));
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::from_raw_mode(0o644)).map(drop)
}

/// The path of a place in the root, to which links may have led.
pub(super) fn inside(root: &OwnedFd, place: &OwnedFd) -> io::Result<PathBuf> {
    let path = |descriptor: &OwnedFd| {
        let number = descriptor.as_fd().as_raw_fd();
        std::fs::read_link(format!("{DESCRIPTORS}/{number}"))
    };
    let (root, place) = (path(root)?, path(place)?);
    let inside = place.strip_prefix(&root).map_err(io::Error::other)?;
    Ok(Path::new("/").join(inside))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn opened(root: &Path, path: &str, is_folder: bool) -> io::Result<PathBuf> {
        let place = open(&folder(root)?, Path::new(path), is_folder)?;
        fs::read_link(format!("{DESCRIPTORS}/{}", place.as_raw_fd()))
    }

    #[test]
    fn mount_points_are_made() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        assert_eq!(opened(&root, "/a/b", true).unwrap(), root.join("a/b"));
        assert!(root.join("a/b").is_dir());
        opened(&root, "/etc/hosts", false).unwrap();
        assert!(root.join("etc/hosts").is_file());
        // They are there already.
        opened(&root, "/etc/hosts", false).unwrap();
        assert!(opened(&root, "/etc/hosts/x", false).is_err());
    }

    #[test]
    fn what_memory_covers_is_copied() {
        let (root, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(root.path().join("file"), "content").unwrap();
        symlink("/etc/passwd", root.path().join("link")).unwrap();
        copy_up(&folder(root.path()).unwrap(), memory.path()).unwrap();
        let copied = fs::read_to_string(memory.path().join("file")).unwrap();
        assert_eq!(copied, "content");
        let link = fs::read_link(memory.path().join("link")).unwrap();
        assert_eq!(link, Path::new("/etc/passwd"));
    }

    #[test]
    fn links_do_not_lead_out_of_the_root() {
        let outside = tempfile::tempdir().unwrap();
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        symlink(outside.path(), root.join("absolute")).unwrap();
        symlink("../../../..", root.join("up")).unwrap();
        symlink("/run", root.join("of-the-node")).unwrap();
        fs::create_dir(root.join("run")).unwrap();
        // As a program would find: the link's end is in the root, where it is missing.
        assert!(opened(&root, "/absolute/x", true).is_err());
        assert_eq!(opened(&root, "/up/x", true).unwrap(), root.join("x"));
        assert_eq!(outside.path().read_dir().unwrap().count(), 0);
        let (descriptor, place) = (folder(&root).unwrap(), Path::new("/of-the-node/x"));
        let place = open(&descriptor, place, true).unwrap();
        assert_eq!(inside(&descriptor, &place).unwrap(), Path::new("/run/x"));
    }
}
