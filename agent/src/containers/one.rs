//! A container of the node: its first process, and its state.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use insula_agent::ExitStatus;
use insula_agent::container::{ContainerSpec, ContainerState, Phase};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};

use super::cgroup::Cgroup;
use super::kept::{self, Kept};
use super::output::Log;
use super::{FOLDER, namespaces};
use crate::signal::by_number;

/// A container.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) spec: ContainerSpec,
    pub(super) log: Log,
    /// Its first process, and its phase.
    state: Mutex<(Pid, Phase)>,
    ended: Condvar,
    /// The process that has its output open besides.
    holder: u32,
    /// Held while its memory is copied: by one at a time.
    copying: Mutex<()>,
    /// Whether it is being removed, and another node has it.
    discarded: AtomicBool,
    /// Its network namespace.
    pub(super) network: File,
    /// Its output.
    pub(super) output: File,
}

/// The folder of a container.
pub(super) fn folder(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

/// Removes the folder of a container, if there is one.
pub(super) fn remove_folder(name: &str) -> io::Result<()> {
    match fs::remove_dir_all(folder(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Container {
    fn lock(&self) -> MutexGuard<'_, (Pid, Phase)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> ContainerState {
        let (pid, phase) = *self.lock();
        ContainerState {
            spec: self.spec.clone(),
            pid: (!matches!(phase, Phase::Exited(_)))
                .then(|| pid.as_raw_nonzero().get().unsigned_abs()),
            phase,
        }
    }

    /// Has a container of a process that exists.
    pub(super) fn adopt(
        spec: ContainerSpec,
        (pid, parent): (Pid, Parent),
        phase: Phase,
        files: Files,
    ) -> io::Result<Arc<Self>> {
        let (holder, is_kept) = match parent {
            Parent::Server => (kept::hold(&files.output)?, false),
            Parent::First { holder, is_kept } => (holder, is_kept),
            Parent::None => (0, false),
        };
        let container = Arc::new(Self {
            log: Log::open(&folder(&spec.name)),
            spec,
            state: Mutex::new((pid, phase)),
            ended: Condvar::new(),
            holder,
            copying: Mutex::default(),
            discarded: AtomicBool::default(),
            network: files.network,
            output: files.output,
        });
        container.keep((pid, phase), is_kept)?;
        let logged = Arc::clone(&container);
        thread::spawn(move || logged.log.fill(&logged.output));
        if parent == Parent::Server {
            kept::want_status(pid)?;
        }
        if parent != Parent::None {
            let waited = Arc::clone(&container);
            thread::spawn(move || waited.wait(pid, parent));
        }
        Ok(container)
    }

    /// Whether it is being removed, and is not here any more.
    pub(super) fn is_discarded(&self) -> bool {
        self.discarded.load(Ordering::Relaxed)
    }

    /// Keeps its state for the next server.
    fn keep(&self, (pid, phase): (Pid, Phase), is_kept: bool) -> io::Result<()> {
        let kept = Kept {
            spec: self.spec.clone(),
            pid: pid.as_raw_nonzero().get(),
            phase,
            is_kept,
            holder: self.holder,
        };
        kept.write(&folder(&self.spec.name))
    }

    /// Keeps one that was restored, also if this server is killed.
    pub(super) fn keep_restored(&self) -> io::Result<()> {
        self.keep(*self.lock(), true)
    }

    /// Waits for the end of its first process, with which the kernel ends all others.
    fn wait(&self, pid: Pid, parent: Parent) {
        let status = match parent {
            Parent::Server => wait_for_child(pid),
            _ => kept::wait(pid),
        };
        let _ = Cgroup::of(&self.spec.name).remove();
        let phase = Phase::Exited(status);
        let mut state = self.lock();
        state.1 = phase;
        if !self.is_discarded() {
            // Best effort: without, the next server finds that it has ended.
            let _ = self.keep((pid, phase), false);
        }
        drop(state);
        kept::forget_status(pid);
        self.ended.notify_all();
    }

    /// Waits until it has ended, or has gone to another node.
    pub(super) fn wait_for_end(&self) -> ExitStatus {
        let state = self.ended.wait_while(self.lock(), has_not_ended);
        match state.unwrap_or_else(PoisonError::into_inner).1 {
            Phase::Exited(status) => status,
            _ => ExitStatus::Exited(0),
        }
    }

    pub(super) fn stop(&self, grace: Duration) -> io::Result<()> {
        let state = self.lock();
        match state.1 {
            // The lock is held: its id cannot be another's yet.
            Phase::Running => drop(kill_process(state.0, Signal::TERM)),
            Phase::Exited(_) => return Ok(()),
            Phase::Moving | Phase::Restored => return Err(moving()),
        }
        let waited = self.ended.wait_timeout_while(state, grace, has_not_ended);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        match state.1 {
            Phase::Running => {
                drop(state);
                self.kill()
            }
            Phase::Exited(_) => Ok(()),
            Phase::Moving | Phase::Restored => Err(moving()),
        }
    }

    /// Sends a signal to its first process.
    pub(super) fn signal(&self, signal: i32) -> io::Result<()> {
        let state = self.lock();
        match (state.1, by_number(signal)) {
            (Phase::Exited(_), _) => Err(io::Error::other("it does not run")),
            (Phase::Moving | Phase::Restored, _) => Err(moving()),
            (Phase::Running, None) => Err(io::Error::other("there is no such signal")),
            // The lock is held: its id cannot be another's yet.
            (Phase::Running, Some(signal)) => Ok(kill_process(state.0, signal)?),
        }
    }

    /// Kills it, without a packet to its peers; it is another node's, or nobody's.
    pub(super) fn discard(&self) -> io::Result<()> {
        Kept::remove(&folder(&self.spec.name))?;
        self.discarded.store(true, Ordering::Relaxed);
        namespaces::remove_card(&self.network)?;
        self.kill()
    }

    /// Kills all its processes, and waits for their end.
    fn kill(&self) -> io::Result<()> {
        let mut state = self.lock();
        if has_not_ended(&mut state) {
            Cgroup::of(&self.spec.name).kill()?;
        }
        let waited = self.ended.wait_while(state, has_not_ended);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }

    /// Begins a move of a container that runs; its first process.
    pub(super) fn begin_move(&self) -> io::Result<Pid> {
        let mut state = self.lock();
        let pid = running(&state)?;
        self.keep((pid, Phase::Moving), false)?;
        state.1 = Phase::Moving;
        Ok(pid)
    }

    /// Its first process, if it runs.
    pub(super) fn running(&self) -> io::Result<Pid> {
        running(&self.lock())
    }

    /// Waits until nobody else copies its memory.
    pub(super) fn lock_copying(&self) -> MutexGuard<'_, ()> {
        self.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives it its card again if it runs and has lost it. One that stands still gets it when it goes on.
    pub(super) fn renew_card(&self) -> io::Result<()> {
        let state = self.lock();
        match (state.1, self.spec.address) {
            (Phase::Running, Some(address)) => namespaces::renew_card(&self.network, address),
            _ => Ok(()),
        }
    }

    /// Has it run after a move, or one that was given up, if it stands still.
    pub(super) fn resume(&self) -> io::Result<()> {
        let mut state = self.lock();
        if !matches!(state.1, Phase::Restored | Phase::Moving) {
            return Ok(());
        }
        if let Some(address) = self.spec.address {
            // The node may be without a card: then it gets it with the node's.
            let _ = namespaces::renew_card(&self.network, address);
        }
        namespaces::bring_card_up(&self.network)?;
        let cgroup = Cgroup::of(&self.spec.name);
        match state.1 {
            // As CRIU has left it.
            Phase::Restored => cgroup.signal(Signal::CONT)?,
            _ => cgroup.freeze(false)?,
        }
        state.1 = Phase::Running;
        // It runs; without room for that the next server has it go on again.
        let _ = self.keep(*state, false);
        Ok(())
    }
}

fn has_not_ended(state: &mut (Pid, Phase)) -> bool {
    !matches!(state.1, Phase::Exited(_))
}

fn running(&(pid, phase): &(Pid, Phase)) -> io::Result<Pid> {
    match phase {
        Phase::Running => Ok(pid),
        _ => Err(io::Error::other("it does not run")),
    }
}

fn moving() -> io::Error {
    io::Error::other("it is being moved")
}

fn wait_for_child(pid: Pid) -> ExitStatus {
    let status = loop {
        match waitpid(Some(pid), WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            waited => break waited.ok().flatten().map(|(_, status)| status),
        }
    };
    status.map_or(ExitStatus::Exited(0), exit_status)
}

/// Whose child a container's first process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parent {
    /// This process's.
    Server,
    /// The first process's, since an earlier server was killed.
    First {
        /// The process that has its output open.
        holder: u32,
        /// Whether it is kept though it stands still.
        is_kept: bool,
    },
    /// Nobody's: it has ended.
    None,
}

/// What the agent has open of a container.
#[derive(Debug)]
pub(super) struct Files {
    /// Its network namespace.
    pub(super) network: File,
    /// The end of a pipe from which its output comes.
    pub(super) output: File,
}

pub(crate) fn exit_status(status: WaitStatus) -> ExitStatus {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => ExitStatus::Exited(status as u8),
        (None, signal) => ExitStatus::Killed(signal.unwrap_or_default() as u8),
    }
}
