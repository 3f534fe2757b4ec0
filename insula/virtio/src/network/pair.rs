//! A pair of a network card's virtqueues, receive and transmit, served by a vhost-net of their own.

use std::fs::File;
use std::sync::Arc;

use insula_driver::set_busy_poll;
use vhost::net::VhostNet;
use vhost::vhost_kern::net::Net;

use crate::device::{StartError, Virtqueue};
use crate::memory::NodeMemory;
use crate::vhost::{EventfdBinder, KernelMemory, QueueNotifier, replace_memory, set_up_kernel};
use crate::vhost::{TRANSPORT_FEATURES, failed};
use vhost::VhostBackend;

/// `VIRTIO_NET_F_MRG_RXBUF`, a feature of vhost: a packet in several buffers.
pub(super) const MRG_RXBUF: u64 = 1 << 15;

/// The pair; stopped when dropped.
pub(super) struct Pair {
    device: Net<KernelMemory>,
    memory: KernelMemory,
    /// With the indices that they have for vhost-net.
    queues: Vec<Virtqueue>,
    notifiers: Vec<QueueNotifier>,
}

impl Pair {
    /// Sets it up: it takes no packets yet.
    pub(super) fn set_up(
        memory: NodeMemory,
        binder: &Arc<dyn EventfdBinder>,
        features: u64,
        queues: &[Virtqueue],
    ) -> Result<Self, StartError> {
        let memory = KernelMemory::new(memory);
        let device = Net::new(memory.clone()).map_err(failed("opening vhost-net"))?;
        let known = device.get_features().map_err(failed("asking vhost-net"))?;
        if features & (MRG_RXBUF | TRANSPORT_FEATURES) & !known != 0 {
            return Err(StartError::Backend("vhost-net lacks a feature".into()));
        }
        let of_vhost = |(index, queue): (u32, &Virtqueue)| Virtqueue { index, ..*queue };
        let queues: Vec<_> = (0..).zip(queues).map(of_vhost).collect();
        let notifiers = set_up_kernel(&device, &memory, binder, features, &queues)?;
        Ok(Self {
            device,
            memory,
            queues,
            notifiers,
        })
    }

    /// Moves packets between it and a queue of a tap device, which it looks for so long, in microseconds, before it
    /// waits.
    pub(super) fn start(&self, tap: &File, poll_us: u32) -> Result<(), StartError> {
        for queue in &self.queues {
            if poll_us > 0 {
                set_busy_poll(&self.device, queue.index, poll_us)
                    .map_err(failed("having vhost-net look for packets"))?;
            }
            self.device
                .set_backend(queue.index as usize, Some(tap))
                .map_err(failed("starting vhost-net"))?;
        }
        // Notifications before the backend was set were lost.
        let notifiers = self.notifiers.iter();
        notifiers.for_each(QueueNotifier::signal_both);
        Ok(())
    }

    /// Uses this memory from now on.
    pub(super) fn change_memory(&self, memory: NodeMemory) -> Result<(), StartError> {
        replace_memory(&self.device, &self.memory, memory, &self.queues)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for queue in &self.queues {
            // Closing the device stops it as well.
            let _ = self.device.set_backend(queue.index as usize, None);
        }
    }
}
