//! The devices of a node, by device number.

use std::time::Instant;

use insula_abi::virtio::{
    self, DEVICES_MAX, DeviceList, DeviceRange, EVENTS_MAX, Ping, QUEUES_MAX,
};
use insula_base::error::Error;

use super::device::{Backend, Device, StartError, Virtqueue};
use super::drain::Drain;
use super::message::{Addressee, ProtocolError, Request};

/// All virtio devices of a node. Handles the messages of its drivers one at a time.
pub(crate) struct Bus {
    devices: Vec<Device>,
}

impl Bus {
    /// Creates devices with these backends, numbered in order. Each virtqueue gets the next event
    /// of the channel, from 0.
    ///
    /// # Errors
    /// When there are more devices or virtqueues than a bus can have.
    pub(crate) fn new(backends: Vec<Box<dyn Backend>>) -> Result<Self, Error> {
        let mut next_event = 0;
        let mut devices = Vec::new();
        for backend in backends {
            let queues = backend.identity().queue_sizes.len() as u32;
            let device = Device::new(backend, next_event);
            next_event += queues;
            devices.push(device);
            if queues > QUEUES_MAX
                || next_event > EVENTS_MAX
                || devices.len() > usize::from(DEVICES_MAX)
            {
                return Err(too_many_devices());
            }
        }
        Ok(Self { devices })
    }

    /// Handles a message and returns the response.
    ///
    /// # Errors
    /// [`ProtocolError`]: the caller must end the session by [`disconnect`](Self::disconnect).
    pub(crate) fn answer(&mut self, message: &[u8]) -> Result<Vec<u8>, ProtocolError> {
        let request = Request::parse(message)?;
        match request.addressee() {
            Addressee::Bus => self.answer_bus(&request),
            Addressee::Device(number) => match self.devices.get_mut(usize::from(number)) {
                Some(device) => device.answer(&request),
                None if request.id() == virtio::device::GET_DEVICE_INFO => {
                    request.no_body()?;
                    // Device id 0 means "no such device".
                    Ok(request.answer(virtio::DeviceInfo::default()))
                }
                None => Err(request.unknown()),
            },
        }
    }

    /// Stops every started device: the session has ended.
    pub(crate) fn disconnect(&mut self) {
        self.devices.iter_mut().for_each(Device::disconnect);
    }

    /// Whether a device needs [`service`](Self::service) soon without a message.
    #[must_use]
    pub(crate) fn needs_service(&self) -> bool {
        self.devices.iter().any(Device::needs_service)
    }

    /// Retries failed starts that are due. Returns event messages for the node.
    pub(crate) fn service(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        for (number, device) in (0..).zip(&mut self.devices) {
            device.retry(now);
            messages.extend(device.take_config_event(number));
        }
        messages
    }

    /// Takes the status changes since the last call: a device with its failure, or `None` if it
    /// works again.
    pub(crate) fn take_status_changes(&mut self) -> Vec<(String, Option<String>)> {
        let status_change = self.devices.iter_mut().map(Device::take_status_change);
        status_change.flatten().collect()
    }

    /// Has all started devices use the node's present memory.
    ///
    /// # Errors
    /// The first [`StartError`]: devices before that one use the new memory, the others the old.
    pub(crate) fn change_memory(&mut self) -> Result<(), StartError> {
        self.devices.iter_mut().try_for_each(Device::change_memory)
    }

    /// Begins to complete all requests that another backend would have to repeat: those to disks, in
    /// their order.
    ///
    /// # Errors
    /// The first [`StartError`].
    pub(super) fn drain(&self) -> Result<Vec<Drain>, StartError> {
        let drains = self.devices.iter().map(Device::drain);
        drains.filter_map(Result::transpose).collect()
    }

    /// The virtqueues that are served.
    pub(super) fn served_queues(&self) -> Vec<Virtqueue> {
        let queues = self.devices.iter().map(Device::served_queues);
        queues.flatten().collect()
    }

    fn answer_bus(&self, request: &Request<'_>) -> Result<Vec<u8>, ProtocolError> {
        match request.id() {
            virtio::bus::GET_DEVICES => Ok(self.list(request, request.body()?)),
            virtio::bus::PING => Ok(request.answer(request.body::<Ping>()?)),
            _ => Err(request.unknown()),
        }
    }

    /// A bitmap of device numbers from the first requested one.
    fn list(&self, request: &Request<'_>, requested: DeviceRange) -> Vec<u8> {
        let count = requested
            .count
            .min(DEVICES_MAX.saturating_sub(requested.first));
        let mut bits = vec![0_u8; usize::from(count).div_ceil(8)];
        for index in 0..count {
            let number = usize::from(requested.first) + usize::from(index);
            if number < self.devices.len() {
                bits[usize::from(index) / 8] |= 1 << (index % 8);
            }
        }
        let next = requested.first.saturating_add(count);
        let list = DeviceList {
            first: requested.first,
            count,
            next: if usize::from(next) < self.devices.len() {
                next
            } else {
                0
            },
        };
        request.answer_with(list, &bits)
    }
}

fn too_many_devices() -> Error {
    Error::new(format!(
        "a node has room for {DEVICES_MAX} virtio devices of {QUEUES_MAX} queues, {EVENTS_MAX} in \
         all"
    ))
}
