//! What devices have in common that a program of the base serves: whose they are, and their keeper.

use std::sync::Arc;

use super::device::{StartError, Virtqueue};
use super::keeper::{Keeper, Kept, Programs, Served};
use super::memory::ServedNode;
use super::vhost::{Events, wire_up};

/// Where programs work on a device of a node, one after the other, while its driver uses it.
pub(super) struct Post {
    pub(super) node: Arc<ServedNode>,
    pub(super) events: Arc<dyn Events>,
    pub(super) served: Served,
    pub(super) keeper: Option<Keeper>,
}

impl Post {
    /// Has programs work on the virtqueues, of which there must be `count`, with the features that the
    /// driver has chosen.
    ///
    /// # Errors
    /// [`StartError`]; no program works then.
    pub(super) fn fill(
        &mut self,
        features: u64,
        queues: &[Virtqueue],
        count: usize,
        programs: Programs,
    ) -> Result<(), StartError> {
        if queues.len() != count {
            let text = "not all its virtqueues are laid out";
            return Err(StartError::Driver(text.into()));
        }
        let memory = self.node.map_apart()?;
        let wires = wire_up(&memory, &self.events, queues)?;
        let kept = Kept {
            served: self.served.clone(),
            memory,
            features,
            queues: queues.to_vec(),
            wires,
        };
        self.keeper = Some(Keeper::begin(kept, programs)?);
        Ok(())
    }

    /// Has the program work with the memory that the node has now.
    ///
    /// # Errors
    /// [`StartError`]; it works with what it had.
    pub(super) fn change_memory(&self) -> Result<(), StartError> {
        match &self.keeper {
            Some(keeper) => keeper.change_memory(self.node.map_apart()?),
            None => Ok(()),
        }
    }

    /// The driver has stopped the device: nothing of what was under way is of use any more, and the
    /// buffers are the driver's again. A program that cannot be ended could still write to them.
    pub(super) fn clear(&mut self) {
        if self.keeper.take().is_some() && self.served.notes.lock().is_err() {
            self.served
                .device_lost("its program does not let go of the node's memory");
        }
        self.served.notes.forget();
    }

    /// Nobody works on the device for now; who begins again finds what was under way.
    pub(super) fn leave(&mut self) {
        self.keeper = None;
    }
}
