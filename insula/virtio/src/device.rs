//! A virtio device as its driver sees it.

use std::time::Instant;

use insula_abi::virtio::{
    self, CONFIG_MAX, Config, ConfigRange, DeviceInfo, EventConfig, Features, Shm, Status,
    VqueueIndex,
};

use super::backoff::Backoff;
use super::drain::Drain;
use super::message::{ProtocolError, Request, event};

/// Vendor id of all devices: "INSL".
const VENDOR_ID: u32 = 0x4c53_4e49;

/// `VIRTIO_F_VERSION_1`, a feature of the transport (specification, 6 "Reserved Feature Bits").
const VERSION_1: u64 = 1 << 32;

/// Bits of a device's status (specification, 2.1).
const ACKNOWLEDGE: u8 = 1;
const DRIVER: u8 = 2;
const DRIVER_OK: u8 = 4;
const FEATURES_OK: u8 = 8;
const NEEDS_RESET: u8 = 64;
const FAILED: u8 = 128;

/// Type and capabilities of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    /// Device type (specification, 5 "Device Types").
    pub device_id: u32,
    /// Device features, without the transport's.
    pub features: u64,
    /// Maximum size of each virtqueue in entries, powers of two.
    pub queue_sizes: &'static [u16],
}

/// A virtqueue as set up by its driver. Addresses are physical and unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Virtqueue {
    /// Index among the device's virtqueues.
    pub index: u32,
    /// Entries: a power of two, at most the device's maximum.
    pub size: u16,
    /// Address of the descriptor table.
    pub descriptors: u64,
    /// Address of the available ring (driver area).
    pub driver: u64,
    /// Address of the used ring (device area).
    pub device: u64,
    /// Event of the channel that notifies in both directions.
    pub event: u32,
}

/// Why a device did not start. Its state is unchanged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The driver's setup is invalid; it must reset the device.
    #[error("{0}")]
    Driver(String),
    /// The backend failed; a retry may succeed.
    #[error("{0}")]
    Backend(String),
}

/// The implementation of a device.
pub(crate) trait Backend: Send {
    /// Type and features. Constant.
    fn identity(&self) -> Identity;

    /// Name for messages.
    fn name(&self) -> String;

    /// Present contents of the configuration space, of constant size.
    fn config(&self) -> Vec<u8>;

    /// Whether [`config`](Self::config) is still a placeholder.
    fn awaits_config(&self) -> bool {
        false
    }

    /// Handles a driver's write to the configuration space; read-only fields stay.
    fn write_config(&mut self, _offset: usize, _bytes: &[u8]) {}

    /// Starts serving these virtqueues with the features that the driver accepted.
    ///
    /// # Errors
    /// [`StartError`].
    fn start(&mut self, features: u64, queues: &[Virtqueue]) -> Result<(), StartError>;

    /// Switches to the node's present memory after it grew or shrank. Removed memory is no longer
    /// accessed once this returns.
    ///
    /// # Errors
    /// [`StartError`]; the backend goes on with the old memory.
    fn change_memory(&mut self) -> Result<(), StartError> {
        Ok(())
    }

    /// Begins to complete all requests of the driver, which makes no more, if another backend is to go on
    /// with the same virtqueues; otherwise `None`. `is_started`: whether it serves its virtqueues.
    ///
    /// # Errors
    /// [`StartError`]: nobody knows which requests there are.
    fn drain(&self, _is_started: bool) -> Result<Option<Drain>, StartError> {
        Ok(None)
    }

    /// Stops the device; the node's memory is no longer accessed once this returns.
    fn stop(&mut self);

    /// Stops the device because the session has ended. The driver may come back with the same
    /// virtqueues.
    fn disconnect(&mut self) {
        self.stop();
    }
}

/// A device and the state of its initialization by the driver.
pub(super) struct Device {
    backend: Box<dyn Backend>,
    identity: Identity,
    first_event: u32,
    status: u8,
    /// Features accepted by the driver.
    features: u64,
    queues: Vec<Option<Virtqueue>>,
    started: bool,
    /// Time of the next start after a failed one.
    retry: Option<(Instant, Backoff)>,
    /// Last unreported status change: its failure, or `None` inside if it works.
    status_change: Option<Option<String>>,
    /// The configuration last seen by the driver, and its generation.
    config: Vec<u8>,
    generation: u32,
}

impl Device {
    pub(super) fn new(backend: Box<dyn Backend>, first_event: u32) -> Self {
        let (identity, config) = (backend.identity(), backend.config());
        Self {
            backend,
            identity,
            retry: None,
            status_change: None,
            config,
            generation: 0,
            first_event,
            status: 0,
            features: 0,
            queues: vec![None; identity.queue_sizes.len()],
            started: false,
        }
    }

    /// Device reset.
    pub(super) fn reset(&mut self) {
        if self.started {
            self.backend.stop();
        }
        self.cancel_retry();
        self.started = false;
        self.status = 0;
        self.features = 0;
        self.queues.fill(None);
    }

    /// Handles the end of the session with its driver.
    pub(super) fn disconnect(&mut self) {
        if std::mem::take(&mut self.started) {
            self.backend.disconnect();
        }
        self.reset();
    }

    /// Takes the unreported status change: name, and failure or `None`.
    pub(super) fn take_status_change(&mut self) -> Option<(String, Option<String>)> {
        let status_change = self.status_change.take()?;
        Some((self.backend.name(), status_change))
    }

    /// Whether it needs service without a message from its driver.
    pub(super) fn needs_service(&self) -> bool {
        self.retry.is_some() || self.backend.awaits_config()
    }

    /// Retries the start if it is due.
    pub(super) fn retry(&mut self, now: Instant) {
        if self.retry.as_ref().is_some_and(|(due, _)| *due <= now) {
            self.start();
        }
    }

    /// A configuration change message, if the configuration has changed.
    pub(super) fn take_config_event(&mut self, number: u16) -> Option<Vec<u8>> {
        let config = self.backend.config();
        if config == self.config {
            return None;
        }
        self.config = config;
        self.generation = self.generation.wrapping_add(1);
        let body = EventConfig {
            status: self.status.into(),
            config: Config {
                generation: self.generation,
                ..Config::default()
            },
        };
        Some(event(virtio::device::EVENT_CONFIG, number, body))
    }

    fn cancel_retry(&mut self) {
        if self.retry.take().is_some() {
            self.status_change = Some(None);
        }
    }

    /// Handles a change of the node's memory.
    pub(super) fn change_memory(&mut self) -> Result<(), StartError> {
        match self.started {
            true => self.backend.change_memory(),
            false => Ok(()),
        }
    }

    /// Begins to complete all requests, if another backend would have to repeat them.
    pub(super) fn drain(&self) -> Result<Option<Drain>, StartError> {
        if self.retry.is_some() {
            let text = format!("the {} does not work", self.backend.name());
            return Err(StartError::Backend(text));
        }
        self.backend.drain(self.started)
    }

    /// Its virtqueues, while they are served.
    pub(super) fn served_queues(&self) -> Vec<Virtqueue> {
        let queues = self.queues.iter().flatten();
        queues.filter(|_| self.started).copied().collect()
    }

    pub(super) fn answer(&mut self, request: &Request<'_>) -> Result<Vec<u8>, ProtocolError> {
        use virtio::device as id;
        match request.id() {
            id::GET_DEVICE_INFO => self.get_info(request),
            id::GET_FEATURES => self.get_features(request),
            id::SET_FEATURES => self.accept_features(request),
            id::GET_CONFIG => self.read_config(request),
            id::SET_CONFIG => self.write_config(request),
            id::GET_STATUS => request.no_body().map(|()| self.get_status(request)),
            id::SET_STATUS => self.set_status(request),
            id::GET_VQUEUE => self.get_queue(request),
            id::SET_VQUEUE => self.set_queue(request),
            id::RESET_VQUEUE => self.reset_queue(request),
            id::GET_SHM => {
                let VqueueIndex { index } = request.body()?;
                let none = Shm {
                    index,
                    ..Shm::default()
                };
                Ok(request.answer(none))
            }
            _ => Err(request.unknown()),
        }
    }

    fn get_info(&self, request: &Request<'_>) -> Result<Vec<u8>, ProtocolError> {
        request.no_body()?;
        Ok(request.answer(DeviceInfo {
            device_id: self.identity.device_id,
            vendor_id: VENDOR_ID,
            feature_bits: u64::BITS,
            config_size: self.backend.config().len() as u32,
            vqueues_max: self.queues.len() as u32,
            admin_vqueue_first: 0,
            admin_vqueues: 0,
        }))
    }

    fn offered(&self) -> u64 {
        self.identity.features | VERSION_1
    }

    /// Returns all feature blocks, whichever were requested.
    fn get_features(&self, request: &Request<'_>) -> Result<Vec<u8>, ProtocolError> {
        let _: virtio::Blocks = request.body()?;
        Ok(request.answer(features(self.offered())))
    }

    fn accept_features(&mut self, request: &Request<'_>) -> Result<Vec<u8>, ProtocolError> {
        let accepted: Features = request.body()?;
        if accepted.blocks != features(0).blocks {
            return Err(request.unknown());
        }
        self.features = u64::from(accepted.words[1]) << 32 | u64::from(accepted.words[0]);
        Ok(request.done())
    }

    /// A range outside the configuration reads as empty.
    fn read_config(&self, request: &Request<'_>) -> Result<Vec<u8>, ProtocolError> {
        let ConfigRange { offset, size } = request.body()?;
        let bytes = range(offset, size)
            .and_then(|range| self.config.get(range))
            .unwrap_or_default();
        let head = Config {
            generation: self.generation,
            offset,
            size: bytes.len() as u32,
        };
        Ok(request.answer_with(head, bytes))
    }

    fn write_config(&mut self, request: &Request<'_>) -> Result<Vec<u8>, ProtocolError> {
        let (head, bytes): (Config, _) = request.body_and_rest()?;
        if bytes.len() != head.size as usize {
            return Err(request.unknown());
        }
        let size = self.backend.config().len();
        if let Some(range) = range(head.offset, head.size).filter(|range| range.end <= size) {
            self.backend.write_config(range.start, bytes);
            self.config = self.backend.config();
        }
        Ok(request.answer_with(head, bytes))
    }

    fn get_status(&self, request: &Request<'_>) -> Vec<u8> {
        request.answer(Status {
            status: self.status.into(),
        })
    }

    /// Returns the resulting status, which the driver compares with the one it set.
    fn set_status(&mut self, request: &Request<'_>) -> Result<Vec<u8>, ProtocolError> {
        let Status { status } = request.body()?;
        let requested = u8::try_from(status).map_err(|_| request.unknown())?;
        if requested == 0 {
            self.reset();
        } else if self.status & NEEDS_RESET == 0 {
            self.advance(requested);
        }
        Ok(self.get_status(request))
    }

    fn advance(&mut self, requested: u8) {
        let mut next = requested & (ACKNOWLEDGE | DRIVER | DRIVER_OK | FEATURES_OK | FAILED);
        let agreed = self.features & !self.offered() == 0 && self.features & VERSION_1 != 0;
        if next & FEATURES_OK != 0 && !agreed {
            next &= !FEATURES_OK;
        }
        if next & FEATURES_OK == 0 {
            next &= !DRIVER_OK;
        }
        self.status = next;
        if next & DRIVER_OK != 0 && !self.started && self.retry.is_none() {
            self.start();
        }
    }

    /// Starts the backend. A failed start is retried until the driver resets the device; the driver
    /// only sees a slow device.
    fn start(&mut self) {
        let queues: Vec<_> = self.queues.iter().flatten().copied().collect();
        let retry = self.retry.take();
        match self.backend.start(self.features, &queues) {
            Ok(()) => {
                self.started = true;
                self.status_change = Some(None);
            }
            Err(StartError::Driver(why)) => {
                self.status |= NEEDS_RESET;
                self.status_change = Some(Some(why));
            }
            Err(StartError::Backend(why)) => {
                let mut backoff = retry.map_or_else(Backoff::new, |(_, backoff)| backoff);
                self.retry = Some((Instant::now() + backoff.next(), backoff));
                self.status_change = Some(Some(why));
            }
        }
    }

    /// A virtqueue that does not exist has maximum size 0.
    fn get_queue(&self, request: &Request<'_>) -> Result<Vec<u8>, ProtocolError> {
        let VqueueIndex { index } = request.body()?;
        let size_max = self.identity.queue_sizes.get(index as usize);
        let mut reply = virtio::Vqueue {
            index,
            size_max: size_max.copied().unwrap_or(0).into(),
            event: self.first_event.saturating_add(index),
            ..virtio::Vqueue::default()
        };
        if let Some(Some(queue)) = self.queues.get(index as usize) {
            reply.size = queue.size.into();
            reply.descriptors = queue.descriptors;
            reply.driver = queue.driver;
            reply.device = queue.device;
        }
        Ok(request.answer(reply))
    }

    /// Ignored once the device is started, or if the size is invalid: the start then finds a
    /// virtqueue missing.
    fn set_queue(&mut self, request: &Request<'_>) -> Result<Vec<u8>, ProtocolError> {
        let requested: virtio::Vqueue = request.body()?;
        let index = requested.index as usize;
        let Some(&size_max) = self.identity.queue_sizes.get(index) else {
            return Err(request.unknown());
        };
        let size = u16::try_from(requested.size).unwrap_or(0);
        if size.is_power_of_two() && size <= size_max && !self.started {
            self.queues[index] = Some(Virtqueue {
                index: requested.index,
                size,
                descriptors: requested.descriptors,
                driver: requested.driver,
                device: requested.device,
                event: self.first_event + requested.index,
            });
        }
        Ok(request.done())
    }

    /// A driver that resets one virtqueue resets all: the device stops at the first.
    fn reset_queue(&mut self, request: &Request<'_>) -> Result<Vec<u8>, ProtocolError> {
        let VqueueIndex { index } = request.body()?;
        if self.started {
            self.backend.stop();
            self.started = false;
        }
        self.cancel_retry();
        match self.queues.get_mut(index as usize) {
            Some(queue) => *queue = None,
            None => return Err(request.unknown()),
        }
        Ok(request.done())
    }
}

fn features(bits: u64) -> Features {
    Features {
        blocks: virtio::Blocks { first: 0, count: 2 },
        words: [bits as u32, (bits >> 32) as u32],
    }
}

/// A range of configuration bytes, if it fits a message.
fn range(offset: u32, size: u32) -> Option<std::ops::Range<usize>> {
    let end = offset.checked_add(size)?;
    (size as usize <= CONFIG_MAX).then_some(offset as usize..end as usize)
}
