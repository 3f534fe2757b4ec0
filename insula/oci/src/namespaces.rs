//! Namespaces of containers: those that what stands for a container does not have, which the ordinary runtime does not check;
//! and the network's, to be entered once more.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use insula_base::error::Error;
use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::config::Config;

/// Those that can be given by their paths.
const TYPES: [(&str, LinkNameSpaceType); 2] = [
    ("pid", LinkNameSpaceType::ProcessID),
    ("cgroup", LinkNameSpaceType::ControlGroup),
];

/// Refuses user namespaces: a kernel's users are its own, and its files would be others'. Refuses paths that are not those
/// of such namespaces.
///
/// # Errors
/// What is refused.
pub(super) fn check(config: &Config) -> Result<(), Error> {
    for namespace in &config.linux.namespaces {
        if namespace.kind == "user" {
            let what = "a container on its own kernel cannot have a user namespace";
            let hint = "run it as root, without `--userns`";
            return Err(Error::new(what).untouched().hint(hint));
        }
        let given = TYPES.iter().find(|(kind, _)| *kind == namespace.kind);
        let given = given.filter(|_| !namespace.path.as_os_str().is_empty());
        if let Some(&(kind, of_kernel)) = given {
            check_type(&namespace.path, of_kernel).map_err(|error| {
                let what = format!("{} is no {kind} namespace", namespace.path.display());
                Error::new(what).because(error).untouched()
            })?;
        }
    }
    Ok(())
}

/// Checks the type of a namespace, by entering it: with a thread, which ends.
fn check_type(path: &Path, kind: LinkNameSpaceType) -> io::Result<()> {
    let namespace = File::open(path)?;
    let enter = || move_into_link_name_space(namespace.as_fd(), Some(kind));
    let entered = thread::scope(|scope| scope.spawn(enter).join());
    Ok(entered.map_err(|_| io::Error::other("a thread has failed"))??)
}

/// Has this process be in a network namespace, and see that in `/sys`, too, as `ip netns exec` has it.
///
/// # Errors
/// There is none at that path, or it cannot be entered.
pub(super) fn enter_network(path: &Path) -> io::Result<()> {
    let namespace = File::open(path)?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("sysfs", "/sys", "sysfs", flags, None)?)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn refused(namespace: Value) -> Option<String> {
        let config = json!({"linux": {"namespaces": [namespace]}});
        let checked = check(&serde_json::from_value(config).unwrap());
        checked.err().map(|error| error.what)
    }

    #[test]
    fn namespaces_are_of_their_types() {
        for (kind, other) in [("pid", "ipc"), ("cgroup", "pid")] {
            let of = |path: &str| refused(json!({"type": kind, "path": path}));
            assert_eq!(of(""), None);
            let wrong = of(&format!("/proc/self/ns/{other}"));
            assert!(wrong.is_some_and(|what| what.contains(other)), "{kind}");
            assert!(of("/no/such").is_some());
        }
        assert_eq!(
            refused(json!({"type": "network", "path": "/no/such"})),
            None
        );
        assert!(refused(json!({"type": "user"})).is_some());
    }
}
