//! A device as its driver sees it.

use std::time::Instant;

use insula_abi::virtio::{
    self, CONFIG_MAX, Config, ConfigRange, DeviceInfo, EventConfig, Features, Shm, Status,
    VqueueIndex,
};

use super::message::{Nonsense, Request, event};
use super::pause::Pause;

/// "INSL": who made the devices.
const VENDOR_ID: u32 = 0x4c53_4e49;

/// Feature bits that concern the transport, not the device (specification, 6 "Reserved Feature
/// Bits").
const VERSION_1: u64 = 1 << 32;

/// Bits of a device's status (specification, 2.1).
const ACKNOWLEDGE: u8 = 1;
const DRIVER: u8 = 2;
const DRIVER_OK: u8 = 4;
const FEATURES_OK: u8 = 8;
const NEEDS_RESET: u8 = 64;
const FAILED: u8 = 128;

/// What a device is.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Its kind, by the specification (5 "Device Types").
    pub device_id: u32,
    /// What it can, the transport's features left out.
    pub features: u64,
    /// The most entries of each of its virtqueues: powers of two.
    pub queue_sizes: &'static [u16],
}

/// A virtqueue as its driver has laid it out. The addresses are physical and unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Virtqueue {
    /// Which of the device's.
    pub index: u32,
    /// Entries, a power of two, at most what the device allows.
    pub size: u16,
    /// Where its descriptors are.
    pub descriptors: u64,
    /// Where the ring of available buffers is.
    pub driver: u64,
    /// Where the ring of used buffers is.
    pub device: u64,
    /// The event of the channel that stands for it, both ways.
    pub event: u32,
}

/// Why a device did not start. It is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The driver has laid it out in a way that cannot be. It must reset the device.
    #[error("{0}")]
    Driver(String),
    /// Who is to do its work cannot. Later that may be otherwise.
    #[error("{0}")]
    BackEnd(String),
}

/// Who does a device's work.
pub trait BackEnd: Send {
    /// What the device is. Always the same.
    fn identity(&self) -> Identity;

    /// What it is, in words for its user.
    fn name(&self) -> String;

    /// Its configuration space, now. Of the same size always.
    fn config(&self) -> Vec<u8>;

    /// Whether the configuration is not known yet, and something that stands for it.
    fn awaits_config(&self) -> bool {
        false
    }

    /// The driver writes to the configuration space; what it may not write is left as it is.
    fn write_config(&mut self, _offset: usize, _bytes: &[u8]) {}

    /// Works on these virtqueues from now on. `features` are the driver's choice.
    ///
    /// # Errors
    /// [`StartError`].
    fn start(&mut self, features: u64, queues: &[Virtqueue]) -> Result<(), StartError>;

    /// The node's memory is more or less than it was when the device was started: works on with what
    /// there is now, and reaches no more than that once this has returned.
    ///
    /// # Errors
    /// [`StartError`]; it works on with what there was.
    fn change_memory(&mut self) -> Result<(), StartError> {
        Ok(())
    }

    /// Touches the node's memory no more once this has returned.
    fn stop(&mut self);

    /// The same when the session with the driver has ended, which does not know yet, and may come
    /// back with the same virtqueues.
    fn leave(&mut self) {
        self.stop();
    }
}

/// A device with its driver's progress.
pub(super) struct Device {
    back_end: Box<dyn BackEnd>,
    identity: Identity,
    first_event: u32,
    status: u8,
    /// What the driver takes.
    features: u64,
    queues: Vec<Option<Virtqueue>>,
    started: bool,
    /// When it is to be started again, which has failed so far.
    retry: Option<(Instant, Pause)>,
    /// Why it does not work, or that it does: until somebody has asked.
    news: Option<Option<String>>,
    /// The configuration as the driver has it, and how often that has changed.
    config: Vec<u8>,
    generation: u32,
}

impl Device {
    pub(super) fn new(back_end: Box<dyn BackEnd>, first_event: u32) -> Self {
        let (identity, config) = (back_end.identity(), back_end.config());
        Self {
            back_end,
            identity,
            retry: None,
            news: None,
            config,
            generation: 0,
            first_event,
            status: 0,
            features: 0,
            queues: vec![None; identity.queue_sizes.len()],
            started: false,
        }
    }

    /// Back to where no driver has found it yet.
    pub(super) fn reset(&mut self) {
        if self.started {
            self.back_end.stop();
        }
        self.stop_trying();
        self.started = false;
        self.status = 0;
        self.features = 0;
        self.queues.fill(None);
    }

    /// The session with its driver has ended.
    pub(super) fn leave(&mut self) {
        if std::mem::take(&mut self.started) {
            self.back_end.leave();
        }
        self.reset();
    }

    /// What it is, and why it does not work, or that it does, if that has changed.
    pub(super) fn take_news(&mut self) -> Option<(String, Option<String>)> {
        let news = self.news.take()?;
        Some((self.back_end.name(), news))
    }

    /// Whether something is to be done without its driver asking for it.
    pub(super) fn waits(&self) -> bool {
        self.retry.is_some() || self.back_end.awaits_config()
    }

    /// Starts it again, if that is due.
    pub(super) fn retry(&mut self, now: Instant) {
        if self.retry.as_ref().is_some_and(|(due, _)| *due <= now) {
            self.start();
        }
    }

    /// The message that tells the driver, if the configuration is not what it was.
    pub(super) fn take_event(&mut self, number: u16) -> Option<Vec<u8>> {
        let config = self.back_end.config();
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

    fn stop_trying(&mut self) {
        if self.retry.take().is_some() {
            self.news = Some(None);
        }
    }

    /// The node's memory has changed.
    pub(super) fn change_memory(&mut self) -> Result<(), StartError> {
        match self.started {
            true => self.back_end.change_memory(),
            false => Ok(()),
        }
    }

    pub(super) fn answer(&mut self, request: &Request<'_>) -> Result<Vec<u8>, Nonsense> {
        use virtio::device as id;
        match request.id() {
            id::GET_DEVICE_INFO => self.info(request),
            id::GET_FEATURES => self.offer_features(request),
            id::SET_FEATURES => self.take_features(request),
            id::GET_CONFIG => self.read_config(request),
            id::SET_CONFIG => self.write_config(request),
            id::GET_STATUS => request.no_body().map(|()| self.tell_status(request)),
            id::SET_STATUS => self.set_status(request),
            id::GET_VQUEUE => self.tell_queue(request),
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

    fn info(&self, request: &Request<'_>) -> Result<Vec<u8>, Nonsense> {
        request.no_body()?;
        Ok(request.answer(DeviceInfo {
            device_id: self.identity.device_id,
            vendor_id: VENDOR_ID,
            feature_bits: u64::BITS,
            config_size: self.back_end.config().len() as u32,
            vqueues_max: self.queues.len() as u32,
            admin_vqueue_first: 0,
            admin_vqueues: 0,
        }))
    }

    fn offered(&self) -> u64 {
        self.identity.features | VERSION_1
    }

    /// All blocks, whichever were asked for.
    fn offer_features(&self, request: &Request<'_>) -> Result<Vec<u8>, Nonsense> {
        let _: virtio::Blocks = request.body()?;
        Ok(request.answer(features(self.offered())))
    }

    fn take_features(&mut self, request: &Request<'_>) -> Result<Vec<u8>, Nonsense> {
        let taken: Features = request.body()?;
        if taken.blocks != features(0).blocks {
            return Err(request.unknown());
        }
        self.features = u64::from(taken.words[1]) << 32 | u64::from(taken.words[0]);
        Ok(request.done())
    }

    /// What lies outside reads as nothing.
    fn read_config(&self, request: &Request<'_>) -> Result<Vec<u8>, Nonsense> {
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

    fn write_config(&mut self, request: &Request<'_>) -> Result<Vec<u8>, Nonsense> {
        let (head, bytes): (Config, _) = request.body_and_rest()?;
        if bytes.len() != head.size as usize {
            return Err(request.unknown());
        }
        let size = self.back_end.config().len();
        if let Some(range) = range(head.offset, head.size).filter(|range| range.end <= size) {
            self.back_end.write_config(range.start, bytes);
            self.config = self.back_end.config();
        }
        Ok(request.answer_with(head, bytes))
    }

    fn tell_status(&self, request: &Request<'_>) -> Vec<u8> {
        request.answer(Status {
            status: self.status.into(),
        })
    }

    /// The status that results, which the driver compares with what it wished for.
    fn set_status(&mut self, request: &Request<'_>) -> Result<Vec<u8>, Nonsense> {
        let Status { status } = request.body()?;
        let wished = u8::try_from(status).map_err(|_| request.unknown())?;
        if wished == 0 {
            self.reset();
        } else if self.status & NEEDS_RESET == 0 {
            self.advance(wished);
        }
        Ok(self.tell_status(request))
    }

    fn advance(&mut self, wished: u8) {
        let mut next = wished & (ACKNOWLEDGE | DRIVER | DRIVER_OK | FEATURES_OK | FAILED);
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

    /// A back end that fails is tried again, until the driver resets the device: to it the device is a
    /// slow one.
    fn start(&mut self) {
        let queues: Vec<_> = self.queues.iter().flatten().copied().collect();
        let retry = self.retry.take();
        match self.back_end.start(self.features, &queues) {
            Ok(()) => {
                self.started = true;
                self.news = Some(None);
            }
            Err(StartError::Driver(why)) => {
                self.status |= NEEDS_RESET;
                self.news = Some(Some(why));
            }
            Err(StartError::BackEnd(why)) => {
                let mut pause = retry.map_or_else(Pause::new, |(_, pause)| pause);
                self.retry = Some((Instant::now() + pause.next(), pause));
                self.news = Some(Some(why));
            }
        }
    }

    /// One that there is not has no entries.
    fn tell_queue(&self, request: &Request<'_>) -> Result<Vec<u8>, Nonsense> {
        let VqueueIndex { index } = request.body()?;
        let size_max = self.identity.queue_sizes.get(index as usize);
        let mut told = virtio::Vqueue {
            index,
            size_max: size_max.copied().unwrap_or(0).into(),
            event: self.first_event.saturating_add(index),
            ..virtio::Vqueue::default()
        };
        if let Some(Some(queue)) = self.queues.get(index as usize) {
            told.size = queue.size.into();
            told.descriptors = queue.descriptors;
            told.driver = queue.driver;
            told.device = queue.device;
        }
        Ok(request.answer(told))
    }

    /// Ignored once the device works, and when the size is not a possible one: the device then
    /// does not find all its queues when it is to start.
    fn set_queue(&mut self, request: &Request<'_>) -> Result<Vec<u8>, Nonsense> {
        let wished: virtio::Vqueue = request.body()?;
        let index = wished.index as usize;
        let Some(&size_max) = self.identity.queue_sizes.get(index) else {
            return Err(request.unknown());
        };
        let size = u16::try_from(wished.size).unwrap_or(0);
        if size.is_power_of_two() && size <= size_max && !self.started {
            self.queues[index] = Some(Virtqueue {
                index: wished.index,
                size,
                descriptors: wished.descriptors,
                driver: wished.driver,
                device: wished.device,
                event: self.first_event + wished.index,
            });
        }
        Ok(request.done())
    }

    /// A driver that takes one queue away takes all of them: the device stops with the first.
    fn reset_queue(&mut self, request: &Request<'_>) -> Result<Vec<u8>, Nonsense> {
        let VqueueIndex { index } = request.body()?;
        if self.started {
            self.back_end.stop();
            self.started = false;
        }
        self.stop_trying();
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

/// Bytes of the configuration, if a message can have as many.
fn range(offset: u32, size: u32) -> Option<std::ops::Range<usize>> {
    let end = offset.checked_add(size)?;
    (size as usize <= CONFIG_MAX).then_some(offset as usize..end as usize)
}
