//! Locks between commands.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use crate::root::Root;

/// Private folder of the command, whose sockets give access to a node's files; empty after each
/// boot of the base.
pub const RUN: &str = "/run/insula";

/// A lock, held as long as this lives. It ends with the process in any case.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held, not used")] File);

/// Waits for the lock of that name and takes it.
///
/// # Errors
/// When its file cannot be created.
pub fn lock(root: &Root, name: &str) -> io::Result<Lock> {
    let file = open(root, name)?;
    file.lock()?;
    Ok(Lock(file))
}

/// Waits for the lock of that name and takes it with others who share it.
///
/// # Errors
/// When its file cannot be created.
pub fn lock_shared(root: &Root, name: &str) -> io::Result<Lock> {
    let file = open(root, name)?;
    file.lock_shared()?;
    Ok(Lock(file))
}

/// Takes the lock of that name if it is free.
///
/// # Errors
/// When its file cannot be created.
pub fn try_lock(root: &Root, name: &str) -> io::Result<Option<Lock>> {
    let file = open(root, name)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(Lock(file))),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Opens the lock's file, which is never removed: removed while another command waits for it, it
/// would become two locks.
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
    fn a_lock_is_held_once() {
        let tree = Tree::new(&[]);
        let root = tree.root();
        let held = lock(&root, "one").unwrap();
        assert!(try_lock(&root, "one").unwrap().is_none());
        assert!(try_lock(&root, "other").unwrap().is_some());
        drop(held);
        assert!(try_lock(&root, "one").unwrap().is_some());
    }

    #[test]
    fn a_shared_lock_keeps_others_out() {
        let tree = Tree::new(&[]);
        let root = tree.root();
        let held = [(); 2].map(|()| lock_shared(&root, "one").unwrap());
        assert!(try_lock(&root, "one").unwrap().is_none());
        drop(held);
        assert!(try_lock(&root, "one").unwrap().is_some());
    }
}
