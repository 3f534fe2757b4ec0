//! A backend slot: the part common to devices that are served by a process of the base.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use super::device::{StartError, Virtqueue};
use super::memory::DeviceNode;
use super::monitor::{ActiveDevice, BackendLauncher, DeviceContext, Monitor};
use super::vhost::{EventfdBinder, bind_notifiers};

/// A device's place for backend processes, one at a time while its driver uses it.
pub(super) struct BackendSlot {
    pub(super) node: Arc<DeviceNode>,
    pub(super) binder: Arc<dyn EventfdBinder>,
    pub(super) context: DeviceContext,
    pub(super) monitor: Option<Monitor>,
}

impl BackendSlot {
    /// Starts serving the virtqueues, of which there must be `count`, with the features that the
    /// driver accepted.
    ///
    /// # Errors
    /// [`StartError`]; no backend runs then.
    pub(super) fn start(
        &mut self,
        features: u64,
        queues: &[Virtqueue],
        count: usize,
        launcher: BackendLauncher,
    ) -> Result<(), StartError> {
        if queues.len() != count {
            let text = "not all its virtqueues are set up";
            return Err(StartError::Driver(text.into()));
        }
        let memory = self.node.map_apart()?;
        let notifiers = bind_notifiers(&memory, &self.binder, queues)?;
        let device = ActiveDevice {
            context: self.context.clone(),
            memory,
            features,
            queues: queues.to_vec(),
            notifiers,
        };
        self.monitor = Some(Monitor::start(device, launcher)?);
        Ok(())
    }

    /// Switches the backend to the node's present memory.
    ///
    /// # Errors
    /// [`StartError`]; it goes on with the old memory.
    pub(super) fn change_memory(&self) -> Result<(), StartError> {
        match &self.monitor {
            Some(monitor) => monitor.change_memory(self.node.map_apart()?),
            None => Ok(()),
        }
    }

    /// Has the backend complete all requests of the driver, which makes no more. The receiver gets a
    /// message when it has.
    ///
    /// # Errors
    /// It is not served.
    pub(super) fn drain(&self) -> Result<Receiver<()>, StartError> {
        match &self.monitor {
            Some(monitor) => monitor.drain(),
            None => Err(StartError::Backend("the device is not served".into())),
        }
    }

    /// Stops the device for its driver: requests in flight are dropped, and the buffers are the
    /// driver's again. The node is lost if the backend cannot be killed, since it could still write
    /// to them.
    pub(super) fn stop(&mut self) {
        if self.monitor.take().is_some() && self.context.checkpoint.lock().is_err() {
            self.context
                .device_lost("its backend still has the node's memory");
        }
        self.context.checkpoint.remove();
    }

    /// Stops the backend; the next one resumes the requests in flight.
    pub(super) fn disconnect(&mut self) {
        self.monitor = None;
    }
}
