//! Containers of a server that was killed: the next one takes them over.
//!
//! A container that ran goes on. One that was being dumped goes on, too, when CRIU has ended. One that
//! was restored and is kept waits for its decision; any other one that is not complete is removed, since its
//! source, or nobody, has it.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use insula_agent::container::Phase;
use rustix::process::Pid;

use super::cgroup::Cgroup;
use super::kept::{self, Kept};
use super::one::{Container, Files, Parent, folder, remove_folder};
use super::{FOLDER, criu, namespaces, repair};
use crate::log::log;

/// Takes over all containers that there are.
pub(super) fn all() -> Vec<Arc<Container>> {
    let folders = fs::read_dir(FOLDER).into_iter().flatten().flatten();
    let mut found = Vec::new();
    for folder in folders {
        let name = folder.file_name().to_string_lossy().into_owned();
        match one(&name) {
            Ok(container) => found.extend(container),
            Err(error) => log(&format!("container {name}: {error}")),
        }
    }
    found
}

/// Takes over the container of that name; none if it is gone, or was removed.
fn one(name: &str) -> io::Result<Option<Arc<Container>>> {
    let place = folder(name);
    let Some((kept, pid)) = Kept::read(&place).and_then(with_pid) else {
        return remove(name);
    };
    let lives = Cgroup::of(name).processes();
    let lives = lives.is_ok_and(|all| all.contains(&kept.pid));
    match (kept.phase, lives) {
        (Phase::Running | Phase::Moving, true) => go_on(kept, pid, &place).map(Some),
        (Phase::Restored, true) if kept.is_kept => adopt(kept, pid).map(Some),
        (Phase::Running, false) => ended(kept, pid, Phase::Exited(kept::status(pid))),
        (phase @ Phase::Exited(_), _) => ended(kept, pid, phase),
        // It is at the target, or at the source.
        (Phase::Moving | Phase::Restored, _) => remove(name),
    }
}

/// Has one go on that ran, or was being dumped.
fn go_on(kept: Kept, pid: Pid, folder: &Path) -> io::Result<Arc<Container>> {
    criu::wait_for_end(folder)?;
    remove_images(folder);
    if kept.phase == Phase::Moving {
        repair::end(&kept.spec.name);
    }
    let container = adopt(kept, pid)?;
    if let Err(error) = container.resume() {
        log(&format!("container {}: {error}", container.spec.name));
    }
    Ok(container)
}

fn with_pid(kept: Kept) -> Option<(Kept, Pid)> {
    let pid = Pid::from_raw(kept.pid)?;
    Some((kept, pid))
}

fn remove(name: &str) -> io::Result<Option<Arc<Container>>> {
    let cgroup = Cgroup::of(name);
    if cgroup.path().exists() {
        namespaces::remove_cards(&cgroup);
        cgroup.kill()?;
        cgroup.remove()?;
    }
    remove_folder(name)?;
    Ok(None)
}

/// Files of a dump that nobody wants any more.
fn remove_images(folder: &Path) {
    for part in fs::read_dir(folder).into_iter().flatten().flatten() {
        if part.path().is_dir() {
            let _ = fs::remove_dir_all(part.path());
        }
    }
}

fn adopt(kept: Kept, pid: Pid) -> io::Result<Arc<Container>> {
    let files = Files {
        network: namespaces::network_of(pid)?,
        output: kept.output()?,
    };
    let parent = Parent::First {
        holder: kept.holder,
        is_kept: kept.is_kept,
    };
    Container::adopt(kept.spec, (pid, parent), kept.phase, files)
}

/// One that has ended, whose log is still there.
fn ended(kept: Kept, pid: Pid, phase: Phase) -> io::Result<Option<Arc<Container>>> {
    let null = fs::File::open("/dev/null")?;
    let files = Files {
        network: null.try_clone()?,
        output: null,
    };
    let parent = Parent::None;
    Container::adopt(kept.spec, (pid, parent), phase, files).map(Some)
}
