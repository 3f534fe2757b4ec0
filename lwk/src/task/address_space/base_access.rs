//! The kernel's own accesses to pages of base mappings, which the base may take back at any other
//! time.

use crate::base::core_words;
use crate::hw::cores::{CORES_MAX, number};
use crate::model::vma::Protection;

/// A page of a base mapping that an access needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingPage {
    /// An address in it.
    pub address: u64,
    /// The access.
    pub access: Protection,
}

/// What is done once a missing page has been faulted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The thread makes its call again.
    Call,
    /// Its restartable sequence is looked at again.
    Sequence,
    /// Its signals are delivered.
    Signals,
}

/// The page that each core has last found missing.
static MISSING: [spin::Mutex<Option<MissingPage>>; CORES_MAX] =
    [const { spin::Mutex::new(None) }; CORES_MAX];

fn missing() -> &'static spin::Mutex<Option<MissingPage>> {
    &MISSING[number() as usize % CORES_MAX]
}

/// Notes the page for which the calling core's access fails.
pub(super) fn note_missing(page: MissingPage) {
    *missing().lock() = Some(page);
}

/// Returns the page for which the calling core's last access has failed.
pub(crate) fn take_missing() -> Option<MissingPage> {
    missing().lock().take()
}

/// The kernel's access to pages of base mappings, while it has the address space locked.
#[derive(Debug, Default)]
pub(super) struct BaseAccess {
    /// The base takes back no page until this access ends.
    is_active: bool,
}

impl BaseAccess {
    /// Begins an access: entries of the page table are to be read after this.
    pub(super) fn begin(&mut self) {
        if !self.is_active {
            self.is_active = true;
            core_words::begin_access();
        }
    }

    /// Ends the access, if there is one.
    pub(super) fn end(&mut self) {
        if core::mem::take(&mut self.is_active) {
            core_words::end_access();
        }
    }
}
