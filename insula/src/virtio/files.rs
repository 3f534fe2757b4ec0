//! Files of the base in a node (virtiofs), by virtiofsd.

use std::path::{Path, PathBuf};

use vhost::VhostBackend;

use super::back_end::{Connected, Ends};
use super::device::{BackEnd, Identity, StartError, Virtqueue};
use super::post::{Post, Shift};
use super::vhost::{TRANSPORT_FEATURES, failed};
use super::virtiofsd;

/// Specification, 5.11.
const DEVICE_ID: u32 = 26;
/// Urgent requests, others: large enough for the largest request of the kernel.
const QUEUE_SIZES: &[u16] = &[128, 512];
/// Bytes of the configuration's tag.
const TAG_SIZE: usize = 36;

/// A folder of the base as a file system of a node.
pub struct Files {
    post: Post,
    tag: &'static str,
    folder: PathBuf,
}

impl Files {
    /// The device by which a node has `folder`, under a name of at most 36 bytes.
    pub(super) fn new(post: Post, tag: &'static str, folder: PathBuf) -> Self {
        Self { post, tag, folder }
    }

    /// Fails, and tells whom it concerns, if a program has served the device and left it unfinished.
    fn assert_new(&self) -> Result<(), StartError> {
        if !self.post.notes.are_there() {
            return Ok(());
        }
        let text = "whoever served it has ended";
        let folder = self.folder.display();
        let trouble = &self.post.trouble;
        trouble.device_lost(&format!("folder {folder}: {text}"));
        Err(StartError(text.into()))
    }
}

/// A program that serves the folder with these features, and can be followed by none: the node's
/// kernel names files by numbers that only this one knows.
fn shift(folder: &Path, features: u64) -> Result<Shift, StartError> {
    let program = virtiofsd::command(folder)
        .and_then(|command| Connected::start(command, QUEUE_SIZES.len(), Ends::ByItself))
        .map_err(failed("starting virtiofsd"))?;
    let known = program.front_end.get_features();
    let lacking = features & !known.map_err(failed("asking virtiofsd"))?;
    if lacking != 0 {
        let text = format!("virtiofsd lacks the features {lacking:#x}");
        return Err(StartError(text));
    }
    Ok(Shift {
        program,
        name: format!("folder {}", folder.display()),
        successor: None,
    })
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
        self.assert_new()?;
        let find = || shift(&self.folder, features);
        self.post.fill(features, queues, QUEUE_SIZES.len(), find)
    }

    fn stop(&mut self) {
        self.post.clear();
    }

    fn leave(&mut self) {
        self.post.leave();
    }
}
