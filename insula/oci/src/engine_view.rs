//! What engines see of a container on the base: its files, where the mount namespace of the process that stands for it begins.
//!
//! That process has the base's files, since it starts a node. But who enters its mount namespace, as `podman cp` does, takes what
//! is there for the container's. So the container's root is mounted over that process' own: a process' root stays what it is when
//! something is mounted over it, and who enters the namespace gets what was mounted last (`mntns_install()` of fs/namespace.c).
//!
//! What the node's kernel shows, and what is in its memory, cannot be seen from the base. In its place are folders that can only be
//! read, with what the ordinary runtime needs to start a further process there.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;

use insula_agent::view::Volume;
use insula_base::error::Error;
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, makedev, mkdirat, mknodat, open, statat};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change,
    mount_remount, move_mount, open_tree,
};
use rustix::process::{chroot, fchdir};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::mount_points::{open as open_place, open_existing};
use super::mounts::{OF_MEMORY, ROOTFS};
use super::state::Record;

/// A copy of a mount with those below it.
const COPY: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE
    .union(OpenTreeFlags::AT_RECURSIVE)
    .union(OpenTreeFlags::OPEN_TREE_CLOEXEC);
const DEV: &str = "/dev";
/// Where `/dev/ptmx` finds the terminals that it makes.
const TERMINALS: &str = "/dev/pts";
/// Devices in place of the node's, and their numbers (Documentation/admin-guide/devices.txt).
const DEVICES: [(&str, (u32, u32)); 2] = [("null", (1, 3)), ("ptmx", (5, 2))];

/// Shows the container's root, with these volumes in place, to who enters this process' mount namespace.
///
/// # Errors
/// It cannot be mounted.
pub(super) fn show(volumes: &[Volume]) -> Result<(), Error> {
    show_all(volumes).map_err(|error| {
        Error::new("the container's files cannot be shown to its engine")
            .because(error)
            .leaving("the container was not started")
    })
}

fn show_all(volumes: &[Volume]) -> io::Result<()> {
    let copies = OF_MEMORY.map(|memory| copies(volumes, memory).map(|copies| (memory, copies)));
    let root = open_tree(CWD, ROOTFS, COPY)?;
    attach(&root, CWD, Path::new("/"))?;
    // The roots of a pod's further containers are none of this one's.
    let alone = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change(path(&root), alone)?;
    cover(&root, "/sys", |_| Ok(()))?;
    for copied in copies {
        let (memory, copies) = copied?;
        cover(&root, memory, |folder| {
            if memory == DEV {
                make_devices(folder)?;
            }
            let mut copies = copies.iter();
            copies.try_for_each(|(place, copy)| reveal(folder, place, copy))
        })?;
    }
    show_processes(&root)
}

/// Copies of those volumes that are in a folder of the node's memory, and their places there.
fn copies(volumes: &[Volume], memory: &str) -> io::Result<Vec<(PathBuf, OwnedFd)>> {
    let folder = Path::new(ROOTFS).join(memory.trim_start_matches('/'));
    let places = volumes.iter().filter_map(|volume| {
        let place = Path::new(&volume.path).strip_prefix(memory);
        place.ok().map(Path::to_owned)
    });
    let copied = places.map(|place| {
        let copy = open_tree(CWD, folder.join(&place), COPY)?;
        Ok((place, copy))
    });
    copied.collect()
}

/// Mounts an empty folder that can only be read over one of the root, filled by `fill` before.
fn cover(
    root: &OwnedFd,
    name: &str,
    fill: impl FnOnce(&OwnedFd) -> io::Result<()>,
) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    let Some(place) = place_of(root, name)? else {
        return Ok(());
    };
    mount(
        "tmpfs",
        path(&place),
        "tmpfs",
        flags,
        Some(c"mode=755,size=64k"),
    )?;
    // What was opened before is below.
    let Some(folder) = place_of(root, name)? else {
        return Ok(());
    };
    fill(&folder)?;
    Ok(mount_remount(
        path(&folder),
        flags | MountFlags::RDONLY,
        "",
    )?)
}

/// A folder of the root; a link that leads nowhere has none.
fn place_of(root: &OwnedFd, name: &str) -> io::Result<Option<OwnedFd>> {
    match open_existing(root, Path::new(name)) {
        Ok(place) => Ok(Some(place)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn make_devices(folder: &OwnedFd) -> io::Result<()> {
    for (name, (major, minor)) in DEVICES {
        let mode = Mode::from_raw_mode(0o666);
        mknodat(
            folder,
            name,
            FileType::CharacterDevice,
            mode,
            makedev(major, minor),
        )?;
    }
    let terminals = open_tree(CWD, TERMINALS, COPY)?;
    mkdirat(folder, "pts", Mode::from_raw_mode(0o755))?;
    attach(&terminals, folder, Path::new("pts"))
}

/// Mounts a copy of a mount where it is in the node's memory.
fn reveal(memory: &OwnedFd, place: &Path, copy: &OwnedFd) -> io::Result<()> {
    let stat = statat(copy, "", AtFlags::EMPTY_PATH)?;
    let is_folder = FileType::from_raw_mode(stat.st_mode).is_dir();
    let place = open_place(memory, &Path::new("/").join(place), is_folder)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(copy, "", &place, "", flags)?)
}

/// The ordinary runtime, and what it executes, look at their own descriptors there.
fn show_processes(root: &OwnedFd) -> io::Result<()> {
    let Some(place) = place_of(root, "/proc")? else {
        return Ok(());
    };
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    Ok(mount("proc", path(&place), "proc", flags, None)?)
}

fn attach(mount: &OwnedFd, folder: impl AsFd, place: &Path) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(move_mount(mount, "", folder, place, flags)?)
}

/// A path to what is open, on which can be mounted.
fn path(opened: &OwnedFd) -> PathBuf {
    Path::new("/proc/self/fd").join(opened.as_raw_fd().to_string())
}

/// The root of the process that stands for a container: the base's files, and the container's.
///
/// # Errors
/// There is no such process.
pub(super) fn root_of(record: &Record) -> io::Result<OwnedFd> {
    let pid = record.pid().ok_or(io::ErrorKind::NotFound)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(open(format!("/proc/{pid}/root"), flags, Mode::empty())?)
}

/// Does something with that root, in the mount namespace of that process.
///
/// # Errors
/// There is no such process, or what fails in it.
pub(super) fn in_root_of<T: Send>(
    record: &Record,
    what: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let pid = record.pid().ok_or(io::ErrorKind::NotFound)?;
    let namespace = File::open(format!("/proc/{pid}/ns/mnt"))?;
    let root = root_of(record)?;
    let within = || {
        // The mounts of a thread that shares its root with others cannot be changed.
        unshare(CloneFlags::CLONE_FS)?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
        fchdir(&root)?;
        chroot(".")?;
        what()
    };
    let done = thread::scope(|scope| scope.spawn(within).join());
    done.unwrap_or_else(|_| Err(io::Error::other("a thread has failed")))
}
