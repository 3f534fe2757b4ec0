//! The backend monitor: restarts a device's backend process when it dies.
//!
//! A new backend resumes the requests in flight; the driver only sees longer requests. A request
//! without a completion may or may not have been executed, as on a disk that loses power; executing
//! it twice makes no difference. Where a backend has other state, its exit is final: the device is
//! lost, and with it the node.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::backend_process::{REPLY_TIMEOUT, VhostUserBackend};
use super::backoff::Backoff;
use super::checkpoint::{CheckpointFile, DeviceCheckpoint};
use super::device::{StartError, Virtqueue};
use super::inflight::{Inflight, Unrecoverable};
use super::memory::NodeMemory;
use super::vhost::{QueueNotifier, configure, failed, lies_in};

/// Poll interval of busy virtqueues, short enough that a ring does not wrap unseen.
const POLL_MIN: Duration = Duration::from_millis(1);
/// Poll interval of idle virtqueues.
const POLL_MAX: Duration = Duration::from_millis(64);
/// Timeout of a memory change. Meanwhile no message of a driver is answered; drivers time out after
/// ten seconds.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(4);
/// A backend that exits after this time is restarted at once, and so is the first that exits
/// earlier. Further early exits are followed by growing pauses.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Receiver of failures of started devices.
pub(super) trait DeviceEvents: Send + Sync {
    /// Reports a problem that the device survives.
    fn report(&self, text: &str);

    /// Handles a device that will never work again: its driver's requests never complete.
    fn device_lost(&self, text: &str);

    /// Records why the device fails, or with `None` that it works; logs a change.
    fn set_failure(&self, device: &str, why: Option<&str>);
}

/// A device that backend processes serve.
#[derive(Clone)]
pub(super) struct DeviceContext {
    /// Name for messages.
    pub(super) name: String,
    /// Checkpoint for the next supervisor if this one is killed.
    pub(super) checkpoint: DeviceCheckpoint,
    pub(super) device_events: Arc<dyn DeviceEvents>,
}

impl DeviceContext {
    pub(super) fn report(&self, text: &str) {
        self.device_events.report(&format!("{}: {text}", self.name));
    }

    pub(super) fn device_lost(&self, text: &str) {
        self.device_events
            .device_lost(&format!("{}: {text}", self.name));
    }

    pub(super) fn set_failure(&self, why: Option<&str>) {
        self.device_events.set_failure(&self.name, why);
    }
}

/// Starts the backends of a device.
pub(super) struct BackendLauncher {
    /// A backend that is already running.
    pub(super) first: Option<VhostUserBackend>,
    /// Starts another one.
    pub(super) start: Box<dyn Fn() -> Result<VhostUserBackend, StartError> + Send>,
    /// Whether a backend can resume the requests of another.
    pub(super) restartable: bool,
}

/// A started device, with all that its next backend needs.
pub(super) struct ActiveDevice {
    pub(super) context: DeviceContext,
    pub(super) memory: NodeMemory,
    /// Features accepted by its driver.
    pub(super) features: u64,
    pub(super) queues: Vec<Virtqueue>,
    pub(super) notifiers: Vec<QueueNotifier>,
}

/// New memory of the device, and the channel for the result.
type Change = (NodeMemory, Sender<Result<(), StartError>>);

/// Keeps a device's backend running until dropped.
pub(super) struct Monitor {
    /// Closed to stop the thread; written to after sending a change.
    control: Option<UnixStream>,
    changes: Sender<Change>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Starts serving the device's virtqueues, as soon as a backend is running.
    ///
    /// # Errors
    /// [`StartError`]; the device is not served.
    pub(super) fn start(
        device: ActiveDevice,
        launcher: BackendLauncher,
    ) -> Result<Self, StartError> {
        let (control, peer) = UnixStream::pair().map_err(failed("making a socket"))?;
        peer.set_nonblocking(true)
            .map_err(failed("making a socket"))?;
        let (changes, changed) = mpsc::channel();
        let BackendLauncher {
            first,
            start,
            restartable,
        } = launcher;
        let thread = MonitorThread {
            inflight: track_all(&device)?,
            device,
            start,
            restartable,
            checkpoint_file: None,
            early_exits: 0,
            backoff: Backoff::new(),
            control: peer,
            changes: changed,
        };
        let thread = thread::Builder::new()
            .name("monitor".into())
            .spawn(move || thread.run(first))
            .map_err(failed("starting a thread"))?;
        Ok(Self {
            control: Some(control),
            changes,
            thread: Some(thread),
        })
    }
}

/// Tracks the virtqueues, from the checkpoint of an earlier supervisor if there is one.
fn track_all(device: &ActiveDevice) -> Result<Vec<Inflight>, StartError> {
    let checkpoint = &device.context.checkpoint;
    let checkpoint_file = match checkpoint.exists() {
        true => Some(
            checkpoint
                .open()
                .map_err(failed("reading the checkpoint"))?,
        ),
        false => None,
    };
    let track = |(number, queue)| {
        let mut inflight = Inflight::track(&device.memory, queue);
        let record = checkpoint_file
            .as_ref()
            .and_then(|checkpoint_file| checkpoint_file.read(number));
        if let Some(record) = record {
            inflight.restore(&record);
        }
        inflight
    };
    Ok(device.queues.iter().enumerate().map(track).collect())
}

impl Monitor {
    /// Switches the device to other memory; the old one is no longer accessed when this returns.
    ///
    /// # Errors
    /// [`StartError`]; the device goes on with the old memory.
    pub(super) fn change_memory(&self, memory: NodeMemory) -> Result<(), StartError> {
        let (done, answer) = mpsc::channel();
        let ended = |_| StartError::Backend("the device has ended".into());
        self.changes
            .send((memory, done))
            .map_err(|_| ended(mpsc::RecvTimeoutError::Disconnected))?;
        let woken = self.control.as_ref().map(|mut control| control.write(&[1]));
        // A full socket means that the thread is awake.
        drop(woken);
        answer
            .recv_timeout(CHANGE_TIMEOUT)
            .map_err(|error| match error {
                mpsc::RecvTimeoutError::Timeout => {
                    StartError::Backend("its backend does not handle the change".into())
                }
                error => ended(error),
            })?
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.control = None;
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, its backend is gone as well.
            let _ = thread.join();
        }
    }
}

/// Why a backend cannot resume the virtqueues.
#[derive(Debug, thiserror::Error)]
enum ResumeError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Unrecoverable(#[from] Unrecoverable),
}

/// Result of a wait.
enum Waited {
    /// The device is to stop.
    Stop,
    /// The backend has exited.
    Exited,
    /// The device's memory is to be changed.
    MemoryChange,
    TimedOut,
}

struct MonitorThread {
    device: ActiveDevice,
    start: Box<dyn Fn() -> Result<VhostUserBackend, StartError> + Send>,
    restartable: bool,
    inflight: Vec<Inflight>,
    /// `None` until the first backend is set up.
    checkpoint_file: Option<CheckpointFile>,
    /// Consecutive backends that exited before [`STABLE_AFTER`].
    early_exits: u32,
    backoff: Backoff,
    control: UnixStream,
    changes: Receiver<Change>,
}

impl MonitorThread {
    /// Serves until the device is to stop or is lost.
    fn run(mut self, mut next: Option<VhostUserBackend>) {
        while let Some(backend) = self.start_backend(next.take()) {
            let began = Instant::now();
            if matches!(self.watch(&backend, began), Waited::Stop) {
                return backend.end();
            }
            // After this the process no longer accesses the node's memory, or else still holds the
            // lock that the next one needs.
            drop(backend);
            if !self.wait_before_restart(began.elapsed()) {
                return;
            }
        }
    }

    /// Starts serving with the given backend or a new one; `None` if the device is to stop or is
    /// lost.
    fn start_backend(&mut self, mut given: Option<VhostUserBackend>) -> Option<VhostUserBackend> {
        let is_first = self.checkpoint_file.is_none();
        loop {
            let backend = given.take().map_or_else(|| self.start_next(), Ok);
            let resumed = backend.and_then(|backend| self.resume(&backend).map(|()| backend));
            match resumed {
                Ok(backend) => {
                    if !is_first {
                        let text = "its backend exited; another one goes on with its work";
                        self.device.context.report(text);
                    }
                    if self.early_exits == 0 {
                        self.set_stable();
                    }
                    return Some(backend);
                }
                Err(ResumeError::Unrecoverable(why)) => {
                    self.report_lost(&why);
                    return None;
                }
                Err(ResumeError::Start(error)) => {
                    self.device.context.set_failure(Some(&error.to_string()));
                }
            }
            let pause = self.backoff.next();
            if matches!(self.pause(pause), Waited::Stop) {
                return None;
            }
        }
    }

    fn set_stable(&mut self) {
        (self.early_exits, self.backoff) = (0, Backoff::new());
        self.device.context.set_failure(None);
    }

    /// Waits before a restart if backends exit early; false if the device is to stop.
    fn wait_before_restart(&mut self, worked: Duration) -> bool {
        if worked >= STABLE_AFTER || !self.restartable {
            return true;
        }
        self.early_exits += 1;
        if self.early_exits == 1 {
            return true;
        }
        let why = "its backend keeps exiting soon after it is started";
        self.device.context.set_failure(Some(why));
        let pause = self.backoff.next();
        !matches!(self.pause(pause), Waited::Stop)
    }

    /// Sets up a backend with all requests in flight.
    fn resume(&mut self, backend: &VhostUserBackend) -> Result<(), ResumeError> {
        if self.checkpoint_file.is_none() {
            let opened = self.device.context.checkpoint.open();
            self.checkpoint_file = Some(opened.map_err(failed("writing the checkpoint"))?);
        }
        let device = &self.device;
        let mut prepared = Vec::new();
        let queues = device.queues.iter().zip(&device.notifiers);
        for (queue, inflight) in queues.zip(&mut self.inflight) {
            prepared.push((queue, inflight.requeue(&device.memory)?));
        }
        for (number, inflight) in self.inflight.iter().enumerate() {
            if let Some(checkpoint_file) = &self.checkpoint_file {
                let written = checkpoint_file.write(number, &inflight.record());
                written.map_err(failed("writing the checkpoint"))?;
            }
        }
        backend.with_timeout(REPLY_TIMEOUT, || {
            configure(&backend.frontend, device.features, &prepared, || {
                backend.set_memory(&device.memory)
            })
        })?;
        device.notifiers.iter().for_each(QueueNotifier::signal_both);
        Ok(())
    }

    /// Tracks the virtqueues until the device is to stop or the backend exits.
    fn watch(&mut self, backend: &VhostUserBackend, began: Instant) -> Waited {
        let mut interval = POLL_MIN;
        loop {
            let time = self.restartable.then_some(interval);
            match self.wait(Some(backend.as_fd()), time) {
                Waited::TimedOut => {}
                Waited::MemoryChange => match self.change_memory(Some(backend)) {
                    true => {}
                    false => return Waited::Exited,
                },
                waited => return waited,
            }
            if self.early_exits > 0 && began.elapsed() >= STABLE_AFTER {
                self.set_stable();
            }
            interval = match self.update_inflight() {
                true => POLL_MIN,
                false => POLL_MAX.min(interval * 2),
            };
        }
    }

    /// Handles the memory changes sent. False if the backend failed and must be replaced.
    fn change_memory(&mut self, backend: Option<&VhostUserBackend>) -> bool {
        // The bytes only signal that there are changes.
        let _ = self.control.read(&mut [0; 16]);
        let mut succeeded = true;
        while let Ok((memory, done)) = self.changes.try_recv() {
            let mut changed = self.change_to(&memory, backend.filter(|_| succeeded));
            if changed.is_err() && self.restartable && self.has_queues(&memory) {
                (succeeded, changed) = (false, Ok(()));
            }
            if changed.is_ok() {
                self.device.memory = memory;
            }
            // A sender that timed out has seen a failure.
            let _ = done.send(changed);
        }
        succeeded
    }

    fn change_to(
        &self,
        memory: &NodeMemory,
        backend: Option<&VhostUserBackend>,
    ) -> Result<(), StartError> {
        if !self.has_queues(memory) {
            let text = "a virtqueue lies in memory that is to be removed";
            return Err(StartError::Backend(text.into()));
        }
        match backend {
            Some(backend) => backend.change_memory(&self.device.memory, memory),
            None => Ok(()),
        }
    }

    fn has_queues(&self, memory: &NodeMemory) -> bool {
        self.device
            .queues
            .iter()
            .all(|queue| lies_in(memory, queue))
    }

    /// Updates the tracked state; whether any virtqueue has moved.
    fn update_inflight(&mut self) -> bool {
        let mut moved = false;
        for (number, inflight) in self.inflight.iter_mut().enumerate() {
            if inflight.update(&self.device.memory) {
                moved = true;
                // On failure the next reader detects that the old record is stale.
                if let Some(checkpoint_file) = &self.checkpoint_file {
                    let _ = checkpoint_file.write(number, &inflight.record());
                }
            }
        }
        moved
    }

    /// Waits that long, unless the device is to stop.
    fn pause(&mut self, time: Duration) -> Waited {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.wait(None, Some(left)) {
                Waited::MemoryChange => drop(self.change_memory(None)),
                waited => return waited,
            }
        }
    }

    fn start_next(&self) -> Result<VhostUserBackend, ResumeError> {
        match self.restartable || self.checkpoint_file.is_none() {
            true => Ok((self.start)()?),
            false => Err(Unrecoverable::State.into()),
        }
    }

    fn report_lost(&self, why: &Unrecoverable) {
        let text = format!("its backend has exited, and {why}");
        self.device.context.device_lost(&text);
    }

    /// Waits for control messages and the backend's exit, at most `time` if given.
    fn wait(&self, backend: Option<BorrowedFd<'_>>, time: Option<Duration>) -> Waited {
        let waits = [Some(self.control.as_fd()), backend];
        let mut polled: Vec<_> = waits
            .into_iter()
            .flatten()
            .map(|fd| PollFd::new(fd, PollFlags::POLLHUP))
            .collect();
        polled[0].set_events(PollFlags::POLLIN);
        let time = time.map(PollTimeout::try_from);
        let time = time.map_or(PollTimeout::NONE, |time| time.unwrap_or(PollTimeout::MAX));
        // An interrupting signal counts as a timeout.
        let _ = poll(&mut polled, time);
        let is_disconnected = |fd: &PollFd<'_>| {
            let events = fd.revents().unwrap_or(PollFlags::empty());
            events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR)
        };
        let is_over = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        match polled.as_slice() {
            [control, ..] if is_disconnected(control) => Waited::Stop,
            [control, ..] if is_over(control) => Waited::MemoryChange,
            [_, backend] if is_over(backend) => Waited::Exited,
            _ => Waited::TimedOut,
        }
    }
}
