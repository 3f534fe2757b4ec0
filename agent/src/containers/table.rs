//! The node's containers, and their states.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use insula_agent::container::{
    ContainerAnswer, ContainerRequest, ContainerSpec, ContainerState, Phase, is_name,
};
use insula_agent::frame::{self, BYTES_MAX, FrameError};
use insula_agent::{ExitStatus, Output};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use vsock::VsockStream;

use super::cgroup::Cgroup;
use super::inside::INSIDE;
use super::output::Log;
use super::{FOLDER, namespaces};
use crate::program::{SELF, set_environment};

/// The containers of the node.
#[derive(Debug, Default)]
pub(crate) struct Containers(Mutex<BTreeMap<String, Arc<Container>>>);

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
}

impl Containers {
    /// Serves a request.
    pub(crate) fn serve(
        &self,
        request: ContainerRequest,
        stream: &VsockStream,
    ) -> Result<(), FrameError> {
        let answer = match request {
            ContainerRequest::Start(spec) => done(self.start(spec)),
            ContainerRequest::List => ContainerAnswer::List(self.list()),
            ContainerRequest::Stop { name, grace_s } => {
                let found = self.find(&name);
                done(found.and_then(|one| one.stop(Duration::from_secs(grace_s.into()))))
            }
            ContainerRequest::Remove(name) => done(self.remove(&name)),
            ContainerRequest::Log { name, follow } => return self.send_log(&name, follow, stream),
        };
        Ok(frame::write(stream, &answer)?)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Container>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, name: &str) -> io::Result<Arc<Container>> {
        let found = self.lock().get(name).cloned();
        found.ok_or_else(|| io::Error::other("there is no such container"))
    }

    fn list(&self) -> Vec<ContainerState> {
        self.lock().values().map(|one| one.state()).collect()
    }

    fn start(&self, spec: ContainerSpec) -> io::Result<()> {
        let mut all = self.lock();
        if !is_name(&spec.name) || all.contains_key(&spec.name) {
            return Err(io::Error::other("there is one of that name already"));
        }
        let container = start(spec)?;
        all.insert(container.spec.name.clone(), container);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut all = self.lock();
        let found = all.get(name).map(|one| one.state().phase);
        match found {
            None => Ok(()),
            Some(Phase::Exited(_)) => {
                all.remove(name);
                fs::remove_dir_all(folder(name))
            }
            Some(_) => Err(io::Error::other("it runs")),
        }
    }

    fn send_log(&self, name: &str, follow: bool, stream: &VsockStream) -> Result<(), FrameError> {
        let sent = self.find(name).and_then(|one| {
            one.log.read(follow, |bytes| {
                let mut pieces = bytes.chunks(BYTES_MAX);
                pieces.try_for_each(|piece| frame::write(stream, &Output::Stdout(piece)))
            })
        });
        let end = match &sent {
            Ok(()) => Output::Ended(ExitStatus::Exited(0)),
            Err(error) => return Ok(frame::write(stream, &Output::Refused(&error.to_string()))?),
        };
        Ok(frame::write(stream, &end)?)
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

impl Container {
    fn lock(&self) -> MutexGuard<'_, (Pid, Phase)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> ContainerState {
        let (pid, phase) = *self.lock();
        ContainerState {
            spec: self.spec.clone(),
            pid: (phase == Phase::Running).then(|| pid.as_raw_nonzero().get().unsigned_abs()),
            phase,
        }
    }

    /// Has a container of a process that runs, a child of this one, whose output comes from a pipe.
    pub(super) fn adopt(spec: ContainerSpec, pid: Pid, network: File, output: File) -> Arc<Self> {
        let container = Arc::new(Self {
            log: Log::open(&folder(&spec.name)),
            spec,
            state: Mutex::new((pid, Phase::Running)),
            ended: Condvar::new(),
            network,
        });
        let logged = Arc::clone(&container);
        thread::spawn(move || logged.log.fill(output));
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

    fn stop(&self, grace: Duration) -> io::Result<()> {
        let running = |state: &mut (Pid, Phase)| state.1 == Phase::Running;
        let mut state = self.lock();
        if state.1 == Phase::Running {
            // The lock is held: its id cannot be another's yet.
            let _ = kill_process(state.0, Signal::TERM);
        }
        let waited = self.ended.wait_timeout_while(state, grace, running);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.1 == Phase::Running {
            Cgroup::of(&self.spec.name).kill()?;
            let waited = self.ended.wait_while(state, running);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
        Ok(())
    }
}

fn exit_status(status: WaitStatus) -> ExitStatus {
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
        Ok((child, network, output)) => {
            let pid = Pid::from_child(&child);
            Ok(Container::adopt(spec, pid, network, output))
        }
        Err(error) => {
            cgroup.remove()?;
            fs::remove_dir_all(folder(&spec.name))?;
            Err(error)
        }
    }
}

/// Starts a container's first process. By a thread of its own, since namespaces are a thread's.
fn in_namespaces(spec: &ContainerSpec) -> io::Result<(Child, File, File)> {
    let (output, input) = io::pipe()?;
    let mut command = command(spec, input)?;
    let address = spec.address;
    let started = thread::spawn(move || {
        let network = namespaces::enter_new(address)?;
        Ok((command.spawn()?, network))
    });
    let started: io::Result<_> = started
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("panic")));
    let (child, network) = started?;
    Ok((
        child,
        network,
        File::from(std::os::fd::OwnedFd::from(output)),
    ))
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
