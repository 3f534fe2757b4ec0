//! What can be a node's root.

use std::path::Path;

use insula_agent::options;

use super::{RootImage, RootImageError};
use crate::virtio::{FolderError, SharedFolder};

/// A node's root.
#[derive(Clone, Debug)]
pub enum Root {
    /// A folder of the base.
    Folder(SharedFolder),
    /// An image, in memory once for all nodes that have it.
    Image(RootImage),
}

/// Why something cannot be a node's root. Nothing was touched.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// The folder cannot.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The image cannot.
    #[error(transparent)]
    Image(#[from] RootImageError),
}

impl Root {
    /// What is at that path: a folder, or a file that is an EROFS image.
    ///
    /// # Errors
    /// [`RootError`].
    pub fn find(path: &Path) -> Result<Self, RootError> {
        match path.is_file() {
            true => Ok(Self::Image(RootImage::find(path)?)),
            false => Ok(Self::Folder(SharedFolder::find(path)?)),
        }
    }

    /// The folder, if it is one.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(folder) => Some(folder.path()),
            Self::Image(_) => None,
        }
    }

    /// The image, if it is one.
    #[must_use]
    pub fn image(&self) -> Option<&RootImage> {
        match self {
            Self::Folder(_) => None,
            Self::Image(image) => Some(image),
        }
    }

    /// What an agent is told of it. What is changed in an image stays in the node in any case.
    #[must_use]
    pub fn for_agent(&self, overlay: bool) -> options::Root {
        match (self, overlay) {
            (Self::Image(_), _) => options::Root::Memory,
            (Self::Folder(_), true) => options::Root::Overlay,
            (Self::Folder(_), false) => options::Root::Files,
        }
    }
}
