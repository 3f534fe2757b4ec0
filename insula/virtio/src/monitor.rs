//! The backend monitor: restarts a device's backend process when it dies. Its handle; the thread is in
//! `monitor_thread`.
//!
//! A new backend resumes the requests in flight; the driver only sees longer requests. A request
//! without a completion may or may not have been executed, as on a disk that loses power; executing
//! it twice makes no difference. Where a backend has other state, its exit is final: the device is
//! lost, and with it the node.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::backend_process::VhostUserBackend;
use super::checkpoint::DeviceCheckpoint;
use super::device::{StartError, Virtqueue};
use super::memory::NodeMemory;
use super::monitor_thread::MonitorThread;
use super::vhost::{QueueNotifier, failed};

/// Timeout of a memory change. Meanwhile no message of a driver is answered; drivers time out after
/// ten seconds.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(4);

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
    /// Whether the node is a copy, which has begun without requests in flight.
    pub(super) is_copy: bool,
    pub(super) device_events: Arc<dyn DeviceEvents>,
}

impl DeviceContext {
    /// Whether its driver may have requests in flight before it is started in this session: those of
    /// the last supervisor's time, or of the original's driver.
    pub(super) fn may_have_requests(&self) -> bool {
        self.is_copy || self.checkpoint.exists()
    }

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

/// A request to a monitor's thread. A sender that has given up gets its answer in vain.
pub(super) enum Request {
    /// Switch to other memory.
    ChangeMemory(NodeMemory, Sender<Result<(), StartError>>),
    /// Have the backend look for requests, and answer once none is in flight.
    Drain(Sender<()>),
}

/// Keeps a device's backend running until dropped.
pub(super) struct Monitor {
    /// Closed to stop the thread; written to after sending a request.
    control: Option<UnixStream>,
    requests: Sender<Request>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Starts serving the device's virtqueues, as soon as a backend is running.
    ///
    /// # Errors
    /// [`StartError`]; the device is not served.
    pub(super) fn start(
        device: ActiveDevice,
        mut launcher: BackendLauncher,
    ) -> Result<Self, StartError> {
        let (control, peer) = UnixStream::pair().map_err(failed("making a socket"))?;
        peer.set_nonblocking(true)
            .map_err(failed("making a socket"))?;
        let (requests, received) = mpsc::channel();
        let first = launcher.first.take();
        let thread = MonitorThread::new(device, launcher, peer, received)?;
        let thread = thread::Builder::new()
            .name("monitor".into())
            .spawn(move || thread.run(first))
            .map_err(failed("starting a thread"))?;
        Ok(Self {
            control: Some(control),
            requests,
            thread: Some(thread),
        })
    }

    /// Switches the device to other memory; the old one is no longer accessed when this returns.
    ///
    /// # Errors
    /// [`StartError`]; the device goes on with the old memory.
    pub(super) fn change_memory(&self, memory: NodeMemory) -> Result<(), StartError> {
        let (done, answer) = mpsc::channel();
        self.send(Request::ChangeMemory(memory, done))?;
        answer
            .recv_timeout(CHANGE_TIMEOUT)
            .map_err(|error| match error {
                mpsc::RecvTimeoutError::Timeout => {
                    StartError::Backend("its backend does not handle the change".into())
                }
                mpsc::RecvTimeoutError::Disconnected => ended(),
            })?
    }

    /// Has the backend complete all requests of the driver, which makes no more. The receiver gets a
    /// message when it has; it is disconnected when the device ends before.
    ///
    /// # Errors
    /// The device has ended.
    pub(super) fn drain(&self) -> Result<Receiver<()>, StartError> {
        let (done, answer) = mpsc::channel();
        self.send(Request::Drain(done))?;
        Ok(answer)
    }

    fn send(&self, request: Request) -> Result<(), StartError> {
        self.requests.send(request).map_err(|_| ended())?;
        let woken = self.control.as_ref().map(|mut control| control.write(&[1]));
        // A full socket means that the thread is awake.
        drop(woken);
        Ok(())
    }
}

fn ended() -> StartError {
    StartError::Backend("the device has ended".into())
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
