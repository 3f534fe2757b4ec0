//! Files of servers whose pages this kernel can read: what servers share with it, by announcements
//! (`abi/include/insula_files.h`).
//!
//! A page is of memory that the server maps as shared. It stays as long as this kernel has it, whatever becomes of
//! the server.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};

use insula_abi::server::{MESSAGE_COPY_MAX, MESSAGE_WORDS};
use insula_bare::memory::PhysAddr;

use crate::hw::clock;
use crate::hw::cores;
use crate::hw::memory::room::has_room;
use crate::model::cached_file::CachedFile;
use crate::model::endpoint::Windows;
use crate::task::endpoint::Handle;
use crate::task::mapped_file::{MappedFile, Mapping};
use crate::task::process::Process;
use crate::task::shared_object::SharedObject;

/// Most pages in all: 1 GiB.
const PAGES_MAX: u64 = 1 << 18;
/// Kernel memory needed for a file, or a page.
const ENTRY_BYTES: u64 = 4096;

/// Number of all pages.
static PAGES: AtomicU64 = AtomicU64::new(0);

/// A page of a shared-memory object.
#[derive(Debug)]
struct Page {
    /// It stays there as long as that.
    frame: PhysAddr,
    _object: Arc<SharedObject>,
}

impl Page {
    /// Keeps a page, unless there are too many, or too little memory.
    fn keep((object, index): (Arc<SharedObject>, u64)) -> Option<Self> {
        has_room(ENTRY_BYTES).ok()?;
        let frame = object.frame(index).ok()?;
        PAGES.fetch_add(1, Ordering::Relaxed);
        let page = Self {
            frame,
            _object: object,
        };
        (PAGES.load(Ordering::Relaxed) <= PAGES_MAX).then_some(page)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        PAGES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A file: which endpoint's, and its number there.
type FileId = (usize, u64);

/// Those that are open or mapped, or have pages. Who has them locked waits for nothing else.
static FILES: spin::Mutex<BTreeMap<FileId, Arc<File>>> = spin::Mutex::new(BTreeMap::new());

/// A file of which pages may be shared.
#[derive(Debug)]
pub(crate) struct File {
    id: FileId,
    /// Generation of the server.
    generation: u64,
    content: spin::Mutex<CachedFile<Page>>,
    /// Mapped to be read alone, and to be written.
    mappings: [spin::Mutex<Mapping>; 2],
}

impl File {
    fn mapping(&self, is_writable: bool) -> spin::MutexGuard<'_, Mapping> {
        let mapping = &self.mappings[usize::from(is_writable)];
        cores::wait_for(|| mapping.try_lock())
    }

    fn lock(&self) -> spin::MutexGuard<'_, CachedFile<Page>> {
        cores::wait_for(|| self.content.try_lock())
    }

    /// Copies a range of the file to memory of a process. Returns the number of bytes: fewer at the file's end; `None` if
    /// the server has to be asked, also if that memory cannot be written now.
    pub(crate) fn read(&self, offset: u64, (process, to): (&Process, &Windows)) -> Option<u64> {
        let content = self.lock();
        let length = content.readable(offset, to.length(), clock::now_ns())?;
        if length > MESSAGE_COPY_MAX {
            return None;
        }
        let mut done = 0;
        let mut space = process.space();
        for part in content.parts(offset, length) {
            let mut from = PhysAddr(part.page.frame.0 + part.offset);
            for window in to.parts(done, part.length) {
                space.write_from(window.address, from, window.length).ok()?;
                from.0 += window.length;
            }
            done += part.length;
        }
        Some(length)
    }

    /// Returns the file's size, if it needs not be asked for.
    pub(crate) fn size(&self) -> Option<u64> {
        self.lock().size(clock::now_ns())
    }
}

/// A file that is open or mapped. One without pages is forgotten with the last of these.
#[derive(Clone, Debug)]
pub(crate) struct FileReference(Arc<File>);

impl Deref for FileReference {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for FileReference {
    fn drop(&mut self) {
        /// The one in the list, and this.
        const LAST: usize = 2;
        let file = &self.0;
        let mut files = FILES.lock();
        let is_listed = |listed: &Arc<File>| Arc::ptr_eq(listed, file);
        // One whose pages another core looks at has some.
        let is_empty = |file: &File| file.content.try_lock().is_some_and(|it| it.is_empty());
        if Arc::strong_count(file) == LAST
            && files.get(&file.id).is_some_and(is_listed)
            && is_empty(file)
        {
            files.remove(&file.id);
        }
    }
}

impl FileReference {
    /// Returns the object that VMAs map of the file, to be read alone or to be written, and what the server is to be told of
    /// it.
    pub(crate) fn map(
        &self,
        endpoint: &Handle,
        is_writable: bool,
    ) -> (Arc<SharedObject>, Arc<MappedFile>) {
        let mut mapping = self.mapping(is_writable);
        mapping.get(endpoint, is_writable, || Box::new(self.clone()))
    }
}

/// Opens a file of the server that an endpoint has now; `None` without memory for it.
pub(crate) fn open(endpoint: &Handle, inode: u64) -> Option<FileReference> {
    has_room(ENTRY_BYTES).ok()?;
    let (id, generation) = ((endpoint.id(), inode), endpoint.server_generation());
    let mut files = FILES.lock();
    if let Some(found) = files.get(&id).filter(|file| file.generation == generation) {
        return Some(FileReference(Arc::clone(found)));
    }
    let file = Arc::new(File {
        id,
        generation,
        content: spin::Mutex::default(),
        mappings: Default::default(),
    });
    files.insert(id, Arc::clone(&file));
    Some(FileReference(file))
}

/// Returns a file of the server that announces something of it.
fn find(endpoint: &Handle, inode: u64) -> Option<FileReference> {
    let files = FILES.lock();
    let file = files.get(&(endpoint.id(), inode))?;
    (file.generation == endpoint.generation).then(|| FileReference(Arc::clone(file)))
}

/// Takes over a page of a file: its number in the file, where it is in the server's memory, and the file's size.
/// Without memory for it, or if that is no shared memory, the server will be asked.
pub(crate) fn share(
    (server, endpoint): (&Process, &Handle),
    [inode, number, address, size, ..]: [u64; MESSAGE_WORDS],
) {
    let Some(file) = find(endpoint, inode) else {
        return;
    };
    let page = server.space().shared_page(address).and_then(Page::keep);
    let mut content = file.lock();
    match page {
        Some(page) => drop(content.share(number, page, (size, clock::now_ns()))),
        None => drop(content.invalidate(number, 1)),
    }
}

/// Takes over a page of a file that is mapped: its number in the file, and where it is in the server's memory.
pub(crate) fn map(
    (server, endpoint): (&Process, &Handle),
    [inode, number, address, ..]: [u64; MESSAGE_WORDS],
) {
    let page = server.space().shared_page(address);
    if let (Some(file), Some(page)) = (find(endpoint, inode), page) {
        for is_writable in [false, true] {
            let mapped = file.mapping(is_writable).file();
            mapped.inspect(|mapped| mapped.insert(number, page.clone()));
        }
    }
}

/// Has pages of a file be read no more: as many as `count`, from `first` on.
pub(crate) fn invalidate(endpoint: &Handle, [inode, first, count, ..]: [u64; MESSAGE_WORDS]) {
    if let Some(file) = find(endpoint, inode) {
        let removed = file.lock().invalidate(first, count);
        drop(removed);
    }
}

/// Has the server be asked for the next read of a file.
pub(crate) fn set_changed(endpoint: &Handle, [inode, ..]: [u64; MESSAGE_WORDS]) {
    if let Some(file) = find(endpoint, inode) {
        file.lock().set_changed();
    }
}

/// Forgets all files of an endpoint whose server has gone.
pub(crate) fn end_all(endpoint: usize) {
    let ended: Vec<_> = FILES
        .lock()
        .extract_if((endpoint, 0)..=(endpoint, u64::MAX), |_, _| true)
        .collect();
    for (_, file) in ended {
        let removed = core::mem::take(&mut *file.lock());
        drop(removed);
    }
}
