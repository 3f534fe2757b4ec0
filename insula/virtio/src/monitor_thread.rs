//! The thread of a backend monitor.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::backend_process::{REPLY_TIMEOUT, VhostUserBackend};
use super::backoff::Backoff;
use super::checkpoint::CheckpointFile;
use super::device::StartError;
use super::inflight::{Inflight, Unrecoverable};
use super::memory::NodeMemory;
use super::monitor::{ActiveDevice, BackendLauncher, Request};
use super::vhost::{QueueNotifier, configure, failed, lies_in};

/// Poll interval of busy virtqueues, short enough that a ring does not wrap unseen.
const POLL_MIN: Duration = Duration::from_millis(1);
/// Poll interval of idle virtqueues.
const POLL_MAX: Duration = Duration::from_millis(64);
/// A backend that exits after this time is restarted at once, and so is the first that exits
/// earlier. Further early exits are followed by growing pauses.
const STABLE_AFTER: Duration = Duration::from_secs(10);

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
    /// There are requests of the monitor's owner.
    Request,
    TimedOut,
}

pub(super) struct MonitorThread {
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
    requests: Receiver<Request>,
    /// To be told once no request of the driver is in flight.
    drains: Vec<Sender<()>>,
}

/// Tracks the virtqueues, each from the record of an earlier supervisor if there is one. A record is
/// written before a backend is told of the virtqueue: without one, a copy's has not been served.
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
    let record = |number| checkpoint_file.as_ref().and_then(|file| file.read(number));
    let track = |(number, queue)| match record(number) {
        None if device.context.is_copy => Inflight::track_unserved(&device.memory, queue),
        None => Inflight::track(&device.memory, queue),
        Some(record) => {
            let mut inflight = Inflight::track(&device.memory, queue);
            inflight.restore(&record);
            inflight
        }
    };
    Ok(device.queues.iter().enumerate().map(track).collect())
}

impl MonitorThread {
    /// A thread that has not begun.
    pub(super) fn new(
        device: ActiveDevice,
        launcher: BackendLauncher,
        control: UnixStream,
        requests: Receiver<Request>,
    ) -> Result<Self, StartError> {
        Ok(Self {
            inflight: track_all(&device)?,
            device,
            start: launcher.start,
            restartable: launcher.restartable,
            checkpoint_file: None,
            early_exits: 0,
            backoff: Backoff::new(),
            control,
            requests,
            drains: Vec::new(),
        })
    }

    /// Serves until the device is to stop or is lost.
    pub(super) fn run(mut self, mut next: Option<VhostUserBackend>) {
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
                Waited::Request => match self.handle_requests(Some(backend)) {
                    true => {}
                    false => return Waited::Exited,
                },
                waited => return waited,
            }
            if self.early_exits > 0 && began.elapsed() >= STABLE_AFTER {
                self.set_stable();
            }
            let is_busy = self.update_inflight();
            self.report_drained();
            interval = match is_busy || !self.drains.is_empty() {
                true => POLL_MIN,
                false => POLL_MAX.min(interval * 2),
            };
        }
    }

    /// Handles all requests sent. False if the backend failed and must be replaced.
    fn handle_requests(&mut self, backend: Option<&VhostUserBackend>) -> bool {
        // The bytes only signal that there are requests.
        let _ = self.control.read(&mut [0; 16]);
        let mut succeeded = true;
        while let Ok(request) = self.requests.try_recv() {
            match request {
                Request::ChangeMemory(memory, done) => {
                    let backend = backend.filter(|_| succeeded);
                    succeeded &= self.change_memory(memory, &done, backend);
                }
                Request::Drain(done) => self.begin_drain(done),
            }
        }
        succeeded
    }

    /// Changes the memory, also if the backend does not follow but can be replaced: then false.
    fn change_memory(
        &mut self,
        memory: NodeMemory,
        done: &Sender<Result<(), StartError>>,
        backend: Option<&VhostUserBackend>,
    ) -> bool {
        let mut changed = self.change_to(&memory, backend);
        let is_replaced = changed.is_err() && self.restartable && self.has_queues(&memory);
        if is_replaced {
            changed = Ok(());
        }
        if changed.is_ok() {
            self.device.memory = memory;
        }
        let _ = done.send(changed);
        !is_replaced
    }

    /// A driver that was paused may have made requests that it has not notified its backend of yet. The
    /// next backend looks for them by itself.
    fn begin_drain(&mut self, done: Sender<()>) {
        self.device.notifiers.iter().for_each(QueueNotifier::kick);
        self.drains.push(done);
    }

    fn report_drained(&mut self) {
        if self.inflight.iter().all(Inflight::is_drained) {
            for done in self.drains.drain(..) {
                let _ = done.send(());
            }
        }
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
                Waited::Request => drop(self.handle_requests(None)),
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
            [control, ..] if is_over(control) => Waited::Request,
            [_, backend] if is_over(backend) => Waited::Exited,
            _ => Waited::TimedOut,
        }
    }
}
