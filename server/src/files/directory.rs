//! Listings as getdents64(2) gives them.

use nix::errno::Errno;

use crate::files::attributes::FileType;
use crate::files::system::{Entry, FileSystem, Inode};

/// Bytes of a `struct linux_dirent64` before the name.
const HEAD: usize = 19;
/// Places of `.` and `..`.
const OWN: u64 = 1;
const PARENT: u64 = 2;

/// Lists a directory behind a place, as far as it fits into `room` bytes. Returns the last place.
///
/// # Errors
/// [`Errno::EINVAL`] if not even one entry fits.
pub(super) fn list(
    system: &mut impl FileSystem,
    directory: Inode,
    mut after: u64,
    room: usize,
    to: &mut Vec<u8>,
) -> Result<u64, Errno> {
    while let Some(entry) = next(system, directory, after)? {
        let size = (HEAD + entry.name.len() + 1).next_multiple_of(8);
        if to.len() + size > room {
            if to.is_empty() {
                return Err(Errno::EINVAL);
            }
            break;
        }
        let kind = system
            .attributes(entry.inode)
            .map_or(FileType::File, |attributes| attributes.kind);
        let end = to.len() + size;
        to.extend(entry.inode.to_le_bytes());
        to.extend(entry.cookie.to_le_bytes());
        to.extend((size as u16).to_le_bytes());
        to.push(kind.entry_type());
        to.extend(&entry.name);
        to.resize(end, 0);
        after = entry.cookie;
    }
    Ok(after)
}

fn next(
    system: &mut impl FileSystem,
    directory: Inode,
    after: u64,
) -> Result<Option<Entry>, Errno> {
    let entry = |cookie, name: &[u8], inode| Entry {
        cookie,
        name: name.to_vec(),
        inode,
    };
    match after {
        0 => Ok(Some(entry(OWN, b".", directory))),
        OWN => Ok(Some(entry(PARENT, b"..", system.parent(directory)?))),
        after => system.next_entry(directory, after),
    }
}
