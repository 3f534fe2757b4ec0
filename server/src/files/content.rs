//! Open files and their content.

use insula_abi::files::{CURRENT, NONE};
use nix::errno::Errno;
use nix::libc;

use crate::files::attributes::{Changes, FileType};
use crate::files::description::Description;
use crate::files::handler::Files;
use crate::files::open_files::OpenCounts;
use crate::files::system::{FileSystem, Inode};
use crate::files::walk::End;
use crate::{Request, Words};

/// Bytes that are copied at once between a client and the file system.
const PART: usize = 64 << 10;
/// Largest result of a read or write, as Linux' `MAX_RW_COUNT`.
const TRANSFER_MAX: u64 = 0x7fff_f000;

impl<F: FileSystem> Files<F> {
    /// Opens a file. Returns the number of the shard that has it.
    pub(super) fn open(&mut self, request: &Request<'_>) -> Result<u64, Errno> {
        let [_, flags, mode, handle, ..] = request.words;
        let (flags, mode) = (flags as i32, mode as u32);
        let has = |flag: i32| flags & flag == flag;
        if has(libc::O_TMPFILE) {
            return Err(Errno::EOPNOTSUPP);
        }
        let is_new_only = has(libc::O_CREAT | libc::O_EXCL);
        let follows = !has(libc::O_NOFOLLOW) && !is_new_only;
        let end = match has(libc::O_CREAT) {
            true => End::Create(follows),
            false => End::following(follows),
        };
        let place = self.place(request, end)?;
        let inode = match place.inode {
            Some(_) if is_new_only => return Err(Errno::EEXIST),
            Some(inode) => {
                self.may_open(inode, flags)?;
                inode
            }
            None if !has(libc::O_CREAT) || has(libc::O_PATH) => return Err(Errno::ENOENT),
            None => {
                let (directory, name) = place.free_name(FileType::File)?;
                let attributes = self.new_attributes(directory, FileType::File, mode)?;
                self.system.create(directory, name, &attributes, &[])?
            }
        };
        let once = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_CLOEXEC;
        let description = Description {
            inode,
            flags: (flags & !once) as u32,
            offset: 0,
            told: 0,
        };
        let kind = self.system.attributes(inode)?.kind;
        Ok(self.open.add(handle, description, kind)? as u64)
    }

    /// Checks that a file that is there can be opened so, and empties it if asked to.
    pub(super) fn may_open(&mut self, inode: Inode, flags: i32) -> Result<(), Errno> {
        let has = |flag: i32| flags & flag == flag;
        let kind = self.system.attributes(inode)?.kind;
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || has(libc::O_TRUNC);
        match kind {
            _ if has(libc::O_DIRECTORY) && kind != FileType::Directory => Err(Errno::ENOTDIR),
            _ if has(libc::O_PATH) => Ok(()),
            FileType::Link => Err(Errno::ELOOP),
            FileType::Directory if writes || has(libc::O_CREAT) => Err(Errno::EISDIR),
            FileType::File if has(libc::O_TRUNC) => self.set_size(inode, 0),
            _ => Ok(()),
        }
    }

    pub(super) fn release(&mut self, handle: u64) -> Result<u64, Errno> {
        let mut counts = self.open.counts();
        if let Some(inode) = self.open.remove(handle)
            && counts.close(inode)
        {
            free_if_unused(&mut self.system, &counts, inode)?;
        }
        Ok(0)
    }

    /// Fails with [`Errno::EISDIR`] if an open file is a directory.
    fn is_file(&mut self, description: Description) -> Result<(), Errno> {
        match self.system.attributes(description.inode)?.kind {
            FileType::Directory => Err(Errno::EISDIR),
            _ => Ok(()),
        }
    }

    pub(super) fn read(&mut self, request: &Request<'_>) -> Result<u64, Errno> {
        let [handle, offset, told, number, ..] = request.words;
        self.open.tell_offset(handle, told, number)?;
        let description = self.open.find(handle)?;
        description.may_read()?;
        self.is_file(description)?;
        let start = match offset {
            CURRENT => description.offset,
            offset if offset > i64::MAX as u64 => return Err(Errno::EINVAL),
            offset => offset,
        };
        let wanted = request.writable.min(TRANSFER_MAX);
        let done = self.copy_out(request, description.inode, (start, wanted))?;
        if offset == CURRENT {
            self.open.set_offset(handle, start + done)?;
        }
        Ok(done)
    }

    /// Copies a range of a file to the client. A short one goes with the reply. Returns the number of
    /// bytes: fewer at the end of the file.
    pub(super) fn copy_out(
        &mut self,
        request: &Request<'_>,
        file: Inode,
        (start, wanted): (u64, u64),
    ) -> Result<u64, Errno> {
        let size = self.system.attributes(file)?.size;
        let mut done = 0;
        // Bytes that are with the client.
        let mut sent = 0;
        while done < wanted {
            let offset = start + done;
            let bytes = match self.system.read(file, offset) {
                Ok(bytes) => bytes,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            };
            let bytes = &bytes[..bytes.len().min((wanted - done) as usize)];
            if bytes.is_empty() {
                break;
            }
            self.data.extend_from_slice(bytes);
            done += bytes.len() as u64;
            if !self.is_copied {
                self.system.share(file, offset, size);
            }
            if sent == 0 && done == wanted {
                return Ok(done);
            }
            if self.data.len() >= PART {
                sent += self.flush(request, sent)?;
            }
        }
        if sent > 0 {
            self.flush(request, sent)?;
        }
        Ok(done)
    }

    /// Writes what is collected to the client. Returns the number of bytes.
    pub(super) fn flush(&mut self, request: &Request<'_>, at: u64) -> Result<u64, Errno> {
        let length = self.data.len() as u64;
        let written = request.write(at, &self.data);
        self.data.clear();
        written.map(|_| length).map_err(|_| Errno::EFAULT)
    }

    pub(super) fn write(&mut self, request: &Request<'_>) -> Result<u64, Errno> {
        let [handle, offset, told, number, ..] = request.words;
        self.open.tell_offset(handle, told, number)?;
        let description = self.open.find(handle)?;
        description.may_write()?;
        set_changed(&self.system, description.inode);
        let start = match offset {
            _ if description.appends() => None,
            CURRENT => Some(description.offset),
            offset if offset > i64::MAX as u64 => return Err(Errno::EINVAL),
            offset => Some(offset),
        };
        let (end, done) = self.copy_in(request, description.inode, start)?;
        if offset == CURRENT && done > 0 {
            self.open.set_offset(handle, end)?;
        }
        Ok(done)
    }

    /// Copies from the client to a file: from an offset on, or behind its end. Returns where that has ended, and the number
    /// of bytes: fewer if there is no more room.
    pub(super) fn copy_in(
        &mut self,
        request: &Request<'_>,
        file: Inode,
        start: Option<u64>,
    ) -> Result<(u64, u64), Errno> {
        let wanted = request.readable.min(TRANSFER_MAX);
        let mut buffer = vec![0; PART.min(wanted as usize)];
        let (mut end, mut done) = (start.unwrap_or_default(), 0);
        while done < wanted {
            let part = &mut buffer[..PART.min((wanted - done) as usize)];
            let written = match (request.read(done, part), start) {
                (Ok(read), _) if read != part.len() => Err(Errno::EFAULT),
                (Ok(_), None) => self.system.append(file, part),
                (Ok(_), Some(_)) => self
                    .system
                    .write(file, end, part)
                    .map(|written| (end, written)),
                (Err(_), _) => Err(Errno::EFAULT),
            };
            match written {
                Ok((at, written)) => {
                    end = at + written as u64;
                    done += written as u64;
                    if written < part.len() {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok((end, done))
    }

    pub(super) fn seek(
        &mut self,
        [handle, offset, whence, told, number, _]: Words,
    ) -> Result<u64, Errno> {
        self.open.tell_offset(handle, told, number)?;
        let description = self.open.find(handle)?;
        if description.is_path() {
            return Err(Errno::EBADF);
        }
        let size = self.system.attributes(description.inode)?.size;
        let offset = offset.cast_signed();
        let base = match whence as i32 {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => description.offset,
            libc::SEEK_END => size,
            // The whole file is data, with a hole at its end: lseek(2) allows that.
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let inside = u64::try_from(offset).is_ok_and(|offset| offset < size);
                let found = match (inside, whence as i32) {
                    (false, _) => return Err(Errno::ENXIO),
                    (true, libc::SEEK_DATA) => offset.cast_unsigned(),
                    (true, _) => size,
                };
                self.open.set_offset(handle, found)?;
                return Ok(found);
            }
            _ => return Err(Errno::EINVAL),
        };
        let at = base.cast_signed().checked_add(offset);
        let at = at.ok_or(Errno::EOVERFLOW)?;
        let at = u64::try_from(at).map_err(|_| Errno::EINVAL)?;
        self.open.set_offset(handle, at)?;
        Ok(at)
    }

    pub(super) fn allocate(
        &mut self,
        [handle, mode, offset, length, ..]: Words,
    ) -> Result<u64, Errno> {
        let description = self.open.find(handle)?;
        description.may_write()?;
        let end = offset.checked_add(length);
        let end = end.filter(|end| *end <= i64::MAX as u64 && length > 0);
        let end = end.ok_or(Errno::EINVAL)?;
        let inode = description.inode;
        invalidate(&self.system, inode);
        let keeps_size = mode as i32 & libc::FALLOC_FL_KEEP_SIZE != 0;
        match mode as i32 & !libc::FALLOC_FL_KEEP_SIZE {
            0 => self.system.allocate(inode, offset, length)?,
            libc::FALLOC_FL_PUNCH_HOLE if keeps_size => self.system.punch(inode, offset, length)?,
            _ => return Err(Errno::EOPNOTSUPP),
        }
        if !keeps_size && self.system.attributes(inode)?.size < end {
            self.set_size(inode, end)?;
        }
        Ok(0)
    }

    /// Cuts a file, or has it end with zeros.
    fn set_size(&mut self, inode: Inode, size: u64) -> Result<(), Errno> {
        invalidate(&self.system, inode);
        let changes = Changes {
            size: Some(size),
            ..Changes::default()
        };
        self.system.change(inode, &changes)
    }

    pub(super) fn sync(&mut self, [handle, data_only, ..]: Words) -> Result<u64, Errno> {
        let inode = self.open.find(handle)?.inode;
        self.system.sync(inode, data_only != 0)?;
        Ok(0)
    }

    pub(super) fn flags(&mut self, [handle, flags, ..]: Words) -> Result<u64, Errno> {
        let before = match flags {
            NONE => self.open.find(handle)?.flags,
            flags => {
                let set = |of: &mut Description| of.set_flags(flags as u32);
                self.open.update(handle, set)?
            }
        };
        Ok(before.into())
    }
}

/// Frees an inode that has no name and is open nowhere.
pub(super) fn free_if_unused(
    system: &mut impl FileSystem,
    counts: &OpenCounts,
    inode: Inode,
) -> Result<(), Errno> {
    match !counts.is_open(inode) && system.attributes(inode)?.links == 0 {
        true => {
            invalidate(system, inode);
            system.free(inode)
        }
        false => Ok(()),
    }
}

/// Has the kernel read no page of a file any more: it becomes shorter, or loses blocks, or is no more.
pub(super) fn invalidate(system: &impl FileSystem, inode: Inode) {
    if let Some(pages) = system.pages(inode) {
        pages.invalidate(inode);
    }
}

/// Has the kernel ask for the next read of a file: its size or its times change.
pub(super) fn set_changed(system: &impl FileSystem, inode: Inode) {
    if let Some(pages) = system.pages(inode) {
        pages.set_changed(inode);
    }
}
