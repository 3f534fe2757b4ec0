//! Which pages are shared, of which files, and what the kernel is to be told of that.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use hashbrown::HashMap;
use insula_abi::server::announcement;

use crate::{Announcement, Words};

/// A page of a file: the number of its inode, and its own in the file.
pub(super) type Place = (u64, u64);

/// Which pages are shared, and which are free.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    free: Vec<u32>,
    /// Pages that have been used, of all.
    used: u32,
    /// Free, once what is to be announced now has been announced.
    retired: Vec<u32>,
    /// Free, once the call that announces has been made.
    announced: Vec<u32>,
    places: HashMap<u32, Place>,
    shared: BTreeMap<Place, u32>,
    /// Files of which the kernel knows the size: some of those with shared pages.
    known: BTreeSet<u64>,
    announcements: Vec<Announcement>,
    /// The kernel has been told of pages.
    has_shared_any: bool,
}

impl Sharing {
    /// Takes out a free page, of so many in all.
    pub(super) fn take_page(&mut self, pages: usize) -> Option<u32> {
        if let Some(page) = self.free.pop() {
            return Some(page);
        }
        let page = self.used;
        let is_there = (page as usize) < pages;
        self.used += u32::from(is_there);
        is_there.then_some(page)
    }

    /// Takes what is to be announced with the reply to a request: by the next call of this, it has been.
    pub(super) fn take_announcements(&mut self) -> Vec<Announcement> {
        self.free.append(&mut self.announced);
        self.announced.append(&mut self.retired);
        std::mem::take(&mut self.announcements)
    }

    fn announce(&mut self, inode: u64, kind: u64, [one, two, three]: [u64; 3]) {
        let words: Words = [inode, one, two, three, 0, kind];
        self.announcements.push(Announcement(words));
    }

    fn has_shared(&self, inode: u64) -> bool {
        let mut shared = self.shared.range((inode, 0)..=(inode, u64::MAX));
        shared.next().is_some()
    }

    /// Has the next read of a file be requested.
    pub(super) fn set_changed(&mut self, inode: u64) {
        if self.known.remove(&inode) {
            self.announce(inode, announcement::FILE_CHANGED, [0; 3]);
        }
    }

    /// Whether the page of a place is shared.
    pub(super) fn is_shared(&self, place: Place) -> bool {
        self.shared.contains_key(&place)
    }

    /// Shares a page, as that of a place. `at` is its address, and the file's size.
    pub(super) fn share(&mut self, page: u32, place: Place, (address, size): (u64, u64)) {
        if self
            .places
            .get(&page)
            .is_some_and(|before| *before != place)
        {
            self.unshare(page);
        }
        if let Some(before) = self.shared.insert(place, page)
            && before != page
        {
            self.places.remove(&before);
        }
        self.has_shared_any = true;
        self.places.insert(page, place);
        self.known.insert(place.0);
        let words = [place.1, address, size];
        self.announce(place.0, announcement::FILE_PAGE, words);
    }

    /// Has a page of a file that is mapped be known.
    pub(super) fn map(&mut self, inode: u64, number: u64, address: u64) {
        self.announce(inode, announcement::FILE_MAPPED, [number, address, 0]);
    }

    /// Ends the sharing of a page, if it is shared.
    fn unshare(&mut self, page: u32) {
        let Some(place) = self.places.remove(&page) else {
            return;
        };
        let (inode, number) = place;
        self.shared.remove(&place);
        self.announce(inode, announcement::FILE_INVALID, [number, 1, 0]);
        if !self.has_shared(inode) {
            self.set_changed(inode);
        }
    }

    /// Ends the sharing of pages of a file, by their numbers.
    pub(super) fn invalidate(&mut self, inode: u64, numbers: RangeInclusive<u64>) {
        let (first, last) = (*numbers.start(), *numbers.end());
        let range = (inode, first)..=(inode, last);
        let removed: Vec<_> = self.shared.extract_if(range, |_, _| true).collect();
        for (_, page) in &removed {
            self.places.remove(page);
        }
        if !removed.is_empty() {
            let count = (last - first).saturating_add(1);
            self.announce(inode, announcement::FILE_INVALID, [first, count, 0]);
        }
        self.set_changed(inode);
    }

    /// Ends the sharing of the page of a place.
    pub(super) fn evict(&mut self, place: Place) {
        if let Some(&page) = self.shared.get(&place) {
            self.unshare(page);
        }
    }

    /// Takes back a page that was taken out.
    pub(super) fn release(&mut self, page: u32) {
        self.unshare(page);
        // Also of one that is shared no more another thread may just be announcing that.
        match self.has_shared_any {
            true => self.retired.push(page),
            false => self.free.push(page),
        }
    }
}
