//! Attributes of files and of the file system: reading and changing them.

use insula_abi::files::{NONE, operation};
use nix::errno::Errno;
use nix::libc;
use zerocopy::IntoBytes;

use crate::Request;
use crate::files::attributes::{Changes, FileType, PERMISSIONS, Stat, Statfs, Statx, Time};
use crate::files::content::{invalidate, set_changed};
use crate::files::handler::Files;
use crate::files::names::Paths;
use crate::files::system::{FileSystem, Inode};
use crate::files::walk::End;

impl<F: FileSystem> Files<F> {
    pub(super) fn stat(&mut self, request: &Request<'_>) -> Result<u64, Errno> {
        let follows = request.words[1] as i32 & libc::AT_SYMLINK_NOFOLLOW == 0;
        let inode = self.place(request, End::following(follows))?.inode()?;
        let attributes = self.system.attributes(inode)?;
        match request.operation {
            operation::STAT => self.data.extend(Stat::new(inode, &attributes).as_bytes()),
            _ => self.data.extend(Statx::new(inode, &attributes).as_bytes()),
        }
        Ok(0)
    }

    pub(super) fn access(&mut self, request: &Request<'_>) -> Result<u64, Errno> {
        let [_, mode, flags, ..] = request.words;
        let follows = flags as i32 & libc::AT_SYMLINK_NOFOLLOW == 0;
        let inode = self.place(request, End::following(follows))?.inode()?;
        let attributes = self.system.attributes(inode)?;
        let is_executable =
            attributes.kind == FileType::Directory || attributes.permissions & 0o111 != 0;
        match mode as i32 & libc::X_OK != 0 && !is_executable {
            true => Err(Errno::EACCES),
            false => Ok(0),
        }
    }

    /// Changes attributes.
    pub(super) fn change(&mut self, request: &Request<'_>) -> Result<u64, Errno> {
        let [handle, one, two, three, ..] = request.words;
        let paths = Paths::read(request, 1)?;
        let flags = match request.operation {
            operation::CHMOD => two,
            operation::CHOWN => three,
            operation::UTIMES => one,
            _ => 0,
        };
        let follows = flags as i32 & libc::AT_SYMLINK_NOFOLLOW == 0;
        let place = self.walk(handle, &paths.first, &paths.mount, End::following(follows))?;
        let inode = place.inode()?;
        let id = |id: u64| (id as u32 != u32::MAX).then_some(id as u32);
        let changes = match request.operation {
            operation::CHMOD => Changes {
                permissions: Some(one as u32 & PERMISSIONS),
                ..Changes::default()
            },
            operation::CHOWN => Changes {
                user: id(one),
                group: id(two),
                permissions: self.permissions_after_chown(inode)?,
                ..Changes::default()
            },
            operation::UTIMES => times(request, two != 0, paths.end)?,
            _ => {
                self.may_truncate(handle, &paths.first, inode)?;
                Changes {
                    size: Some(u64::try_from(one.cast_signed()).map_err(|_| Errno::EINVAL)?),
                    ..Changes::default()
                }
            }
        };
        match changes.size {
            Some(_) => invalidate(&self.system, inode),
            None => set_changed(&self.system, inode),
        }
        self.system.change(inode, &changes)?;
        Ok(0)
    }

    /// A file of another owner runs with nobody's rights (chown(2)).
    fn permissions_after_chown(&mut self, inode: Inode) -> Result<Option<u32>, Errno> {
        let of = self.system.attributes(inode)?;
        let group = match of.permissions & libc::S_IXGRP {
            0 => 0,
            _ => libc::S_ISGID,
        };
        Ok((of.kind == FileType::File).then_some(of.permissions & !(libc::S_ISUID | group)))
    }

    /// ftruncate(2) needs a description that writes, truncate(2) a file.
    pub(super) fn may_truncate(
        &mut self,
        handle: u64,
        path: &[u8],
        inode: Inode,
    ) -> Result<(), Errno> {
        let kind = self.system.attributes(inode)?.kind;
        let is_open = path.is_empty() && handle != NONE;
        match kind {
            FileType::File if is_open => {
                let description = self.open.find(handle)?;
                description.may_write().map_err(|_| Errno::EINVAL)
            }
            FileType::Directory if !is_open => Err(Errno::EISDIR),
            FileType::Directory | FileType::Link => Err(Errno::EINVAL),
            FileType::File => Ok(()),
        }
    }

    pub(super) fn statistics(&mut self, request: &Request<'_>) -> Result<u64, Errno> {
        self.place(request, End::Follow)?.inode()?;
        let statistics = self.system.statistics()?;
        self.data.extend(Statfs::new(&statistics).as_bytes());
        Ok(0)
    }
}

/// Reads the times of utimensat(2), which follow the path.
fn times(request: &Request<'_>, are_given: bool, at: u64) -> Result<Changes, Errno> {
    let now = Time::now();
    if !are_given {
        return Ok(Changes {
            accessed: Some(now),
            modified: Some(now),
            ..Changes::default()
        });
    }
    let mut bytes = [0; 32];
    match request.read(at, &mut bytes) {
        Ok(32) => {}
        _ => return Err(Errno::EFAULT),
    }
    let word = |at: usize| i64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
    let time = |at: usize| match word(at + 8) {
        libc::UTIME_NOW => Ok(Some(now)),
        libc::UTIME_OMIT => Ok(None),
        ns @ 0..1_000_000_000 => Ok(Some(Time {
            seconds: word(at),
            ns: ns as u32,
        })),
        _ => Err(Errno::EINVAL),
    };
    Ok(Changes {
        accessed: time(0)?,
        modified: time(16)?,
        ..Changes::default()
    })
}
