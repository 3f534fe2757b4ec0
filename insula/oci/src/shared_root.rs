//! The root of a container in another one's node.
//!
//! A node gets folders of the base only at its start. So the roots of further containers are mounted within the folder that
//! it has: in the mount namespace of the process that stands for the node's container, where the agent has its own `/run`.
//! What serves that folder sees them, since mounts made there propagate to it (mount_namespaces(7)).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use insula_agent::pod::ROOTS;
use insula_base::error::Error;
use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount,
    mount_change, move_mount, open_tree, unmount,
};

use super::engine_view;
use super::mounts::ROOTFS;
use super::pod::Member;
use super::state::State;

/// Makes the place for further containers' roots in that of this one, whose node is to be started.
///
/// # Errors
/// When nothing can be mounted there.
pub(super) fn make_place() -> Result<(), Error> {
    let place = place();
    let made = is_folder(&place).and_then(|()| {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("tmpfs", &place, "tmpfs", flags, Some(c"mode=700"))?;
        Ok(mount_change(&place, MountPropagationFlags::SHARED)?)
    });
    made.map_err(|error| {
        Error::new(format!("nothing can be mounted at /{ROOTS}"))
            .because(error)
            .leaving("the container was not started")
    })
}

fn place() -> PathBuf {
    Path::new(ROOTFS).join(ROOTS)
}

/// No link, which would lead out of the root.
fn is_folder(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path)?.is_dir() {
        true => Ok(()),
        false => Err(io::ErrorKind::NotADirectory.into()),
    }
}

/// Mounts the root of this process's container in the one of its sandbox, and returns its name there.
///
/// # Errors
/// When it cannot be mounted; nothing is left.
pub(super) fn attach(member: &Member) -> Result<String, Error> {
    // No other container of this name runs, and no process has the id of this one.
    let name = format!("{}.{}", member.name, std::process::id());
    let place = place().join(&name);
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let failed = |error: io::Error| {
        let what = format!(
            "the container's files cannot be given to '{}'",
            member.sandbox
        );
        Error::new(what).because(error).nothing_kept()
    };
    let root = open_tree(CWD, ROOTFS, flags).map_err(|errno| failed(errno.into()))?;
    let attached = in_root_of(&member.sandbox, || {
        fs::create_dir(&place)?;
        let moved = move_mount(
            &root,
            "",
            CWD,
            &place,
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
        );
        moved.map_err(|errno| {
            let _ = fs::remove_dir(&place);
            errno.into()
        })
    });
    attached.map(|()| name).map_err(failed)
}

/// Takes the root of a container out of that of its sandbox, if it is there: the sandbox may have ended.
pub(super) fn detach(member: &Member) {
    let _ = in_root_of(&member.sandbox, || {
        for entry in fs::read_dir(place())? {
            let entry = entry?;
            let name = entry.file_name();
            if is_of(&name.to_string_lossy(), member.name.as_str()) {
                let _ = unmount(entry.path(), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
                // Or by the agent.
                let _ = fs::remove_dir(entry.path());
            }
        }
        Ok(())
    });
}

/// Whether a root's name is one of that container's.
fn is_of(root: &str, container: &str) -> bool {
    let rest = root
        .strip_prefix(container)
        .and_then(|rest| rest.strip_prefix('.'));
    rest.is_some_and(|pid| pid.parse::<u32>().is_ok())
}

/// Does something where the process that stands for that container has its files.
fn in_root_of<T: Send>(
    sandbox: &str,
    what: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let record = State::of(sandbox).record().map_err(io::Error::other)?;
    let record = record.ok_or(io::ErrorKind::NotFound)?;
    engine_view::in_root_of(&record, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_those_of_one_container() {
        assert!(is_of("web.12", "web"));
        for other in ["web", "web.", "web.x", "web.1.2", "web2.1", "we.1"] {
            assert!(!is_of(other, "web"), "{other}");
        }
    }

    #[test]
    fn a_link_is_no_place() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        assert!(is_folder(folder.path()).is_ok());
        assert!(is_folder(&link).is_err());
        assert!(is_folder(&folder.path().join("none")).is_err());
    }
}
