//! Files of the base in a node (virtiofs), by virtiofsd.

use std::path::{Path, PathBuf};

use vhost::vhost_user::VhostUserProtocolFeatures;

use super::backend_process::{ExitOn, REPLY_TIMEOUT, VhostUserBackend};
use super::device::{Backend, Identity, StartError, Virtqueue};
use super::monitor::{BackendLauncher, DeviceContext};
use super::slot::BackendSlot;
use super::vhost::{TRANSPORT_FEATURES, failed};
use super::virtiofsd;

/// Specification, 5.11.
const DEVICE_ID: u32 = 26;
/// High-priority queue, request queue: large enough for the kernel's largest request.
const QUEUE_SIZES: &[u16] = &[128, 512];
/// Bytes of the tag in the configuration.
const TAG_SIZE: usize = 36;

/// A folder of the base that is shared with a node.
#[derive(Clone, Debug)]
pub(super) struct Share {
    /// Name of the file system in the node, of at most 36 bytes.
    pub(super) tag: String,
    /// The folder.
    pub(super) path: PathBuf,
    /// Whether the node must not write to it.
    pub(super) read_only: bool,
}

/// A folder of the base as a file system of a node.
pub(crate) struct Files {
    slot: BackendSlot,
    folder: Share,
}

impl Files {
    /// A device that shares `folder`.
    pub(super) fn new(slot: BackendSlot, folder: Share) -> Self {
        Self { slot, folder }
    }

    /// Name of the device for messages.
    pub(super) fn name(folder: &Path) -> String {
        format!("folder {}", folder.display())
    }

    /// Fails, and reports the device lost, if an earlier backend served it and did not finish.
    fn refuse_restart(&self) -> Result<(), StartError> {
        if !self.slot.context.checkpoint.exists() {
            return Ok(());
        }
        let text = "its backend has ended";
        self.slot.context.device_lost(text);
        Err(StartError::Backend(text.into()))
    }
}

/// Starts a virtiofsd that supports these features.
fn connect(
    folder: &Share,
    features: u64,
    context: &DeviceContext,
) -> Result<VhostUserBackend, StartError> {
    let mut backend = virtiofsd::command(folder)
        .and_then(|command| {
            VhostUserBackend::start(command, QUEUE_SIZES.len(), ExitOn::Disconnect, context)
        })
        .map_err(failed("starting virtiofsd"))?;
    let known = backend.negotiate(VhostUserProtocolFeatures::empty(), REPLY_TIMEOUT)?;
    match features & !known {
        0 => Ok(backend),
        lacking => {
            let text = format!("virtiofsd lacks the features {lacking:#x}");
            Err(StartError::Backend(text))
        }
    }
}

impl Backend for Files {
    fn identity(&self) -> Identity {
        Identity {
            device_id: DEVICE_ID,
            features: TRANSPORT_FEATURES,
            queue_sizes: QUEUE_SIZES,
        }
    }

    fn name(&self) -> String {
        self.slot.context.name.clone()
    }

    /// `struct virtio_fs_config`: the tag and the number of request queues.
    fn config(&self) -> Vec<u8> {
        let mut config = self.folder.tag.as_bytes().to_vec();
        config.resize(TAG_SIZE, 0);
        config.extend(1_u32.to_le_bytes());
        config
    }

    fn start(&mut self, features: u64, queues: &[Virtqueue]) -> Result<(), StartError> {
        self.refuse_restart()?;
        let (folder, context) = (self.folder.clone(), self.slot.context.clone());
        let launcher = BackendLauncher {
            first: None,
            start: Box::new(move || connect(&folder, features, &context)),
            // File handles of the node's kernel are only known to this process.
            restartable: false,
        };
        self.slot
            .start(features, queues, QUEUE_SIZES.len(), launcher)
    }

    fn change_memory(&mut self) -> Result<(), StartError> {
        self.slot.change_memory()
    }

    fn stop(&mut self) {
        self.slot.stop();
    }

    fn disconnect(&mut self) {
        self.slot.disconnect();
    }
}
