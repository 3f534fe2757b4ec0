//! Locks that commands hold while they do what only one of them may do at a time.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use crate::root::Root;

/// A folder that is nobody else's to look into (who connects to a socket there has a node's files),
/// and empty after each boot of the base.
#[cfg(not(test))]
pub(crate) const RUN: &str = "/run/insula";
#[cfg(test)]
pub(crate) const RUN: &str = "/tmp/insula-back-ends";

/// A lock that is held as long as this lives. It ends with the process, however that ends.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "it is held, not used")] File);

/// Takes the lock of that name as soon as nobody else has it.
///
/// # Errors
/// When its file cannot be made.
pub fn lock(root: &Root, name: &str) -> io::Result<Lock> {
    let file = open(root, name)?;
    file.lock()?;
    Ok(Lock(file))
}

/// Takes the lock of that name if nobody else has it.
///
/// # Errors
/// When its file cannot be made.
pub fn try_lock(root: &Root, name: &str) -> io::Result<Option<Lock>> {
    let file = open(root, name)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(Lock(file))),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The file stays: one that is removed while another waits for it would be two.
fn open(root: &Root, name: &str) -> io::Result<File> {
    let folder = root.path(RUN);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)?;
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(folder.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::fake::Tree;

    #[test]
    fn a_lock_is_had_once() {
        let tree = Tree::new(&[]);
        let root = tree.root();
        let held = lock(&root, "one").unwrap();
        assert!(try_lock(&root, "one").unwrap().is_none());
        assert!(try_lock(&root, "other").unwrap().is_some());
        drop(held);
        assert!(try_lock(&root, "one").unwrap().is_some());
    }
}
