//! mmap(2) of a server's file: a private copy, or the server's own pages.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use insula_abi::files::operation;

use crate::model::errno::Errno;
use crate::model::file_locks::Kind;
use crate::model::vma::{PAGE, Protection};
use crate::syscall::base_mapping;
use crate::syscall::delegate::finish;
use crate::syscall::mounted::ask::{Ask, Words, result};
use crate::syscall::mounted::routed::{Arguments, Routed};
use crate::task::address_space::{AddressSpace, Placement};
use crate::task::flow::Flow;
use crate::task::mapped_file::MappedFile;
use crate::task::mounted::{self, Description, OpenContent};
use crate::task::shared_object::SharedObject;
use crate::task::thread::Thread;

/// Flags of mmap(2).
const SHARED: u64 = 0x01;
const PRIVATE: u64 = 0x02;
const SHARED_VALIDATE: u64 = 0x03;
const TYPE: u64 = 0x0f;
const FIXED: u64 = 0x10;
const ANONYMOUS: u64 = 0x20;
const FIXED_NO_REPLACE: u64 = 0x10_0000;

/// A mapping that is asked for.
#[derive(Clone, Copy)]
struct Mapping {
    place: Placement,
    size: u64,
    protection: Protection,
    offset: u64,
}

/// mmap(2).
pub(super) fn map(thread: Box<Thread>, _: u64, arguments: Arguments) -> Routed {
    let [address, length, protection, flags, fd, offset] = arguments;
    if flags & ANONYMOUS != 0 {
        return Routed::Base(thread);
    }
    let file = mounted::files(&thread.process).and_then(|files| {
        let files = files.lock();
        files.file(fd)
    });
    let Some(file) = file else {
        return Routed::Base(thread);
    };
    let place = match flags & (FIXED | FIXED_NO_REPLACE) {
        0 => Placement::Hint(address),
        FIXED => Placement::Fixed(address),
        _ => Placement::FixedNoReplace(address),
    };
    let size = length.checked_next_multiple_of(PAGE).unwrap_or(0);
    let mapping = Mapping {
        place,
        size,
        protection: Protection::from_bits_truncate(protection as u8),
        offset,
    };
    Routed::Server(match (flags & TYPE, size, offset % PAGE) {
        (PRIVATE, 1.., 0) => map_copy(thread, file, mapping),
        (SHARED | SHARED_VALIDATE, 1.., 0) => map_shared(thread, &file, mapping),
        _ => finish(thread, Err(Errno::EINVAL)),
    })
}

/// Has the server say where the file's pages are, and maps these.
fn map_shared(thread: Box<Thread>, file: &Description, mapping: Mapping) -> Flow {
    let is_writable = file.allows(Kind::Exclusive);
    let is_allowed = file.allows(Kind::Shared)
        && (is_writable || !mapping.protection.contains(Protection::WRITE));
    let cached = file.content().and_then(OpenContent::cached);
    let cached = match cached {
        Some(cached) if is_allowed => cached,
        Some(_) => return finish(thread, Err(Errno::EACCES)),
        None => return finish(thread, Err(Errno::ENODEV)),
    };
    let (object, mapped) = cached.map(file.endpoint(), is_writable);
    let words = [
        mapped.handle,
        mapping.offset,
        mapping.size,
        is_writable.into(),
    ];
    Ask::of_file(file, operation::MAP, &words)
        .then(move |thread, words| shared(thread, words, object, mapping))
        .submit(thread)
}

/// Maps what the server has said.
fn shared(thread: Box<Thread>, words: Words, object: Arc<SharedObject>, mapping: Mapping) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let Mapping {
            place,
            size,
            protection,
            offset,
        } = mapping;
        let mapped = match result(&words) {
            Ok(_) => {
                let map = move |space: &mut AddressSpace| {
                    space.map_object_at((Arc::clone(&object), offset), place, (size, protection))
                };
                thread.change_space(map).await
            }
            Err(error) => Err(error),
        };
        finish(thread, mapped)
    })
}

/// Maps memory, and has the server write the file's bytes there.
fn map_copy(thread: Box<Thread>, file: Arc<Description>, mapping: Mapping) -> Flow {
    let Mapping { place, size, .. } = mapping;
    Flow::handler(thread, move |mut thread| async move {
        let writable = Protection::READ | Protection::WRITE;
        let mapped = thread
            .change_space(move |space| space.map(place, size, writable))
            .await;
        match mapped {
            Ok(start) => Ask::of_file(&file, operation::READ, &[mapping.offset])
                .writes_at(start, size)
                .then(move |thread, words| filled(thread, words, start, mapping))
                .submit_saved(thread),
            Err(error) => finish(thread, Err(error)),
        }
    })
}

/// Gives the memory its protection, or unmaps it.
fn filled(thread: Box<Thread>, words: Words, start: u64, mapping: Mapping) -> Flow {
    let Mapping {
        size, protection, ..
    } = mapping;
    Flow::handler(thread, move |mut thread| async move {
        let read = result(&words);
        let changed = match read {
            Ok(_) => {
                let protect =
                    move |space: &mut AddressSpace| space.protect(start, start + size, protection);
                thread.change_space(protect).await
            }
            Err(_) => thread.unmap_buffer(start, size).await,
        };
        finish(thread, read.and(changed).map(|()| start))
    })
}

/// msync(2): of servers' files, then of those of the base.
pub(super) fn sync(mut thread: Box<Thread>, _: u64, arguments: Arguments) -> Routed {
    let [start, size, ..] = arguments;
    let end = start.saturating_add(size);
    let objects = thread.process.space().objects_within(start, end);
    let mapped = objects.values().filter_map(|object| object.source());
    let mapped: Vec<Arc<MappedFile>> = mapped.collect();
    match mapped.is_empty() {
        true => Routed::Base(thread),
        false => {
            thread.extended.save();
            Routed::Server(sync_each(thread, mapped, arguments))
        }
    }
}

/// Has the servers of mapped files sync them, one after the other, on behalf of a thread whose extended state is saved.
fn sync_each(thread: Box<Thread>, mut left: Vec<Arc<MappedFile>>, arguments: Arguments) -> Flow {
    let Some(next) = left.pop() else {
        return base_mapping::msync(thread, arguments);
    };
    let words = [next.handle, 0, 0, 0, 0, 0];
    Ask::new(&next.endpoint, operation::MSYNC, words)
        .then(move |thread, words| match result(&words) {
            Ok(_) => sync_each(thread, left, arguments),
            Err(error) => finish(thread, Err(error)),
        })
        .submit_saved(thread)
}
