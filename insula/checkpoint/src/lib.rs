//! Folders of [CRIU](https://criu.org)'s images: those that Insula writes of a container, and those that
//! plain CRIU has written of processes.
//!
//! | module | concept |
//! |---|---|
//! | `folder` | the folder's files, none of which leads out of it |
//! | `sums` | the sums of them, as `sha256sum` writes them |
//! | `description` | what Insula knows of a container beside its images |
//! | `wire`, `image` | the format of images |
//! | `contents` | what they describe, and whether a container can be made of it |
//!
//! Images are not trusted: CRIU executes what they say with all rights of its node. What is checked here
//! is what CRIU does not check itself: that a folder is complete and is not changed by accident, has only
//! what this version knows, and describes processes that lie in a container of their own.

mod contents;
mod description;
mod folder;
mod image;
mod sums;
#[cfg(test)]
mod tests;
mod wire;

use std::fs::File;
use std::path::{Path, PathBuf};

pub use contents::Form;
pub use description::{Description, is_pipe};

use contents::Contents;
use folder::Folder;

/// File with the [`Description`].
pub const DESCRIPTION: &str = "container.json";
/// File with the sums of all others.
pub const SUMS: &str = "SHA256SUMS";
/// Ending of the names of images.
const ENDING: &str = ".img";
/// Files of a container's log in a folder that Insula has written.
const LOGS: [&str; 2] = ["log", "log.1"];

/// Why a folder is not restored: a fragment, without the folder's name.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file or the folder cannot be read or written.
    #[error("{name}: {source}")]
    File {
        /// Its name.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file has no place in such a folder, or leads out of it.
    #[error("{name} is {what}")]
    Foreign {
        /// Its name.
        name: String,
        /// What it is.
        what: &'static str,
    },
    /// A file that must be there is missing.
    #[error("{0} is missing")]
    Missing(String),
    /// A file is not as it was written.
    #[error("{0} is damaged: its sum in SHA256SUMS is another one")]
    Sum(String),
    /// A file is not as CRIU or Insula write it.
    #[error("{name} is damaged: {fault}")]
    Damaged {
        /// Its name.
        name: String,
        /// What is wrong with it.
        fault: String,
    },
    /// It is whole, but has what this version of Insula does not know, or cannot restore.
    #[error("{0}")]
    Unsupported(String),
}

/// Whether a file is needed to restore a container; others, as CRIU's own log, are left out.
fn is_of_checkpoint(name: &str) -> bool {
    name.ends_with(ENDING) || name == DESCRIPTION || LOGS.contains(&name)
}

/// A folder that was checked.
#[derive(Debug)]
pub struct Checkpoint {
    folder: Folder,
    images: Vec<String>,
    logs: Vec<String>,
    description: Option<Description>,
    contents: Contents,
}

impl Checkpoint {
    /// Opens a folder and checks it: its files, their sums if it has some, and what its images describe.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let folder = Folder::open(path)?;
        let mut names = folder.names()?;
        names.retain(|name| is_of_checkpoint(name));
        let description = match names.iter().any(|name| name == DESCRIPTION) {
            true => {
                sums::verify(&folder, &names)?;
                Some(Description::read(&folder)?)
            }
            false => None,
        };
        let (images, mut logs): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| name.ends_with(ENDING));
        let contents = Contents::read(&folder, &images)?;
        contents.check_form(description.is_some())?;
        // Without a description, a file of a log's name is none of Insula's.
        logs.retain(|name| name != DESCRIPTION && description.is_some());
        Ok(Self {
            folder,
            images,
            logs,
            description,
            contents,
        })
    }

    /// Completes a folder that has a container's images: writes what is known of it, and the sums.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn complete(path: &Path, description: &Description) -> Result<Self, CheckpointError> {
        let folder = Folder::open(path)?;
        description.write(&folder)?;
        let mut names = folder.names()?;
        names.retain(|name| is_of_checkpoint(name));
        sums::write(&folder, &names)?;
        Self::open(path)
    }

    /// What Insula has written beside the images; nothing if plain CRIU wrote the folder.
    #[must_use]
    pub fn description(&self) -> Option<&Description> {
        self.description.as_ref()
    }

    /// How its processes are restored.
    #[must_use]
    pub fn form(&self) -> Form {
        match self.description {
            Some(_) => Form::Container,
            None => Form::Tree,
        }
    }

    /// Whether its processes have TCP connections.
    #[must_use]
    pub fn has_connections(&self) -> bool {
        self.contents.has_connections
    }

    /// Names of its images, and of its log's files, by name.
    pub fn images(&self) -> impl Iterator<Item = &str> {
        self.images.iter().map(String::as_str)
    }

    /// Names of the files of its log.
    pub fn logs(&self) -> impl Iterator<Item = &str> {
        self.logs.iter().map(String::as_str)
    }

    /// One of its files, and its size in bytes.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn file(&self, name: &str) -> Result<(File, u64), CheckpointError> {
        self.folder.file(name)
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.path().to_owned()
    }
}
