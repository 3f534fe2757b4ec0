//! The bus of the present session with a node's drivers, which requests of commands reach, too.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use insula_node::attachment::Drained;

use super::bus::Bus;
use super::device::StartError;
use super::memory::DeviceNode;
use super::vhost::used_index;

/// Time for all requests in flight together, once the drivers make no more. The command waits longer.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// The devices of the present session, if any. Mostly used by the session's thread.
#[derive(Clone, Default)]
pub(super) struct CurrentBus(Arc<Mutex<Option<Bus>>>);

impl CurrentBus {
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Bus>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Switches all devices to the first `chunks` chunks of the node's memory, or on failure back.
    pub(super) fn resize(&self, node: &DeviceNode, chunks: usize) -> Result<(), StartError> {
        let mut bus = self.lock();
        let before = node.limit(chunks);
        let changed = bus.as_mut().map_or(Ok(()), Bus::change_memory);
        if changed.is_err() {
            node.limit(before);
            // The old memory was accepted before.
            let _ = bus.as_mut().map(Bus::change_memory);
        }
        changed
    }

    /// Waits until the disks have completed all requests of the node, which is paused, and tells what is
    /// to know of all devices then. Its drivers are served meanwhile.
    pub(super) fn drain(&self, node: &DeviceNode) -> Result<Drained, StartError> {
        let until = Instant::now() + DRAIN_TIMEOUT;
        let (drains, queues) = match self.lock().as_ref() {
            Some(bus) => (bus.drain()?, bus.served_queues()),
            None => return Ok(Drained::default()),
        };
        let files = drains.into_iter().map(|drain| drain.wait(until));
        let files = files.collect::<Result<_, _>>()?;
        let memory = node.map_joined()?;
        let used = queues.iter().map(|queue| used_index(&memory, queue));
        let used = used.collect::<Result<_, _>>()?;
        Ok(Drained { files, used })
    }
}
