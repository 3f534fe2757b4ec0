//! mmap(2) of a server's file: a private copy.

use alloc::boxed::Box;
use alloc::sync::Arc;

use insula_abi::files::operation;

use crate::model::errno::Errno;
use crate::model::vma::{PAGE, Protection};
use crate::syscall::delegate::finish;
use crate::syscall::mounted::ask::{Ask, Words, result};
use crate::syscall::mounted::routed::{Arguments, Routed};
use crate::task::address_space::Placement;
use crate::task::flow::Flow;
use crate::task::mounted::{self, Description};
use crate::task::thread::Thread;

/// Flags of mmap(2).
const PRIVATE: u64 = 0x02;
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

/// mmap(2). Memory that several programs share is not a server's to give.
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
        (PRIVATE, ..) => finish(thread, Err(Errno::EINVAL)),
        _ => finish(thread, Err(Errno::ENODEV)),
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
                let protect = move |space: &mut crate::task::address_space::AddressSpace| {
                    space.protect(start, start + size, protection)
                };
                thread.change_space(protect).await
            }
            Err(_) => thread.unmap_buffer(start, size).await,
        };
        finish(thread, read.and(changed).map(|()| start))
    })
}
