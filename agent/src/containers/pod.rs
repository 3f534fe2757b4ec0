//! Containers of an OCI runtime: the one whose kernel the node is, and those that share it, as in a pod. Each is started for one
//! connection, and ends with it.
//!
//! The base has put the root of a further one into the node's root file system after the node's start, where the node has mounted another
//! one. So it is reached by mounting the node's root once more, in namespaces that see nothing else of that.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use insula_agent::container::is_name;
use insula_agent::frame::{FrameError, Reader};
use insula_agent::pod::{PodContainer, ROOTS, Share};
use insula_agent::view::View;
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{Pid, Signal, chdir, kill_process};
use rustix::system::sethostname;
use rustix::thread::UnshareFlags;
use socket2::Socket;

use super::cgroup::Cgroup;
use super::inside::enter_root;
use super::namespaces::in_thread;
use super::one::{folder, remove_folder};
use super::view;
use crate::argument::{from_word, to_word};
use crate::log::log;
use crate::namespace::unshare;
use crate::program::{Program, Signalled, exec};
use crate::root::mount_bare;
use crate::session;
use crate::signal::by_number;

/// Role of this program: to become such a container's first process. Its name, that of its root, its host name, whether it has IPC objects of
/// its own, its working directory, and the words of [`exec`] follow.
pub(crate) const POD: &str = "--pod";
const OWN: &str = "own";

/// File in a container's folder, once it can be joined.
const READY: &str = "ready";

/// Where the node's root is mounted once more.
const BARE_ROOT: &str = "/run/insula/bare-root";
/// Time that the base has to take a container's root away, and the interval at which that is polled.
const GONE_TIMEOUT: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(20);

/// The containers.
#[derive(Debug, Default)]
pub(super) struct Pod {
    all: Mutex<Firsts>,
    ended: Condvar,
}

/// The first processes of containers by their names; none of one that is being started.
type Firsts = BTreeMap<String, Option<Pid>>;

impl Pod {
    /// Runs a container until its program ends, or the connection does.
    pub(super) fn run(
        &self,
        container: &PodContainer,
        stream: Socket,
        reader: Reader<Socket>,
    ) -> Result<(), FrameError> {
        let name = &container.name;
        let mut is_added = false;
        let start = || {
            self.add(container)?;
            is_added = true;
            let program = start(container)?;
            let first = Pid::from_child(&program.child);
            self.lock().insert(name.clone(), Some(first));
            Ok(program)
        };
        let ran = session::run(start, stream, reader);
        if is_added {
            if let Err(error) = end(container) {
                log(&format!("container {name}: {error}"));
            }
            self.lock().remove(name);
            self.ended.notify_all();
        }
        ran
    }

    /// The first process of one that runs, and has all that is its own.
    pub(super) fn first(&self, name: &str) -> Option<Pid> {
        let first = self.lock().get(name).copied().flatten();
        first.filter(|_| folder(name).join(READY).exists())
    }

    /// Sends a signal to the first process of one that runs.
    pub(super) fn signal(&self, name: &str, signal: i32) -> io::Result<()> {
        let cgroup = self.cgroup(name)?;
        let first = self.first(name);
        let first = first.ok_or_else(|| io::Error::other("there is no such container"))?;
        let signal =
            by_number(signal).ok_or_else(|| io::Error::other("there is no such signal"))?;
        // It may have ended just now, and its id be another's.
        let is_it = |pid: &i32| *pid == first.as_raw_nonzero().get();
        match cgroup.processes()?.iter().any(is_it) {
            true => Ok(kill_process(first, signal)?),
            false => Err(io::Error::other("it does not run")),
        }
    }

    /// Has all processes of one stand still, or go on. If they do not come to a stand, they go on.
    pub(super) fn freeze(&self, name: &str, frozen: bool) -> io::Result<()> {
        let cgroup = self.cgroup(name)?;
        let done = cgroup.freeze(frozen);
        if done.is_err() && frozen {
            let _ = cgroup.freeze(false);
        }
        done
    }

    /// Changes how much of the node one gets.
    pub(super) fn limit(&self, name: &str, share: &Share) -> io::Result<()> {
        self.cgroup(name)?.limit(share)
    }

    /// The control group of one that runs.
    fn cgroup(&self, name: &str) -> io::Result<Cgroup> {
        let runs = self.first(name).map(|_| Cgroup::of(name));
        runs.ok_or_else(|| io::Error::other("there is no such container"))
    }

    /// Whether there is one of that name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.lock().contains_key(name)
    }

    /// Adds one, when an earlier one of its name has gone.
    fn add(&self, container: &PodContainer) -> io::Result<()> {
        let name = &container.name;
        let has_name = |all: &mut Firsts| all.contains_key(name);
        let waited = self
            .ended
            .wait_timeout_while(self.lock(), GONE_TIMEOUT, has_name);
        let mut all = waited.unwrap_or_else(PoisonError::into_inner).0;
        if !is_name(name) || has_name(&mut all) || folder(name).exists() {
            return Err(io::Error::other("there is one of that name already"));
        }
        if !container.root.is_empty() && !is_single(&container.root) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        all.insert(name.to_owned(), None);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Firsts> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a path is a single name.
fn is_single(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(name)), None) if name == path)
}

fn start(container: &PodContainer) -> io::Result<Program> {
    let PodContainer {
        name,
        root,
        exec,
        user,
        own,
        restrictions,
        view,
        share,
    } = container.clone();
    // By this the next server finds it if this one is killed, and removes it.
    fs::create_dir_all(folder(&name))?;
    let cgroup = Cgroup::of(&name);
    cgroup.create()?;
    cgroup.limit(&share)?;
    let namespaces = [
        (true, UnshareFlags::NEWNS),
        (own.hostname.is_some(), UnshareFlags::NEWUTS),
        (own.ipc, UnshareFlags::NEWIPC),
        (own.processes, UnshareFlags::NEWPID),
    ];
    let namespaces = namespaces.iter().filter(|(is_own, _)| *is_own);
    let namespaces = namespaces.fold(UnshareFlags::empty(), |all, &(_, one)| all | one);
    let hostname = own.hostname.unwrap_or_default();
    let ipc = if own.ipc { OWN } else { "" };
    let directory = exec.directory.clone().unwrap_or_else(|| b"/".to_vec());
    let view = to_word(&view)?;
    let started = in_thread(move || {
        unshare(namespaces)?;
        let role = [POD, &name, &root, &hostname, ipc].map(OsStr::new);
        let role = [&role[..], &[OsStr::from_bytes(&directory), &view]].concat();
        Program::start_by(&role, &exec, (user.as_deref(), &restrictions))
    });
    started.map(|program| Program {
        hangup: Signal::KILL,
        signalled: Signalled::Program,
        ..program
    })
}

/// Executes a container's program as its first process, in namespaces that this process has already.
pub(crate) fn enter(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let mut next = || words.next().unwrap_or_default();
    let (name, bare, hostname, ipc, directory) = (next(), next(), next(), next(), next());
    let (name, view) = (name.to_string_lossy(), next());
    let set_up = || {
        let view: View = from_word(&view)?;
        let kept = File::open(folder(&name))?;
        Cgroup::of(&name).join()?;
        if !hostname.is_empty() {
            sethostname(hostname.as_bytes())?;
        }
        view::set_sysctls(&view)?;
        let unsealed = enter_root(&root(&bare)?, || view::mount_all(&view, ipc == OWN))?;
        view::finish(&view, &unsealed)?;
        enter_directory(Path::new(&directory))?;
        mark_ready(&kept)
    };
    match set_up() {
        Ok(()) => exec(words),
        Err(error) => {
            eprintln!("insula: the container cannot be set up: {error}");
            ExitCode::from(126)
        }
    }
}

fn enter_directory(path: &Path) -> io::Result<()> {
    chdir(path).map_err(|error| {
        let what = format!("{}: {error}", path.display());
        io::Error::new(io::Error::from(error).kind(), what)
    })
}

/// Lets further programs join, by a file in the container's folder, which is not seen from its root any more.
fn mark_ready(folder: &File) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    Ok(openat(folder, READY, flags, Mode::from_raw_mode(0o600)).map(drop)?)
}

/// Mounts the node's root once more, in the mount namespace of this process, which is its own; the folder of a container
/// there, or all of it for that of no name.
fn root(name: &OsStr) -> io::Result<PathBuf> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private)?;
    mount_bare(BARE_ROOT)?;
    match name.is_empty() {
        true => Ok(BARE_ROOT.into()),
        false => Ok(Path::new(BARE_ROOT).join(ROOTS).join(name)),
    }
}

/// Removes what is left of a container whose program has ended.
fn end(container: &PodContainer) -> io::Result<()> {
    let cgroup = Cgroup::of(&container.name);
    if cgroup.path().exists() {
        cgroup.kill()?;
        cgroup.remove()?;
    }
    remove_folder(&container.name)?;
    if container.root.is_empty() {
        // It ends with the node.
        return Ok(());
    }
    let bare = OsString::from(&container.root);
    in_thread(move || {
        unshare(UnshareFlags::NEWNS)?;
        forget(&root(&bare)?)
    })
}

/// Has the kernel forget the files of a container's root, as soon as the base has taken that away: otherwise they would
/// stay open there. What was its mount point is removed.
fn forget(root: &Path) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match fs::remove_dir(root) {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy
                    && began.elapsed() < GONE_TIMEOUT =>
            {
                thread::sleep(INTERVAL);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            removed => return removed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_below_their_folder() {
        for good in ["web", "web.12", "..."] {
            assert!(is_single(good), "{good}");
        }
        for bad in ["", ".", "..", "/", "a/b", "/a", "a/", "./a"] {
            assert!(!is_single(bad), "{bad}");
        }
    }
}
