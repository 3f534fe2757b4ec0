//! Disk images with an ext4 file system, made without privileges.

use std::fs;
use std::io;
use std::path::Path;

use super::tool::{Tool, ToolError};

/// Free space beyond the files, in bytes: ext4's own tables.
const SLACK_BYTES: u64 = 32 << 20;
/// Size of a block, in bytes.
const BLOCK_BYTES: u64 = 4096;

/// Failure to make an image.
#[derive(Debug, thiserror::Error)]
pub enum Ext4Error {
    /// The tree could not be read.
    #[error("the tree cannot be read: {0}")]
    Tree(#[from] io::Error),
    /// mke2fs failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
}

/// Writes to `image` a file system without a journal that holds the tree at `tree`.
///
/// # Errors
/// When the tree cannot be read, or mke2fs fails.
pub(crate) fn make(tree: &Path, image: &Path) -> Result<(), Ext4Error> {
    let size = space_of(tree)? + SLACK_BYTES;
    let block = BLOCK_BYTES.to_string();
    let tool = Tool::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-O", "^has_journal"]);
    let tool = tool.args(["-b", &block, "-E", "root_owner=0:0", "-d"]);
    let tool = tool.arg(tree).arg(image).arg(format!("{}k", size >> 10));
    tool.run()?;
    Ok(())
}

/// Copies an image, without the space that it does not use.
///
/// # Errors
/// When it cannot be copied.
pub(crate) fn copy(image: &Path, target: &Path) -> io::Result<()> {
    let tool = Tool::new("cp").args(["--sparse=always", "--reflink=auto"]);
    let copied = tool.arg(image).arg(target).run();
    copied.map(drop).map_err(io::Error::other)
}

/// Disk space that a tree of files takes, in bytes.
fn space_of(tree: &Path) -> io::Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir(tree)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        total += metadata.len().next_multiple_of(BLOCK_BYTES);
        if metadata.is_dir() {
            total += space_of(&entry.path())?;
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_counts_whole_blocks() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), [0; 1]).unwrap();
        fs::create_dir(folder.path().join("d")).unwrap();
        fs::write(folder.path().join("d/b"), [0; 4097]).unwrap();
        assert!(space_of(folder.path()).unwrap() >= 3 * BLOCK_BYTES);
    }
}
