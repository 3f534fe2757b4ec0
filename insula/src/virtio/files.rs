//! Files of the base in a node (virtiofs), by virtiofsd.

use std::path::PathBuf;
use std::sync::Arc;

use vhost::VhostBackend;

use super::back_end::{Connected, Ends};
use super::device::{BackEnd, Identity, StartError, Virtqueue};
use super::keeper::{Keeper, Kept, Trouble};
use super::memory::NodeMemory;
use super::notes::DeviceNotes;
use super::vhost::{Events, TRANSPORT_FEATURES, failed, wire_up};
use super::virtiofsd;
use crate::driver::Node;

/// Specification, 5.11.
const DEVICE_ID: u32 = 26;
/// Urgent requests, others: large enough for the largest request of the kernel.
const QUEUE_SIZES: &[u16] = &[128, 512];
/// Bytes of the configuration's tag.
const TAG_SIZE: usize = 36;

/// A folder of the base as a file system of a node.
pub struct Files {
    node: Arc<Node>,
    events: Arc<dyn Events>,
    tag: &'static str,
    folder: PathBuf,
    notes: DeviceNotes,
    trouble: Arc<dyn Trouble>,
    keeper: Option<Keeper>,
}

impl Files {
    /// The device by which a node has `folder`, under a name of at most 36 bytes.
    pub(super) fn new(
        node: Arc<Node>,
        events: Arc<dyn Events>,
        tag: &'static str,
        folder: PathBuf,
        notes: DeviceNotes,
        trouble: Arc<dyn Trouble>,
    ) -> Self {
        Self {
            node,
            events,
            tag,
            folder,
            notes,
            trouble,
            keeper: None,
        }
    }

    fn begin(&self, features: u64, queues: &[Virtqueue]) -> Result<Keeper, StartError> {
        if queues.len() != QUEUE_SIZES.len() {
            return Err(StartError("not all its virtqueues are laid out".into()));
        }
        if self.notes.are_there() {
            let text = "whoever served it has ended";
            let folder = self.folder.display();
            self.trouble
                .device_lost(&format!("folder {folder}: {text}"));
            return Err(StartError(text.into()));
        }
        let memory = self.node.memory().map_err(failed("the node's memory"))?;
        let memory = NodeMemory::share(&memory).map_err(failed("the node's memory"))?;
        let program = virtiofsd::command(&self.folder)
            .and_then(|command| Connected::start(command, QUEUE_SIZES.len(), Ends::ByItself))
            .map_err(failed("starting virtiofsd"))?;
        let known = program.front_end.get_features();
        let lacking = features & !known.map_err(failed("asking virtiofsd"))?;
        if lacking != 0 {
            let text = format!("virtiofsd lacks the features {lacking:#x}");
            return Err(StartError(text));
        }
        let wires = wire_up(&memory, &self.events, queues)?;
        let kept = Kept {
            name: format!("folder {}", self.folder.display()),
            memory,
            features,
            queues: queues.to_vec(),
            wires,
            // The node's kernel names files by numbers that only this one knows.
            successor: None,
            notes: self.notes.clone(),
            trouble: Arc::clone(&self.trouble),
        };
        Keeper::begin(program, kept)
    }
}

impl BackEnd for Files {
    fn identity(&self) -> Identity {
        Identity {
            device_id: DEVICE_ID,
            features: TRANSPORT_FEATURES,
            queue_sizes: QUEUE_SIZES,
        }
    }

    /// `struct virtio_fs_config`: the tag, and how many queues there are for requests.
    fn config(&self) -> Vec<u8> {
        let mut config = self.tag.as_bytes().to_vec();
        config.resize(TAG_SIZE, 0);
        config.extend(1_u32.to_le_bytes());
        config
    }

    fn start(&mut self, features: u64, queues: &[Virtqueue]) -> Result<(), StartError> {
        self.keeper = Some(self.begin(features, queues)?);
        Ok(())
    }

    fn stop(&mut self) {
        self.keeper = None;
        self.notes.forget();
    }

    fn leave(&mut self) {
        self.keeper = None;
    }
}
