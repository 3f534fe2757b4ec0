//! The node's containers, and their states.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use insula_agent::container::{
    ContainerAnswer, ContainerRequest, ContainerSpec, ContainerState, Phase, is_name,
};
use insula_agent::frame::{self, BYTES_MAX, FrameError, Reader};
use insula_agent::pod::PodContainer;
use insula_agent::processor::Processor;
use insula_agent::{ExecAs, ExitStatus, Output};
use rustix::process::Pid;
use socket2::Socket;

use super::cgroup::Cgroup;
use super::one::{Container, remove_folder};
use super::pod::Pod;
use super::start::start;
use super::target::{Arrival, Origin};
use super::{cards, criu, join, memory, obstacles, pre_copy, recover, source, target};
use crate::log::log;
use crate::program::Program;

/// The containers of the node.
#[derive(Debug, Default)]
pub(crate) struct Containers {
    all: Mutex<Names>,
    /// Those of a pod, which are not among them: they are never moved.
    pod: Pod,
}

/// Containers by name; none for one that is being made.
type Names = BTreeMap<String, Option<Arc<Container>>>;

impl Containers {
    /// Those of a server that was killed.
    pub(crate) fn recover() -> Self {
        let all = recover::all().into_iter();
        let names = all.map(|one| (one.spec.name.clone(), Some(one)));
        Self {
            all: Mutex::new(names.collect()),
            pod: Pod::default(),
        }
    }

    /// Serves a request.
    pub(crate) fn serve(
        &self,
        request: ContainerRequest,
        stream: &Socket,
        reader: Reader<Socket>,
    ) -> Result<(), FrameError> {
        match request {
            ContainerRequest::In { root, request } => {
                let root = Path::new(OsStr::from_bytes(&root));
                self.serve_in(root, *request, stream, reader)
            }
            request => self.serve_in(Path::new("/"), request, stream, reader),
        }
    }

    /// Serves a request about a container with this root.
    fn serve_in(
        &self,
        root: &Path,
        request: ContainerRequest,
        stream: &Socket,
        reader: Reader<Socket>,
    ) -> Result<(), FrameError> {
        let answer = match request {
            ContainerRequest::Start(spec) => done(self.start(spec, root)),
            ContainerRequest::List => ContainerAnswer::List(self.list()),
            ContainerRequest::Stop { name, grace_s } => {
                done(self.stop(&name, Duration::from_secs(grace_s.into())))
            }
            ContainerRequest::Signal { name, signal } => done(match self.pod.has(&name) {
                true => self.pod.signal(&name, signal),
                false => self.find(&name).and_then(|one| one.signal(signal)),
            }),
            ContainerRequest::Remove(name) => done(self.remove(&name)),
            ContainerRequest::Log { name, follow } => return self.send_log(&name, follow, stream),
            ContainerRequest::Lacks => ContainerAnswer::Lacks(criu::lacks()),
            ContainerRequest::Processor => ContainerAnswer::Processor(Processor::of_this()),
            ContainerRequest::Obstacles(name) => {
                let found = self.find(&name);
                let found = found.and_then(|one| {
                    let first = one.running()?;
                    obstacles::obstacles(&Cgroup::of(&one.spec.name), first)
                });
                match found {
                    Ok(found) => ContainerAnswer::Lacks(found),
                    Err(error) => ContainerAnswer::Refused(error.to_string()),
                }
            }
            ContainerRequest::Memory(name) => {
                let found = self.find(&name);
                match found.and_then(|one| memory::anonymous(&Cgroup::of(&one.spec.name))) {
                    Ok(bytes) => ContainerAnswer::Memory(bytes),
                    Err(error) => ContainerAnswer::Refused(error.to_string()),
                }
            }
            ContainerRequest::Processes(name) => {
                let found = self.first(&name);
                match found.and_then(|_| Cgroup::of(&name).processes()) {
                    Ok(pids) => ContainerAnswer::Processes(pids),
                    Err(error) => ContainerAnswer::Refused(error.to_string()),
                }
            }
            ContainerRequest::Dump(name) => return source::serve(self, &name, stream, reader),
            ContainerRequest::PreCopy(name) => {
                return pre_copy::serve(self, &name, stream, reader);
            }
            ContainerRequest::Restore(dumped) => {
                let arrival = Arrival::new(dumped.into(), Origin::Node, root);
                return target::serve(self, arrival, stream, reader);
            }
            ContainerRequest::Import(imported) => {
                let arrival = Arrival::new(imported, Origin::Folder, root);
                return target::serve(self, arrival, stream, reader);
            }
            ContainerRequest::Freeze { name, frozen } => done(self.pod.freeze(&name, frozen)),
            ContainerRequest::Limit { name, share } => done(self.pod.limit(&name, &share)),
            ContainerRequest::Settle { name, resume } => done(self.settle(&name, resume)),
            ContainerRequest::In { .. } => refused("it has two roots"),
            ContainerRequest::End => refused("this is a node's agent"),
        };
        Ok(frame::write(stream, &answer)?)
    }

    fn lock(&self) -> MutexGuard<'_, Names> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn find(&self, name: &str) -> io::Result<Arc<Container>> {
        let found = self.lock().get(name).cloned().flatten();
        found.ok_or_else(|| io::Error::other("there is no such container"))
    }

    fn list(&self) -> Vec<ContainerState> {
        let all = self.lock();
        let all = all.values().flatten();
        let all = all.filter(|one| !one.is_discarded());
        all.map(|one| one.state()).collect()
    }

    /// Gives the containers their cards again whenever the node gets its own again, as after a loss of
    /// the base's side.
    pub(crate) fn renew_cards(&self) -> io::Result<()> {
        cards::watch(|| self.renew_all_cards())
    }

    /// Gives all that have lost their cards new ones.
    pub(crate) fn renew_all_cards(&self) {
        let all: Vec<_> = self.lock().values().flatten().cloned().collect();
        for one in all {
            if let Err(error) = one.renew_card() {
                log(&format!("container {}: {error}", one.spec.name));
            }
        }
    }

    /// Does something if there are no containers, while none can come.
    pub(crate) fn if_none(&self, what: impl FnOnce()) {
        let all = self.lock();
        if all.is_empty() {
            what();
        }
    }

    /// Starts a program in a container.
    pub(crate) fn run_in(&self, request: &ExecAs) -> io::Result<Program> {
        let name = request.container.as_deref().unwrap_or_default();
        join::start(name, self.first(name)?, request)
    }

    /// Runs a container of a pod.
    pub(crate) fn run_in_pod(
        &self,
        container: &PodContainer,
        stream: Socket,
        reader: Reader<Socket>,
    ) -> Result<(), FrameError> {
        self.pod.run(container, stream, reader)
    }

    /// The first process of a container that runs.
    fn first(&self, name: &str) -> io::Result<Pid> {
        match self.pod.first(name) {
            Some(first) => Ok(first),
            None => self.find(name)?.running(),
        }
    }

    /// Does something with the files of a container as its programs have them.
    pub(crate) fn in_mounts<T: Send + 'static>(
        &self,
        name: &str,
        what: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        join::in_mounts(self.first(name)?, what)
    }

    fn start(&self, spec: ContainerSpec, root: &Path) -> io::Result<()> {
        self.add(&spec.name.clone(), || start(spec, root)).map(drop)
    }

    /// Adds a container of a new name.
    pub(super) fn add(
        &self,
        name: &str,
        make: impl FnOnce() -> io::Result<Arc<Container>>,
    ) -> io::Result<Arc<Container>> {
        let mut all = self.lock();
        if !is_name(name) || all.contains_key(name) || self.pod.has(name) {
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

    /// Kills a container that stands still, without a packet to its peers, and removes it. It is not here
    /// any more as soon as its state is removed, whatever fails then.
    pub(super) fn discard(&self, container: &Container) -> io::Result<()> {
        container.discard()?;
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

    fn send_log(&self, name: &str, follow: bool, stream: &Socket) -> Result<(), FrameError> {
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

fn refused(reason: &str) -> ContainerAnswer {
    ContainerAnswer::Refused(reason.to_owned())
}

fn done(result: io::Result<()>) -> ContainerAnswer {
    match result {
        Ok(()) => ContainerAnswer::Done,
        Err(error) => ContainerAnswer::Refused(error.to_string()),
    }
}
