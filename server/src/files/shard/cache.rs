//! What a shard keeps of its files: pages of content, and attributes.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;

use crate::files::attributes::{Attributes, BLOCK};
use crate::files::system::Inode;

/// Most files whose attributes are kept.
const FILES_MAX: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// After this time the file system is to hear of a read again, as of Linux' `relatime`.
const READ_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// A page of content: fewer bytes than [`BLOCK`] at the end of its file.
pub(super) type Page = Arc<[u8]>;

#[derive(Debug)]
struct CachedFile {
    attributes: Attributes,
    /// When the file system has last heard of a read, unless the file was changed since.
    read_at: Option<Instant>,
}

/// Pages and attributes of files.
#[derive(Debug)]
pub(super) struct ContentCache {
    pages: LruCache<(Inode, u64), Page>,
    /// The same, in their order.
    numbers: BTreeSet<(Inode, u64)>,
    files: LruCache<Inode, CachedFile>,
}

impl ContentCache {
    /// Creates one of at most that many bytes of content, and a page at least.
    pub(super) fn new(bytes: usize) -> Self {
        let pages = NonZeroUsize::new(bytes / BLOCK as usize);
        Self {
            pages: LruCache::new(pages.unwrap_or(NonZeroUsize::MIN)),
            numbers: BTreeSet::new(),
            files: LruCache::new(FILES_MAX),
        }
    }

    /// Returns the attributes of a file, if they are kept.
    pub(super) fn attributes(&mut self, file: Inode) -> Option<Attributes> {
        self.files.get(&file).map(|cached| cached.attributes)
    }

    /// Whether the file system is to hear of a read of a file.
    pub(super) fn notes_read(&mut self, file: Inode) -> bool {
        let read_at = self.files.get(&file).and_then(|cached| cached.read_at);
        read_at.is_none_or(|at| at.elapsed() >= READ_INTERVAL)
    }

    /// Keeps the attributes of a file of whose last read the file system has heard.
    pub(super) fn put_read(&mut self, file: Inode, attributes: Attributes) {
        let read_at = Some(Instant::now());
        let cached = CachedFile {
            attributes,
            read_at,
        };
        self.files.put(file, cached);
    }

    /// Keeps the attributes of a file of which the file system has to hear the next read.
    pub(super) fn put(&mut self, file: Inode, attributes: Attributes) {
        let cached = CachedFile {
            attributes,
            read_at: None,
        };
        self.files.put(file, cached);
    }

    /// Returns a page, if it is kept.
    pub(super) fn page(&mut self, file: Inode, number: u64) -> Option<Page> {
        self.pages.get(&(file, number)).map(Arc::clone)
    }

    /// Keeps a page.
    pub(super) fn put_page(&mut self, file: Inode, number: u64, page: Page) {
        self.numbers.insert((file, number));
        if let Some((removed, _)) = self.pages.push((file, number), page)
            && removed != (file, number)
        {
            self.numbers.remove(&removed);
        }
    }

    /// Notes that bytes of a file were overwritten, or put behind its end, which was at `size` before.
    pub(super) fn write(&mut self, file: Inode, (offset, size): (u64, u64), bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        if end > size {
            // The page of the old end has more bytes now.
            self.forget_pages(file, size.min(offset) / BLOCK..=end / BLOCK);
            return;
        }
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let start = (at % BLOCK) as usize;
            let part = (BLOCK as usize - start).min(bytes.len() - done);
            if let Some(page) = self.pages.peek_mut(&(file, at / BLOCK))
                && let Some(to) = Arc::make_mut(page).get_mut(start..start + part)
            {
                to.copy_from_slice(&bytes[done..done + part]);
            }
            done += part;
        }
    }

    /// Drops all that is kept of a file.
    pub(super) fn forget(&mut self, file: Inode) {
        self.files.pop(&file);
        self.forget_pages(file, 0..=u64::MAX);
    }

    fn forget_pages(&mut self, file: Inode, numbers: std::ops::RangeInclusive<u64>) {
        let range = (file, *numbers.start())..=(file, *numbers.end());
        for key in self.numbers.extract_if(range, |_| true) {
            self.pages.pop(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(byte: u8, length: usize) -> Page {
        vec![byte; length].into()
    }

    #[test]
    fn the_oldest_pages_go() {
        let mut cache = ContentCache::new(2 * BLOCK as usize);
        for number in 0..3 {
            cache.put_page(7, number, page(1, 4096));
        }
        assert_eq!(cache.page(7, 0), None);
        assert!(cache.page(7, 1).is_some());
        cache.put_page(7, 3, page(1, 4096));
        assert_eq!(cache.page(7, 2), None);
        assert_eq!(cache.numbers.len(), 2);
        cache.forget(7);
        assert_eq!((cache.numbers.len(), cache.pages.len()), (0, 0));
    }

    #[test]
    fn what_is_overwritten_is_kept_and_an_end_that_grows_is_not() {
        let mut cache = ContentCache::new(1 << 20);
        cache.put_page(7, 0, page(1, 4096));
        cache.put_page(7, 1, page(1, 100));
        let before = cache.page(7, 0).unwrap();
        cache.write(7, (4090, 4196), &[2; 16]);
        assert_eq!(cache.page(7, 0).unwrap()[4089..], [1, 2, 2, 2, 2, 2, 2]);
        assert_eq!(cache.page(7, 1).unwrap()[9..11], [2, 1]);
        // Who had it before has it as it was.
        assert_eq!(before[4090], 1);
        cache.write(7, (5000, 4196), &[2]);
        assert!(cache.page(7, 0).is_some());
        assert_eq!(cache.page(7, 1), None);
    }

    #[test]
    fn a_read_is_told_once_after_a_change() {
        let mut cache = ContentCache::new(1 << 20);
        assert!(cache.notes_read(7));
        cache.put_read(7, Attributes::default());
        assert!(!cache.notes_read(7));
        cache.put(7, Attributes::default());
        assert!(cache.notes_read(7));
        assert!(cache.attributes(7).is_some());
    }
}
