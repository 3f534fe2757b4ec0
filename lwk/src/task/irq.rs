//! Interrupts of PCI functions: messages, and the endpoints at which they arrive as requests.
//!
//! The interrupt itself only notes its vector. The core that took it has the request received before it
//! runs a program again ([`deliver`]). If the thread that waited for it is on another core, the message interrupts
//! that one from then on.
//!
//! A route is added and removed under the lock of all claims ([`crate::task::pci`]): so only a function that
//! decodes its BARs has one, and its table is written to only then.

use alloc::boxed::Box;

use insula_abi::pci::{PCI_INTERRUPTED, PCI_INTERRUPTS_MAX};
use insula_bare::memory::PhysAddr;

use crate::hw::cores::{self, MESSAGE_VECTORS};
use crate::hw::interrupts;
use crate::hw::memory::room::has_room;
use crate::hw::pci::MessageEntry;
use crate::model::endpoint::Request;
use crate::model::errno::Errno;
use crate::model::pci::msix::{self, TableEntry};
use crate::task::endpoint::Handle;

/// Kernel memory needed for the request that an interrupt is.
const REQUEST_BYTES: u64 = 4096;

impl TableEntry for MessageEntry {
    fn write(&mut self, word: u64, value: u32) {
        self.write(word, value);
    }
}

/// A message of a function, by address and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) function: u64,
    pub(super) number: u64,
}

/// Where a message arrives.
#[derive(Debug)]
struct Route {
    message: Message,
    entry: MessageEntry,
    endpoint: Handle,
    /// Core that it interrupts.
    core: u32,
}

/// Those of all vectors.
static ROUTES: spin::Mutex<[Option<Route>; PCI_INTERRUPTS_MAX]> =
    spin::Mutex::new([const { None }; PCI_INTERRUPTS_MAX]);

/// Has a message, whose entry is at an address, interrupt this core, and arrive at an endpoint.
///
/// # Errors
/// [`Errno::ENOSPC`] if no vector is free, [`Errno::ENOMEM`]; as of [`msix::route`].
pub(super) fn add(message: Message, entry: PhysAddr, endpoint: Handle) -> Result<(), Errno> {
    let mut routes = ROUTES.lock();
    let is_its = |route: &&Option<Route>| route.as_ref().is_some_and(|one| one.message == message);
    let own = routes.iter().position(|route| is_its(&route));
    let free = || routes.iter().position(Option::is_none);
    let index = own.or_else(free).ok_or(Errno::ENOSPC)?;
    let mut route = Route {
        message,
        entry: MessageEntry::map(entry)?,
        endpoint,
        core: cores::number(),
    };
    point(&mut route, index)?;
    routes[index] = Some(route);
    Ok(())
}

/// Has the message of a route interrupt its core.
fn point(route: &mut Route, index: usize) -> Result<(), Errno> {
    let apic_id = cores::apic_id(route.core).ok_or(Errno::EOPNOTSUPP)?;
    msix::route(
        &mut route.entry,
        apic_id,
        MESSAGE_VECTORS.start + index as u8,
    )
}

/// Masks the messages that `is_chosen` accepts, and forgets where they arrive.
pub(super) fn remove(is_chosen: impl Fn(Message) -> bool) {
    for place in ROUTES.lock().iter_mut() {
        if let Some(mut route) = place.take_if(|route| is_chosen(route.message)) {
            msix::mask(&mut route.entry);
        }
    }
}

/// Has the messages that have come be received.
pub(crate) fn deliver() {
    let mut pending = interrupts::take_messages();
    while pending != 0 {
        let index = pending.trailing_zeros() as usize;
        pending &= pending - 1;
        deliver_one(index);
    }
}

fn deliver_one(index: usize) {
    let found = ROUTES.lock()[index]
        .as_ref()
        .map(|route| (route.message, route.endpoint.clone()));
    let Some((message, endpoint)) = found else {
        return;
    };
    if has_room(REQUEST_BYTES).is_err() {
        // It is tried again with the next interrupt of this core.
        return interrupts::note_message(index);
    }
    let words = [message.function, message.number, 0, 0, 0, 0];
    let request = Request::unanswered(PCI_INTERRUPTED, words);
    if let Some(core) = endpoint.interrupt(Box::new(request)) {
        follow(index, message, core);
    }
}

/// Has a message interrupt the core on which it was waited for.
fn follow(index: usize, message: Message, core: u32) {
    let mut routes = ROUTES.lock();
    // It may have been removed meanwhile.
    if let Some(route) = &mut routes[index]
        && route.message == message
        && route.core != core
    {
        let before = core::mem::replace(&mut route.core, core);
        if point(route, index).is_err() {
            route.core = before;
        }
    }
}
