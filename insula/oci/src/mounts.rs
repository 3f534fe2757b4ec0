//! A container's mounts: which of them its node has, and where they wait to be put in place.

use std::path::{Component, Path, PathBuf};

use insula_base::error::Error;
use serde::{Deserialize, Serialize};

use super::config::Mount;
use super::view;

/// Folder of all that is the container's, in the root of the process that stands for it.
pub(super) const CONTAINER: &str = "/.container";
/// The container's root there.
pub(super) const ROOTFS: &str = "/.container/rootfs";

/// Types of file systems that show a kernel: the node's agent mounts those.
const OF_A_KERNEL: [&str; 7] = [
    "cgroup", "cgroup2", "devpts", "devtmpfs", "mqueue", "proc", "sysfs",
];
/// Folders that the node's agent mounts over those of the root.
pub(super) const OF_THE_NODE: [&str; 4] = ["/dev", "/proc", "/run", "/sys"];
/// Those of them where it mounts memory, in which mounts of the container can be.
pub(super) const OF_MEMORY: [&str; 2] = ["/dev", "/run"];
/// Those that show its kernel, also within the memory, in which there can be none.
const SHOW_A_KERNEL: [&str; 4] = ["/dev/mqueue", "/dev/pts", "/proc", "/sys"];
/// What engines put below them, and a container does not miss.
const NOT_MISSED: [&str; 3] = ["/dev/mqueue", "/dev/shm", "/run/lock"];

/// The option of a mount of memory that is to begin with what it covers.
const COPY_UP: &str = "tmpcopyup";

/// A mount of the container. It is made in a folder that only the runtime knows, and moved from there to where
/// it belongs, since a link on the way would otherwise lead out of the container's root.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Placed {
    /// Its path until then.
    pub(super) waits_at: PathBuf,
    /// Its path in the container.
    pub(super) destination: PathBuf,
    /// Its flags of mount(2) in the node.
    #[serde(default)]
    pub(super) flags: u32,
    /// Whether it begins with what it covers there.
    #[serde(default)]
    pub(super) copies_up: bool,
}

/// The mounts that the node has, each as it is to be made at first, and where it belongs.
pub(super) fn place(mounts: &[Mount]) -> Result<Vec<(Mount, Placed)>, Error> {
    let mut placed = Vec::new();
    for mount in mounts {
        let destination = normalized(&mount.destination)?;
        if is_of_the_node(mount, &destination)? {
            continue;
        }
        let waits_at = Path::new(CONTAINER).join(format!("mount-{}", placed.len()));
        let made = Mount {
            destination: waits_at.clone(),
            // It would copy what is at the first place, which is nothing.
            options: without(&mount.options, COPY_UP),
            ..mount.clone()
        };
        placed.push((
            made,
            Placed {
                waits_at,
                destination,
                flags: view::mount_flags(&mount.options).bits(),
                copies_up: mount.kind == "tmpfs" && mount.options.iter().any(|one| one == COPY_UP),
            },
        ));
    }
    Ok(placed)
}

/// The mounts of what the node's kernel shows, or of its memory, in the container's order.
pub(super) fn of_the_node(mounts: &[Mount]) -> Result<Vec<Mount>, Error> {
    let mut found = Vec::new();
    for mount in mounts {
        let destination = normalized(&mount.destination)?;
        let is_file_system = OF_A_KERNEL.contains(&mount.kind.as_str()) || mount.kind == "tmpfs";
        if is_file_system && is_of_the_node(mount, &destination)? {
            found.push(Mount {
                destination,
                ..mount.clone()
            });
        }
    }
    Ok(found)
}

/// Whether the node has its own in place of it.
fn is_of_the_node(mount: &Mount, destination: &Path) -> Result<bool, Error> {
    if OF_A_KERNEL.contains(&mount.kind.as_str()) {
        return Ok(true);
    }
    if !OF_THE_NODE.iter().any(|own| destination.starts_with(own)) {
        return Ok(false);
    }
    if mount.kind == "tmpfs" || NOT_MISSED.iter().any(|one| destination == Path::new(one)) {
        return Ok(true);
    }
    match is_covered(destination) {
        true => Err(hidden(destination)),
        false => Ok(false),
    }
}

/// Whether a place in the container is where its node has a file system of its own, and nothing can be mounted.
pub(super) fn is_covered(place: &Path) -> bool {
    OF_MEMORY.iter().any(|own| place == Path::new(own))
        || SHOW_A_KERNEL.iter().any(|own| place.starts_with(own))
}

/// An absolute path of names only, other than the root.
fn normalized(path: &Path) -> Result<PathBuf, Error> {
    let mut parts = path.components();
    let is_absolute = parts.next() == Some(Component::RootDir);
    let names: Vec<_> = parts.collect();
    let is_name = |part: &Component<'_>| matches!(part, Component::Normal(_));
    if !is_absolute || names.is_empty() || !names.iter().all(is_name) {
        let what = format!("'{}' cannot be a mount point", path.display());
        let hint = "a mount point is an absolute path below /";
        return Err(Error::new(what).untouched().hint(hint));
    }
    Ok(Path::new("/").join(names.iter().collect::<PathBuf>()))
}

fn without(options: &[String], one: &str) -> Vec<String> {
    let kept = options.iter().filter(|option| *option != one);
    kept.cloned().collect()
}

/// The error of a mount that programs would not see.
pub(super) fn hidden(destination: &Path) -> Error {
    let what = format!("nothing can be mounted at {}", destination.display());
    let why = format!(
        "the container's kernel has its own {}",
        OF_THE_NODE.join(", ")
    );
    Error::new(what).because(why).untouched()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(kind: &str, destination: &str) -> Mount {
        Mount {
            destination: destination.into(),
            kind: kind.to_owned(),
            options: vec!["nosuid".into(), "tmpcopyup".into()],
            ..Mount::default()
        }
    }

    #[test]
    fn the_node_has_its_own_kernel_shown() {
        let all = [
            mount("proc", "/proc"),
            mount("bind", "/data/"),
            mount("tmpfs", "/dev"),
            mount("bind", "/dev/shm"),
            mount("mqueue", "/dev/mqueue"),
            mount("cgroup", "/sys/fs/cgroup"),
            mount("bind", "/run/lock"),
            mount("tmpfs", "/run/x"),
            mount("bind", "/run/.containerenv"),
            mount("bind", "/dev/termination-log"),
            mount("tmpfs", "/srv//x/./y"),
        ];
        let found = place(&all).unwrap();
        let places: Vec<_> = found
            .iter()
            .map(|(mount, placed)| {
                assert_eq!(mount.destination, placed.waits_at);
                assert_eq!(mount.options, ["nosuid"]);
                assert_eq!(placed.copies_up, mount.kind == "tmpfs");
                (
                    placed.waits_at.to_str().unwrap(),
                    placed.destination.to_str().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            places,
            [
                ("/.container/mount-0", "/data"),
                ("/.container/mount-1", "/run/.containerenv"),
                ("/.container/mount-2", "/dev/termination-log"),
                ("/.container/mount-3", "/srv/x/y")
            ]
        );
    }

    #[test]
    fn what_would_be_hidden_is_refused() {
        for path in ["/dev", "/dev/pts/0", "/run", "/proc/version", "/sys/x"] {
            let error = place(&[mount("bind", path)]).unwrap_err();
            assert!(error.what.contains(path), "{error}");
        }
    }

    #[test]
    fn mount_points_are_below_the_root() {
        for path in ["", "/", "data", "/a/../b", "../x"] {
            assert!(place(&[mount("bind", path)]).is_err(), "{path}");
        }
    }
}
