//! Copies of large files with holes.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, ioctl_ficlone, seek};
use rustix::io::Errno;

/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

/// Makes the empty file `to` share all blocks of `from` until one of them is written (reflink). False
/// if their file systems cannot.
///
/// # Errors
/// The file system's error.
pub(super) fn reflink(from: &File, to: &File) -> io::Result<bool> {
    match ioctl_ficlone(to, from) {
        Ok(()) => Ok(true),
        // ioctl_ficlone(2): another file system, or one that has no such thing.
        Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOTTY) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Copies `from` to the empty file `to`, without its holes.
///
/// # Errors
/// The file system's error; `to` has a part then.
pub(super) fn copy_sparse(from: &File, to: &File) -> io::Result<()> {
    let size = from.metadata()?.len();
    to.set_len(size)?;
    let mut end = 0;
    while let Some(start) = next_data(from, end)? {
        end = seek(from, SeekFrom::Hole(start))?.min(size);
        copy_range(from, to, start, end)?;
    }
    Ok(())
}

/// Offset of the next byte that is not in a hole.
fn next_data(file: &File, from: u64) -> io::Result<Option<u64>> {
    match seek(file, SeekFrom::Data(from)) {
        Ok(start) => Ok(Some(start)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn copy_range(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    let mut at = start;
    while at < end {
        let count = (end - at).min(PIECE as u64) as usize;
        let count = match from.read_at(&mut piece[..count], at) {
            // It has been truncated meanwhile.
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            read => read?,
        };
        to.write_all_at(&piece[..count], at)?;
        at += count as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn holes_stay_holes() {
        let [from, to] = [(); 2].map(|()| tempfile::tempfile().unwrap());
        let size = 64 << 20;
        from.set_len(size).unwrap();
        from.write_all_at(b"first", 0).unwrap();
        let late = vec![7; 3 << 20];
        from.write_all_at(&late, 40 << 20).unwrap();
        copy_sparse(&from, &to).unwrap();
        assert_eq!(to.metadata().unwrap().len(), size);
        let mut read = vec![0; late.len() + 2];
        to.read_exact_at(&mut read, (40 << 20) - 1).unwrap();
        assert!(read[0] == 0 && read[1..=late.len()] == late && read[late.len() + 1] == 0);
        to.read_exact_at(&mut read[..5], 0).unwrap();
        assert_eq!(&read[..5], b"first");
        assert!(to.metadata().unwrap().blocks() * 512 < 8 << 20);
    }

    #[test]
    fn files_that_cannot_share_are_copied() {
        let from = tempfile::tempfile().unwrap();
        let memory = rustix::fs::memfd_create("other", rustix::fs::MemfdFlags::empty()).unwrap();
        assert!(!reflink(&from, &File::from(memory)).unwrap());
    }
}
