//! Files of the base in a node (virtiofs), by virtiofsd.

use std::path::{Path, PathBuf};

use vhost::vhost_user::VhostUserProtocolFeatures;

use super::back_end::{ANSWER_LIMIT, Connected, Ends};
use super::device::{BackEnd, Identity, StartError, Virtqueue};
use super::keeper::{Programs, Served};
use super::post::Post;
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

    /// The folder's name, for its user.
    pub(super) fn name(folder: &Path) -> String {
        format!("folder {}", folder.display())
    }

    /// Fails, and tells whom it concerns, if a program has served the device and left it unfinished.
    fn assert_new(&self) -> Result<(), StartError> {
        if !self.post.served.notes.are_there() {
            return Ok(());
        }
        let text = "whoever served it has ended";
        self.post.served.device_lost(text);
        Err(StartError::BackEnd(text.into()))
    }
}

/// A program that serves the folder with these features.
fn connect(folder: &Path, features: u64, served: &Served) -> Result<Connected, StartError> {
    let mut program = virtiofsd::command(folder)
        .and_then(|command| Connected::start(command, QUEUE_SIZES.len(), Ends::ByItself, served))
        .map_err(failed("starting virtiofsd"))?;
    let known = program.agree(VhostUserProtocolFeatures::empty(), ANSWER_LIMIT)?;
    match features & !known {
        0 => Ok(program),
        lacking => {
            let text = format!("virtiofsd lacks the features {lacking:#x}");
            Err(StartError::BackEnd(text))
        }
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

    fn name(&self) -> String {
        self.post.served.name.clone()
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
        let (folder, served) = (self.folder.clone(), self.post.served.clone());
        let programs = Programs {
            first: None,
            start: Box::new(move || connect(&folder, features, &served)),
            // The node's kernel names files by numbers that only the first one knows.
            follow: false,
        };
        self.post
            .fill(features, queues, QUEUE_SIZES.len(), programs)
    }

    fn change_memory(&mut self) -> Result<(), StartError> {
        self.post.change_memory()
    }

    fn stop(&mut self) {
        self.post.clear();
    }

    fn leave(&mut self) {
        self.post.leave();
    }
}
