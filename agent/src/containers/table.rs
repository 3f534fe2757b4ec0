//! The node's containers, and their states.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use insula_agent::container::{
    ContainerAnswer, ContainerRequest, ContainerSpec, ContainerState, Phase, is_name,
};
use insula_agent::frame::{self, BYTES_MAX, FrameError, Reader};
use insula_agent::processor::Processor;
use insula_agent::{ExitStatus, Output};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use vsock::VsockStream;

use super::cgroup::Cgroup;
use super::inside::INSIDE;
use super::namespaces::Carrier;
use super::output::Log;
use super::target::Origin;
use super::{FOLDER, cards, criu, namespaces, obstacles, source, target};
use crate::log::log;
use crate::program::{SELF, set_environment};

/// The containers of the node.
#[derive(Debug, Default)]
pub(crate) struct Containers(Mutex<Names>);

/// Containers by name; none for one that is being made.
type Names = BTreeMap<String, Option<Arc<Container>>>;

/// One of them.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) spec: ContainerSpec,
    pub(super) log: Log,
    /// Its first process, and its phase.
    state: Mutex<(Pid, Phase)>,
    ended: Condvar,
    /// Its network namespace.
    pub(super) network: File,
    /// Its output.
    pub(super) output: File,
}

impl Containers {
    /// Serves a request.
    pub(crate) fn serve(
        &self,
        request: ContainerRequest,
        stream: &VsockStream,
        reader: Reader<VsockStream>,
    ) -> Result<(), FrameError> {
        let answer = match request {
            ContainerRequest::Start(spec) => done(self.start(spec)),
            ContainerRequest::List => ContainerAnswer::List(self.list()),
            ContainerRequest::Stop { name, grace_s } => {
                done(self.stop(&name, Duration::from_secs(grace_s.into())))
            }
            ContainerRequest::Signal { name, signal } => {
                done(self.find(&name).and_then(|one| one.signal(signal)))
            }
            ContainerRequest::Remove(name) => done(self.remove(&name)),
            ContainerRequest::Log { name, follow } => return self.send_log(&name, follow, stream),
            ContainerRequest::Lacks => ContainerAnswer::Lacks(criu::lacks()),
            ContainerRequest::Processor => ContainerAnswer::Processor(Processor::of_this()),
            ContainerRequest::Obstacles(name) => {
                let found = self.find(&name);
                match found.and_then(|one| obstacles::obstacles(&Cgroup::of(&one.spec.name))) {
                    Ok(found) => ContainerAnswer::Lacks(found),
                    Err(error) => ContainerAnswer::Refused(error.to_string()),
                }
            }
            ContainerRequest::Dump(name) => return source::serve(self, &name, stream, reader),
            ContainerRequest::Restore(dumped) => {
                return target::serve(self, (dumped.into(), Origin::Node), stream, reader);
            }
            ContainerRequest::Import(imported) => {
                return target::serve(self, (imported, Origin::Folder), stream, reader);
            }
            ContainerRequest::Settle { name, resume } => done(self.settle(&name, resume)),
        };
        Ok(frame::write(stream, &answer)?)
    }

    fn lock(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn find(&self, name: &str) -> io::Result<Arc<Container>> {
        let found = self.lock().get(name).cloned().flatten();
        found.ok_or_else(|| io::Error::other("there is no such container"))
    }

    fn list(&self) -> Vec<ContainerState> {
        let all = self.lock();
        all.values().flatten().map(|one| one.state()).collect()
    }

    /// Gives the containers their cards again whenever the node gets its own again, as after a loss of
    /// the base's side.
    pub(crate) fn renew_cards(&self) -> io::Result<()> {
        cards::watch(|| {
            let all: Vec<_> = self.lock().values().flatten().cloned().collect();
            for one in all {
                if let Err(error) = one.renew_card() {
                    log(&format!("container {}: {error}", one.spec.name));
                }
            }
        })
    }

    fn start(&self, spec: ContainerSpec) -> io::Result<()> {
        self.add(&spec.name.clone(), || start(spec)).map(drop)
    }

    /// Adds a container of a new name.
    pub(super) fn add(
        &self,
        name: &str,
        make: impl FnOnce() -> io::Result<Arc<Container>>,
    ) -> io::Result<Arc<Container>> {
        let mut all = self.lock();
        if !is_name(name) || all.contains_key(name) {
            return Err(io::Error::other("there is one of that name already"));
        }
        all.insert(name.to_owned(), None);
        drop(all);
        let made = make();
        let mut all = self.lock();
        match &made {
            Ok(container) => drop(all.insert(name.to_owned(), Some(Arc::clone(container)))),
            Err(_) => drop(all.remove(name)),
        }
        made
    }

    /// Kills a container that stands still, without a packet to its peers, and removes it.
    pub(super) fn discard(&self, container: &Container) -> io::Result<()> {
        namespaces::remove_card(&container.network)?;
        container.kill()?;
        self.lock().remove(&container.spec.name);
        remove_folder(&container.spec.name)
    }

    fn settle(&self, name: &str, resume: bool) -> io::Result<()> {
        let container = match self.find(name) {
            Err(_) if !resume => return Ok(()),
            found => found?,
        };
        match (container.state().phase, resume) {
            (Phase::Restored, true) => container.resume(),
            (Phase::Restored, false) => self.discard(&container),
            (_, true) => Ok(()),
            (_, false) => Err(io::Error::other("it runs")),
        }
    }

    /// Stops a container. There is none if the command that would have started or restored it was killed.
    fn stop(&self, name: &str, grace: Duration) -> io::Result<()> {
        let found = self.lock().get(name).cloned();
        match found {
            None => Ok(()),
            Some(None) => Err(io::Error::other("it is being started")),
            Some(Some(one)) => one.stop(grace),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut all = self.lock();
        match all
            .get(name)
            .map(|one| one.as_ref().map(|one| one.state().phase))
        {
            None => Ok(()),
            Some(Some(Phase::Exited(_))) => {
                all.remove(name);
                remove_folder(name)
            }
            Some(_) => Err(io::Error::other("it runs")),
        }
    }

    fn send_log(&self, name: &str, follow: bool, stream: &VsockStream) -> Result<(), FrameError> {
        let sent = self.find(name).and_then(|one| {
            one.log.read(follow, |bytes| {
                let mut pieces = bytes.chunks(BYTES_MAX);
                pieces.try_for_each(|piece| frame::write(stream, &Output::Stdout(piece)))
            })?;
            Ok(if follow {
                one.wait_for_end()
            } else {
                ExitStatus::Exited(0)
            })
        });
        match sent {
            Ok(status) => Ok(frame::write(stream, &Output::Ended(status))?),
            Err(error) => Ok(frame::write(stream, &Output::Refused(&error.to_string()))?),
        }
    }
}

fn done(result: io::Result<()>) -> ContainerAnswer {
    match result {
        Ok(()) => ContainerAnswer::Done,
        Err(error) => ContainerAnswer::Refused(error.to_string()),
    }
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

    /// Has a container of a process that exists, a child of this one.
    pub(super) fn adopt(spec: ContainerSpec, pid: Pid, phase: Phase, files: Files) -> Arc<Self> {
        let container = Arc::new(Self {
            log: Log::open(&folder(&spec.name)),
            spec,
            state: Mutex::new((pid, phase)),
            ended: Condvar::new(),
            network: files.network,
            output: files.output,
        });
        let logged = Arc::clone(&container);
        thread::spawn(move || logged.log.fill(&logged.output));
        let waited = Arc::clone(&container);
        thread::spawn(move || waited.wait(pid));
        container
    }

    /// Waits for the end of its first process, with which the kernel ends all others.
    fn wait(&self, pid: Pid) {
        let status = loop {
            match waitpid(Some(pid), WaitOptions::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                waited => break waited.ok().flatten().map(|(_, status)| status),
            }
        };
        let _ = Cgroup::of(&self.spec.name).remove();
        self.lock().1 = Phase::Exited(status.map_or(ExitStatus::Exited(0), exit_status));
        self.ended.notify_all();
    }

    /// Waits until it has ended, or has gone to another node.
    fn wait_for_end(&self) -> ExitStatus {
        let state = self.ended.wait_while(self.lock(), has_not_ended);
        match state.unwrap_or_else(PoisonError::into_inner).1 {
            Phase::Exited(status) => status,
            _ => ExitStatus::Exited(0),
        }
    }

    fn stop(&self, grace: Duration) -> io::Result<()> {
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
    fn signal(&self, signal: i32) -> io::Result<()> {
        let state = self.lock();
        match (state.1, Signal::from_named_raw(signal)) {
            (Phase::Exited(_), _) => Err(io::Error::other("it does not run")),
            (Phase::Moving | Phase::Restored, _) => Err(moving()),
            (Phase::Running, None) => Err(io::Error::other("there is no such signal")),
            // The lock is held: its id cannot be another's yet.
            (Phase::Running, Some(signal)) => Ok(kill_process(state.0, signal)?),
        }
    }

    /// Kills all its processes, and waits for their end.
    pub(super) fn kill(&self) -> io::Result<()> {
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
        if state.1 != Phase::Running {
            return Err(io::Error::other("it does not run"));
        }
        state.1 = Phase::Moving;
        Ok(state.0)
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
        Ok(())
    }
}

fn has_not_ended(state: &mut (Pid, Phase)) -> bool {
    !matches!(state.1, Phase::Exited(_))
}

fn moving() -> io::Error {
    io::Error::other("it is being moved")
}

/// What the agent has open of a container.
#[derive(Debug)]
pub(super) struct Files {
    /// Its network namespace.
    pub(super) network: File,
    /// The end of a pipe from which its output comes.
    pub(super) output: File,
}

pub(super) fn exit_status(status: WaitStatus) -> ExitStatus {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => ExitStatus::Exited(status as u8),
        (None, signal) => ExitStatus::Killed(signal.unwrap_or_default() as u8),
    }
}

/// Starts a container.
fn start(spec: ContainerSpec) -> io::Result<Arc<Container>> {
    let cgroup = Cgroup::of(&spec.name);
    cgroup.create()?;
    fs::create_dir_all(folder(&spec.name))?;
    match in_namespaces(&spec) {
        Ok((child, files)) => {
            let pid = Pid::from_child(&child);
            Ok(Container::adopt(spec, pid, Phase::Running, files))
        }
        Err(error) => {
            cgroup.remove()?;
            remove_folder(&spec.name)?;
            Err(error)
        }
    }
}

/// Starts a container's first process. By a thread of its own, since namespaces are a thread's.
fn in_namespaces(spec: &ContainerSpec) -> io::Result<(Child, Files)> {
    let (output, input) = io::pipe()?;
    let mut command = command(spec, input)?;
    let address = spec.address;
    let (child, network) = namespaces::in_thread(move || {
        let network = namespaces::enter_new(address, Carrier::On)?;
        Ok((command.spawn()?, network))
    })?;
    let files = Files {
        network,
        output: File::from(OwnedFd::from(output)),
    };
    Ok((child, files))
}

fn command(spec: &ContainerSpec, output: io::PipeWriter) -> io::Result<Command> {
    let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    let folder = spec.exec.directory.as_deref().unwrap_or(b"/");
    let mut command = Command::new(SELF);
    command.args([INSIDE, &spec.name]).arg(text(folder));
    command.args(spec.exec.words.iter().map(|word| text(word)));
    set_environment(&mut command, &spec.exec);
    command.current_dir("/").stdin(Stdio::null());
    command.stdout(output.try_clone()?).stderr(output);
    Ok(command)
}
