//! What devices have in common that a program of the base serves: whose they are, and their keeper.

use std::sync::Arc;

use super::back_end::Connected;
use super::device::{StartError, Virtqueue};
use super::keeper::{Keeper, Kept, Successor, Trouble};
use super::memory::NodeMemory;
use super::notes::DeviceNotes;
use super::vhost::{Events, failed, wire_up};
use crate::driver::Node;

/// Where programs work on a device of a node, one after the other, while its driver uses it.
pub(super) struct Post {
    pub(super) node: Arc<Node>,
    pub(super) events: Arc<dyn Events>,
    /// What whoever follows this process, if it is killed, is to know of the device.
    pub(super) notes: DeviceNotes,
    pub(super) trouble: Arc<dyn Trouble>,
    pub(super) keeper: Option<Keeper>,
}

/// A program that is to work on a device, and what may follow it.
pub(super) struct Shift {
    pub(super) program: Connected,
    /// None where no other program could go on with what this one has begun.
    pub(super) successor: Option<Successor>,
    /// What the device is, for messages.
    pub(super) name: String,
}

impl Post {
    /// Has the program that `find` answers work on the virtqueues, of which there must be `count`,
    /// with the features that the driver has chosen.
    ///
    /// # Errors
    /// [`StartError`]; no program works then.
    pub(super) fn fill(
        &mut self,
        features: u64,
        queues: &[Virtqueue],
        count: usize,
        find: impl FnOnce() -> Result<Shift, StartError>,
    ) -> Result<(), StartError> {
        if queues.len() != count {
            return Err(StartError("not all its virtqueues are laid out".into()));
        }
        let memory = self.node.memory().map_err(failed("the node's memory"))?;
        let memory = NodeMemory::share(&memory).map_err(failed("the node's memory"))?;
        let shift = find()?;
        let wires = wire_up(&memory, &self.events, queues)?;
        let kept = Kept {
            name: shift.name,
            memory,
            features,
            queues: queues.to_vec(),
            wires,
            successor: shift.successor,
            notes: self.notes.clone(),
            trouble: Arc::clone(&self.trouble),
        };
        self.keeper = Some(Keeper::begin(shift.program, kept)?);
        Ok(())
    }

    /// The driver has stopped the device: nothing of what was under way is of use any more.
    pub(super) fn clear(&mut self) {
        self.keeper = None;
        self.notes.forget();
    }

    /// Nobody works on the device for now; who begins again finds what was under way.
    pub(super) fn leave(&mut self) {
        self.keeper = None;
    }
}
