//! A server asked as the kernel asks it that reads shared pages by itself.

#![allow(
    unsafe_code,
    reason = "shared pages are read by address, as the kernel does"
)]

use std::collections::BTreeMap;
use std::slice;
use std::sync::{Arc, Mutex};

use insula_abi::files::{CURRENT, operation};
use insula_abi::server::announcement;
use insula_lwk::model::cached_file::CachedFile;
use insula_lwk::model::file_offset::FileOffset;
use nix::libc;

use crate::files::Announcer;
use crate::{Announcement, Handler, Reply, Request};

/// A file: its shard, 0 if there are none, and its inode.
type FileId = (u64, u64);

/// What the kernel knows of files, whose pages are known by their addresses. Several clients may share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pages(Arc<Mutex<BTreeMap<FileId, CachedFile<usize>>>>);

impl Pages {
    fn take(&self, shard: u64, Announcement([inode, one, two, three, _, kind]): &Announcement) {
        let mut files = self.0.lock().unwrap();
        let file = files.entry((shard, *inode)).or_default();
        match *kind {
            announcement::FILE_PAGE => drop(file.share(*one, *two as usize, (*three, 0))),
            announcement::FILE_INVALID => drop(file.invalidate(*one, *two)),
            announcement::FILE_CHANGED => file.set_changed(),
            kind => panic!("announcement {kind}"),
        }
    }

    /// Reads what is shared of a file, as far as it fits. Returns false if the server has to be asked.
    fn read(&self, file: FileId, (start, wanted): (u64, u64), to: &mut Vec<u8>) -> bool {
        // Nothing is announced meanwhile.
        let files = self.0.lock().unwrap();
        let found = files.get(&file);
        let found = found.and_then(|file| Some((file, file.readable(start, wanted, 0)?)));
        let Some((file, length)) = found else {
            return false;
        };
        to.clear();
        for part in file.parts(start, length) {
            let start = (*part.page as *const u8).wrapping_add(part.offset as usize);
            // SAFETY: the server has not said that the page is shared no more.
            let bytes = unsafe { slice::from_raw_parts(start, part.length as usize) };
            to.extend_from_slice(bytes);
        }
        assert_eq!(to.len() as u64, length);
        true
    }
}

/// Where a shard announces.
#[derive(Debug)]
pub(super) struct OfShard(pub(super) u64, pub(super) Pages);

impl Announcer for OfShard {
    fn announce(&self, announcements: &[Announcement]) {
        announcements
            .iter()
            .for_each(|one| self.1.take(self.0, one));
    }
}

/// An open file.
struct Open {
    file: FileId,
    may_read: bool,
    offset: FileOffset,
}

/// A server, and what the kernel knows of it.
pub(crate) struct Cached<H> {
    pub(super) server: H,
    /// Regular files, by handle.
    open: BTreeMap<u64, Open>,
    pub(super) pages: Pages,
    /// Pages of mapped files, by file and number.
    pub(super) mapped: BTreeMap<(u64, u64), usize>,
    data: Vec<u8>,
    /// Reads of which the server has heard nothing.
    pub(crate) unasked: usize,
}

impl<H: Handler> Cached<H> {
    pub(crate) fn new(server: H) -> Self {
        Self::with(server, Pages::default())
    }

    /// One that has heard of pages already, or hears of them otherwise than by replies.
    pub(super) fn with(server: H, pages: Pages) -> Self {
        Self {
            server,
            open: BTreeMap::new(),
            pages,
            mapped: BTreeMap::new(),
            data: Vec::new(),
            unasked: 0,
        }
    }

    /// Reads what is shared, as far as it fits. Returns the number of bytes; `None` if the server has to be asked.
    fn read(&mut self, handle: u64, offset: u64, wanted: u64) -> Option<u64> {
        let open = self.open.get_mut(&handle).filter(|open| open.may_read)?;
        let start = match offset {
            CURRENT => open.offset.known()?,
            offset => i64::try_from(offset).ok()?.cast_unsigned(),
        };
        if !self.pages.read(open.file, (start, wanted), &mut self.data) {
            return None;
        }
        let length = self.data.len() as u64;
        if offset == CURRENT {
            open.offset.set(start + length);
        }
        self.unasked += 1;
        Some(length)
    }

    fn take(&mut self, announcement: &Announcement) {
        let Announcement([inode, one, two, .., kind]) = *announcement;
        if kind != announcement::FILE_MAPPED {
            return self.pages.take(0, announcement);
        }
        let before = self.mapped.insert((inode, one), two as usize);
        // It keeps its place.
        assert!(before.is_none_or(|before| before == two as usize));
    }

    /// Has the server handle a request. Returns the words of its reply.
    fn ask(&mut self, request: &Request<'_>) -> [u64; 6] {
        let reply = self.server.handle(request);
        let (words, announcements) = (reply.words, reply.announcements.to_vec());
        self.data.clear();
        self.data.extend_from_slice(reply.data);
        announcements.iter().for_each(|one| self.take(one));
        words
    }

    fn note_open(&mut self, request: &Request<'_>, [result, mode, inode, shard, ..]: [u64; 6]) {
        let flags = request.words[1] as i32;
        let is_regular = mode as u32 & libc::S_IFMT == libc::S_IFREG && flags & libc::O_PATH == 0;
        if result == 0 && is_regular {
            let open = Open {
                file: (shard, inode),
                may_read: matches!(flags & libc::O_ACCMODE, libc::O_RDONLY | libc::O_RDWR),
                offset: FileOffset::default(),
            };
            self.open.insert(request.words[3], open);
        }
    }
}

impl<H: Handler> Handler for Cached<H> {
    fn handle<'a>(&'a mut self, request: &Request<'_>) -> Reply<'a> {
        let mut request = *request;
        let [handle, offset, ..] = request.words;
        if request.operation == operation::READ
            && let Some(done) = self.read(handle, offset, request.writable)
        {
            return Reply::new([done, 0, 0, 0, 0, 0], &self.data);
        }
        let needs_offset = match request.operation {
            operation::READ | operation::WRITE => offset == CURRENT,
            operation => operation == operation::SEEK,
        };
        let open = self.open.get_mut(&handle).filter(|_| needs_offset);
        let is_told = open.is_some();
        if let Some(open) = open {
            let told = open.offset.begin();
            let at = if request.operation == operation::SEEK {
                3
            } else {
                2
            };
            request.words[at..at + 2].copy_from_slice(&[told.offset, told.number]);
        }
        let words = self.ask(&request);
        if let Some(open) = self.open.get_mut(&handle).filter(|_| is_told) {
            open.offset.end(Some(words[1]));
        }
        match request.operation {
            operation::OPEN => self.note_open(&request, words),
            operation::RELEASE => drop(self.open.remove(&handle)),
            _ => {}
        }
        Reply::new(words, &self.data)
    }
}
