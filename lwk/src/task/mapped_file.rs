//! A server's file that programs have mapped as shared: its pages are the server's own.
//!
//! The server keeps them in their places as long as the file is mapped anywhere (`abi/include/insula_files.h`). The last
//! mapping that goes tells it so.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::any::Any;

use insula_abi::files::operation;
use insula_bare::memory::PhysAddr;

use crate::hw::cores;
use crate::hw::memory::room::has_room;
use crate::model::endpoint::Request;
use crate::model::errno::Errno;
use crate::task::endpoint::Handle;
use crate::task::server_handle;
use crate::task::shared_object::{PageSource, SharedObject};

/// Kernel memory needed for a page.
const ENTRY_BYTES: u64 = 4096;

/// The pages of a file that is mapped.
#[derive(Debug)]
pub(crate) struct MappedFile {
    /// The server's, or its shard's.
    pub(crate) endpoint: Handle,
    /// By which the server knows it. None is ever used twice.
    pub(crate) handle: u64,
    /// By their numbers in the file: pages of the server's shared memory.
    pages: spin::Mutex<BTreeMap<u64, (Arc<SharedObject>, u64)>>,
    /// What is to last as long.
    _file: Box<dyn Any + Send + Sync>,
}

impl MappedFile {
    /// Adds a page.
    pub(crate) fn insert(&self, number: u64, page: (Arc<SharedObject>, u64)) {
        if has_room(ENTRY_BYTES).is_ok() {
            let mut pages = cores::wait_for(|| self.pages.try_lock());
            // It keeps its place as long as it is mapped.
            pages.entry(number).or_insert(page);
        }
    }
}

impl PageSource for MappedFile {
    /// Beyond the end of the file there is nothing: SIGBUS.
    fn frame(&self, number: u64) -> Result<PhysAddr, Errno> {
        let pages = cores::wait_for(|| self.pages.try_lock());
        let (object, index) = pages.get(&number).ok_or(Errno::EIO)?;
        object.frame(*index)
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        let words = [self.handle, 0, 0, 0, 0, 0];
        let request = Request::unanswered(operation::UNMAP, words);
        self.endpoint.post(Box::new(request));
    }
}

/// How a file is mapped, if it is.
#[derive(Debug, Default)]
pub(crate) struct Mapping {
    file: Weak<MappedFile>,
    object: Weak<SharedObject>,
}

impl Mapping {
    /// Returns the object that VMAs map, and what the server is to be told of it; new ones if the file is not mapped now: with
    /// these `file` lasts.
    pub(crate) fn get(
        &mut self,
        endpoint: &Handle,
        is_writable: bool,
        file: impl FnOnce() -> Box<dyn Any + Send + Sync>,
    ) -> (Arc<SharedObject>, Arc<MappedFile>) {
        if let (Some(object), Some(file)) = (self.object.upgrade(), self.file.upgrade()) {
            return (object, file);
        }
        let file = Arc::new(MappedFile {
            endpoint: endpoint.clone(),
            handle: server_handle::next(),
            pages: spin::Mutex::default(),
            _file: file(),
        });
        let object = SharedObject::from_source(Arc::clone(&file) as Arc<_>, is_writable);
        self.file = Arc::downgrade(&file);
        self.object = Arc::downgrade(&object);
        (object, file)
    }

    /// Returns the file, if it is mapped.
    pub(crate) fn file(&self) -> Option<Arc<MappedFile>> {
        self.file.upgrade()
    }
}
