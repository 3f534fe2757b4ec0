//! What a shard keeps of its files: pages of content, and attributes.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;

use crate::files::attributes::{Attributes, BLOCK};
use crate::files::system::Inode;
use crate::pages::{Block, PagePool};

/// Most files whose attributes are kept.
const FILES_MAX: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// After this time the file system is to hear of a read again, as of Linux' `relatime`.
const READ_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// A page of content: fewer bytes than [`BLOCK`] at the end of its file.
#[derive(Clone, Debug)]
pub(super) struct Page {
    block: Arc<Block>,
    length: usize,
}

impl Page {
    /// Creates one of a block with that many bytes of content.
    pub(super) fn new(block: Block, length: usize) -> Self {
        Self {
            block: Arc::new(block),
            length,
        }
    }

    /// Returns its content.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.block[..self.length]
    }
}

#[derive(Debug)]
struct CachedFile {
    attributes: Attributes,
    /// When the file system has last heard of a read, unless the file was changed since.
    read_at: Option<Instant>,
}

/// Pages and attributes of files.
#[derive(Debug)]
pub(super) struct ContentCache {
    /// Where the pages are, some of which the kernel reads by itself.
    pool: PagePool,
    /// The kernel may read pages by itself.
    is_shared: bool,
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
            pool: PagePool::new(bytes),
            is_shared: false,
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

    /// Returns where its pages are.
    pub(super) fn pool(&self) -> &PagePool {
        &self.pool
    }

    /// Returns a page, if it is kept.
    pub(super) fn page(&mut self, file: Inode, number: u64) -> Option<Page> {
        self.pages.get(&(file, number)).cloned()
    }

    /// Has the kernel read pages by itself from now on.
    pub(super) fn set_shared(&mut self) {
        self.is_shared = true;
    }

    /// Has the kernel read a page by itself, if it may, and the page is kept.
    pub(super) fn share(&mut self, file: Inode, number: u64) {
        if !self.is_shared {
            return;
        }
        let size = self.attributes(file).map(|attributes| attributes.size);
        if let (Some(size), Some(page)) = (size, self.pages.peek(&(file, number))) {
            self.pool.share(page.bytes(), (file, number * BLOCK), size);
        }
    }

    /// Keeps a page.
    pub(super) fn put_page(&mut self, file: Inode, number: u64, page: Page) {
        self.numbers.insert((file, number));
        if let Some((removed, _)) = self.pages.push((file, number), page) {
            // Also one that somebody still has.
            self.pool.evict(removed.0, removed.1);
            if removed != (file, number) {
                self.numbers.remove(&removed);
            }
        }
    }

    /// Notes that bytes of a file were overwritten, or put behind its end, which was at `size` before. A page that somebody
    /// has is not changed, but kept no more.
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
            self.write_page((file, at / BLOCK), start, &bytes[done..done + part]);
            done += part;
        }
    }

    fn write_page(&mut self, (file, number): (Inode, u64), start: usize, bytes: &[u8]) {
        let Some(page) = self.pages.peek_mut(&(file, number)) else {
            return;
        };
        let block = Arc::get_mut(&mut page.block);
        match block.and_then(|block| block.get_mut(start..start + bytes.len())) {
            Some(to) => to.copy_from_slice(bytes),
            None => self.forget_pages(file, number..=number),
        }
    }

    /// Drops all that is kept of a file.
    pub(super) fn forget(&mut self, file: Inode) {
        self.files.pop(&file);
        self.forget_pages(file, 0..=u64::MAX);
    }

    fn forget_pages(&mut self, file: Inode, numbers: std::ops::RangeInclusive<u64>) {
        let range = (file, *numbers.start())..=(file, *numbers.end());
        // Also those that somebody still has.
        self.pool.invalidate_pages(file, numbers);
        for key in self.numbers.extract_if(range, |_| true) {
            self.pages.pop(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(cache: &ContentCache, byte: u8, length: usize) -> Page {
        let mut block = cache.pool().block(BLOCK as usize);
        block[..length].fill(byte);
        Page::new(block, length)
    }

    /// Keeps a page of that byte.
    fn put(cache: &mut ContentCache, number: u64, byte: u8, length: usize) {
        let page = page(cache, byte, length);
        cache.put_page(7, number, page);
    }

    #[test]
    fn the_oldest_pages_go() {
        let mut cache = ContentCache::new(2 * BLOCK as usize);
        for number in 0..3 {
            put(&mut cache, number, 1, 4096);
        }
        assert!(cache.page(7, 0).is_none());
        assert!(cache.page(7, 1).is_some());
        put(&mut cache, 3, 1, 4096);
        assert!(cache.page(7, 2).is_none());
        assert_eq!(cache.numbers.len(), 2);
        cache.forget(7);
        assert_eq!((cache.numbers.len(), cache.pages.len()), (0, 0));
    }

    #[test]
    fn what_is_overwritten_is_kept_and_an_end_that_grows_is_not() {
        let mut cache = ContentCache::new(1 << 20);
        put(&mut cache, 0, 1, 4096);
        put(&mut cache, 1, 1, 100);
        cache.write(7, (4090, 4196), &[2; 16]);
        let bytes = |cache: &mut ContentCache, number| cache.page(7, number).unwrap();
        assert_eq!(bytes(&mut cache, 0).bytes()[4089..], [1, 2, 2, 2, 2, 2, 2]);
        assert_eq!(bytes(&mut cache, 1).bytes()[9..11], [2, 1]);
        cache.write(7, (5000, 4196), &[2]);
        assert!(cache.page(7, 0).is_some());
        assert!(cache.page(7, 1).is_none());
    }

    #[test]
    fn a_page_that_somebody_has_stays_as_it_was() {
        let mut cache = ContentCache::new(1 << 20);
        put(&mut cache, 0, 1, 4096);
        let before = cache.page(7, 0).unwrap();
        cache.write(7, (0, 4096), &[2; 16]);
        assert_eq!(before.bytes()[..2], [1, 1]);
        assert!(cache.page(7, 0).is_none());
    }

    /// Words of what is announced: kind, page and count or address.
    fn announced(cache: &ContentCache) -> Vec<(u64, u64)> {
        let all = cache.pool().take_announcements().into_iter();
        all.map(|one| (one.0[5], one.0[1])).collect()
    }

    #[test]
    fn the_kernel_hears_of_pages_that_go() {
        use insula_abi::server::announcement::{FILE_CHANGED, FILE_INVALID, FILE_PAGE};
        let mut cache = ContentCache::new(2 * BLOCK as usize);
        let attributes = Attributes {
            size: 3 * BLOCK,
            ..Attributes::default()
        };
        cache.put_read(7, attributes);
        put(&mut cache, 0, 1, 4096);
        cache.share(7, 0);
        assert_eq!(announced(&cache), []);
        cache.set_shared();
        for number in 0..2 {
            put(&mut cache, number, 1, 4096);
            cache.share(7, number);
        }
        // Of one that is not kept nothing is said.
        cache.share(7, 2);
        assert_eq!(announced(&cache), [(FILE_PAGE, 0), (FILE_PAGE, 1)]);
        // Somebody has it while it goes.
        let kept = cache.page(7, 0);
        cache.page(7, 1);
        put(&mut cache, 2, 1, 4096);
        assert_eq!(announced(&cache), [(FILE_INVALID, 0)]);
        drop(kept);
        cache.forget(7);
        let gone = [(FILE_INVALID, 0), (FILE_CHANGED, 0)];
        assert_eq!(announced(&cache), gone);
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
