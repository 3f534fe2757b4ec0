//! The devices of a node, by number.

use std::time::Instant;

use insula_abi::virtio::{
    self, DEVICES_MAX, DeviceList, DeviceRange, EVENTS_MAX, Ping, QUEUES_MAX,
};

use super::device::{BackEnd, Device, StartError};
use super::message::{Addressee, Nonsense, Request};

/// More devices, or virtqueues, than a bus can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a node has room for {DEVICES_MAX} virtio devices of {QUEUES_MAX} queues, {EVENTS_MAX} in all"
)]
pub struct TooMany;

/// All virtio devices of a node. Answers what its drivers ask, one message after the other.
pub struct Bus {
    devices: Vec<Device>,
}

impl Bus {
    /// Devices with these back ends; their numbers are their places in the list. The events of the
    /// channel are given to their virtqueues in turn, from 0 on.
    ///
    /// # Errors
    /// [`TooMany`].
    pub fn new(back_ends: Vec<Box<dyn BackEnd>>) -> Result<Self, TooMany> {
        let mut next_event = 0;
        let mut devices = Vec::new();
        for back_end in back_ends {
            let queues = back_end.identity().queue_sizes.len() as u32;
            let device = Device::new(back_end, next_event);
            next_event += queues;
            devices.push(device);
            if queues > QUEUES_MAX
                || next_event > EVENTS_MAX
                || devices.len() > usize::from(DEVICES_MAX)
            {
                return Err(TooMany);
            }
        }
        Ok(Self { devices })
    }

    /// The answer to a message.
    ///
    /// # Errors
    /// [`Nonsense`]: the node's driver is not to be talked to any more, and the session to be
    /// [left](Self::leave).
    pub fn answer(&mut self, message: &[u8]) -> Result<Vec<u8>, Nonsense> {
        let request = Request::parse(message)?;
        match request.addressee() {
            Addressee::Bus => self.answer_bus(&request),
            Addressee::Device(number) => match self.devices.get_mut(usize::from(number)) {
                Some(device) => device.answer(&request),
                None if request.id() == virtio::device::GET_DEVICE_INFO => {
                    request.no_body()?;
                    // "No such device" is device id 0.
                    Ok(request.answer(virtio::DeviceInfo::default()))
                }
                None => Err(request.unknown()),
            },
        }
    }

    /// Stops what every driver has started: the session has ended.
    pub fn leave(&mut self) {
        self.devices.iter_mut().for_each(Device::leave);
    }

    /// Whether something is to be [attended to](Self::attend) soon without any message.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.devices.iter().any(Device::waits)
    }

    /// Tries again what has failed, if it is time. Answers the messages that the node is to be sent
    /// unasked.
    pub fn attend(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        for (number, device) in (0..).zip(&mut self.devices) {
            device.retry(now);
            messages.extend(device.take_event(number));
        }
        messages
    }

    /// Devices that have failed since this was last asked, and why, or that work again.
    pub fn take_news(&mut self) -> Vec<(String, Option<String>)> {
        let news = self.devices.iter_mut().map(Device::take_news);
        news.flatten().collect()
    }

    /// Has all devices that work do so with the memory that the node has now.
    ///
    /// # Errors
    /// The first [`StartError`]: devices before that one have the new memory, all others the old.
    pub fn change_memory(&mut self) -> Result<(), StartError> {
        self.devices.iter_mut().try_for_each(Device::change_memory)
    }

    fn answer_bus(&self, request: &Request<'_>) -> Result<Vec<u8>, Nonsense> {
        match request.id() {
            virtio::bus::GET_DEVICES => Ok(self.list(request, request.body()?)),
            virtio::bus::PING => Ok(request.answer(request.body::<Ping>()?)),
            _ => Err(request.unknown()),
        }
    }

    /// A bit for each number from the first on: always all that there can be.
    fn list(&self, request: &Request<'_>, asked: DeviceRange) -> Vec<u8> {
        let count = asked.count.min(DEVICES_MAX.saturating_sub(asked.first));
        let mut bits = vec![0_u8; usize::from(count).div_ceil(8)];
        for index in 0..count {
            let number = usize::from(asked.first) + usize::from(index);
            if number < self.devices.len() {
                bits[usize::from(index) / 8] |= 1 << (index % 8);
            }
        }
        let next = asked.first.saturating_add(count);
        let list = DeviceList {
            first: asked.first,
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
