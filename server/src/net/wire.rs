//! A network card as `smoltcp` wants devices: it takes one frame when it is told to.

use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use super::nic::{FRAME_MAX, Nic};

/// A network card, and the frame that it has received.
#[derive(Debug)]
pub(super) struct Wire<N> {
    pub(super) nic: N,
    /// The frame, if [`Wire::has_frame`].
    frame: Vec<u8>,
    has_frame: bool,
    /// Where frames are put together.
    leaving: Vec<u8>,
}

impl<N: Nic> Wire<N> {
    pub(super) fn new(nic: N) -> Self {
        Self {
            nic,
            frame: Vec::new(),
            has_frame: false,
            leaving: Vec::new(),
        }
    }

    /// Takes the next frame from the card. Returns it.
    pub(super) fn receive(&mut self) -> Result<Option<&[u8]>, N::Error> {
        self.has_frame = self.nic.receive(&mut self.frame)?;
        Ok(self.has_frame.then_some(&self.frame))
    }
}

impl<N: Nic> Device for Wire<N> {
    type RxToken<'a>
        = Arrived<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Leaving<'a, N>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Arrived<'_>, Leaving<'_, N>)> {
        let leaving = Leaving {
            nic: &mut self.nic,
            frame: &mut self.leaving,
        };
        std::mem::take(&mut self.has_frame).then_some((Arrived(&self.frame), leaving))
    }

    fn transmit(&mut self, _: Instant) -> Option<Leaving<'_, N>> {
        self.nic.has_room().then_some(Leaving {
            nic: &mut self.nic,
            frame: &mut self.leaving,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME_MAX;
        capabilities
    }
}

/// A frame that has arrived.
pub(super) struct Arrived<'a>(&'a [u8]);

impl RxToken for Arrived<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, look: F) -> R {
        look(self.0)
    }
}

/// A frame that leaves.
pub(super) struct Leaving<'a, N> {
    nic: &'a mut N,
    frame: &'a mut Vec<u8>,
}

impl<N: Nic> TxToken for Leaving<'_, N> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        self.frame.clear();
        self.frame.resize(length, 0);
        let result = write(self.frame);
        self.nic.send(self.frame);
        result
    }
}
