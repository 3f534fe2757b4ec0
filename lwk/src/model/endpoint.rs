//! An endpoint of messages: requests that wait for a server, requests that a server has, and servers
//! that wait for requests.
//!
//! A request owns its sender, which waits for the reply. Who works on a request takes it out for so
//! long ([`Endpoint::take`]), and only then touches the sender's memory: so a sender that is
//! interrupted, whose timeout ends, or whose server goes, leaves either before or after.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use insula_abi::pci::PCI_INTERRUPTED;
use insula_abi::server::MESSAGE_WORDS;

/// A part of a process's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Start.
    pub address: u64,
    /// Bytes.
    pub length: u64,
}

impl Window {
    /// Returns the part from an offset on, of at most `length` bytes.
    #[must_use]
    pub fn part(self, offset: u64, length: u64) -> Self {
        let offset = offset.min(self.length);
        Self {
            address: self.address.wrapping_add(offset),
            length: length.min(self.length - offset),
        }
    }
}

/// Parts of a process's memory, one behind the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// The first part.
    pub first: Window,
    /// The others.
    pub more: Vec<Window>,
}

impl Windows {
    /// Returns the bytes of all parts.
    #[must_use]
    pub fn length(&self) -> u64 {
        let more = self.more.iter().map(|window| window.length);
        more.fold(self.first.length, u64::saturating_add)
    }

    /// Returns what lies from an offset on, at most `length` bytes.
    pub fn parts(&self, offset: u64, length: u64) -> impl Iterator<Item = Window> {
        let all = core::iter::once(&self.first).chain(&self.more);
        let (mut skipped, mut left) = (offset, length);
        all.map(move |window| {
            let part = window.part(skipped, left);
            skipped = skipped.saturating_sub(window.length);
            left -= part.length;
            part
        })
        .filter(|part| part.length > 0)
    }
}

impl From<Window> for Windows {
    fn from(first: Window) -> Self {
        Self {
            first,
            more: Vec::new(),
        }
    }
}

/// A request.
#[derive(Debug)]
pub struct Request<T> {
    /// Its sender; none if nobody waits for a reply.
    pub sender: Option<T>,
    /// Where the sender wants the reply: its own message. 0 if this kernel asks on its behalf.
    pub message: u64,
    /// What it asks for.
    pub operation: u32,
    /// Its words.
    pub words: [u64; MESSAGE_WORDS],
    /// This kernel's part of what a server may read, in front of the sender's.
    pub head: Vec<u8>,
    /// What a server may read.
    pub readable: Windows,
    /// What a server may write.
    pub writable: Windows,
    /// Real-time priority of the sender: higher ranks are received first.
    pub rank: u32,
    /// Timeout, in ns since boot.
    pub deadline_ns: Option<u64>,
}

impl<T> Request<T> {
    /// One of this kernel itself, to whose reply nobody listens.
    #[must_use]
    pub fn unanswered(operation: u32, words: [u64; MESSAGE_WORDS]) -> Self {
        Self {
            sender: None,
            message: 0,
            operation,
            words,
            head: Vec::new(),
            readable: Windows::default(),
            writable: Windows::default(),
            rank: 0,
            deadline_ns: None,
        }
    }
}

impl<T> Request<T> {
    /// Whether it is an interrupt, to which nothing is replied.
    #[must_use]
    pub fn is_interrupt(&self) -> bool {
        self.sender.is_none() && self.operation == PCI_INTERRUPTED
    }

    /// Interrupts are received before all others, then those of a higher rank.
    fn precedence(&self) -> (bool, u32) {
        (self.is_interrupt(), self.rank)
    }

    /// Returns the bytes that a server may read.
    #[must_use]
    pub fn readable_length(&self) -> u64 {
        (self.head.len() as u64).saturating_add(self.readable.length())
    }
}

/// A server that waits for requests.
#[derive(Debug)]
pub struct Receiver<T> {
    /// The server.
    pub receiver: T,
    /// Generation of the endpoint's server that it belongs to.
    pub generation: u64,
    /// Where it wants the messages.
    pub messages: u64,
    /// Timeout, in ns since boot.
    pub deadline_ns: Option<u64>,
}

/// Why a request cannot be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// No server has it, any more.
    Gone,
    /// Another thread works on it.
    Busy,
}

/// What an endpoint's servers have done, and have to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointLoad {
    /// Requests that nobody has received.
    pub queued: usize,
    /// Requests that its server has.
    pub served: usize,
    /// Threads that wait for requests.
    pub waiting: usize,
    /// Requests that servers have received.
    pub received: u64,
    /// Those from another core than the server's.
    pub crossings: u64,
    /// Interrupts that servers have received.
    pub interrupts: u64,
}

/// An endpoint.
#[derive(Debug)]
pub struct Endpoint<T> {
    /// Generation of its server; 0 without one.
    server: u64,
    last_server: u64,
    received: u64,
    crossings: u64,
    interrupts: u64,
    /// Interrupts, then requests by falling rank, each in the order of their arrival.
    queued: VecDeque<Box<Request<T>>>,
    /// Requests that a server has, by number; `None` while one is taken out.
    served: BTreeMap<u64, Option<Box<Request<T>>>>,
    receivers: VecDeque<Receiver<T>>,
    last_number: u64,
}

impl<T> Default for Endpoint<T> {
    fn default() -> Self {
        Self {
            server: 0,
            last_server: 0,
            received: 0,
            crossings: 0,
            interrupts: 0,
            queued: VecDeque::new(),
            served: BTreeMap::new(),
            receivers: VecDeque::new(),
            last_number: 0,
        }
    }
}

impl<T> Endpoint<T> {
    /// Whether nobody waits here, and no request is served.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.served.is_empty() && self.receivers.is_empty()
    }

    /// Has a new server. Returns its generation; `None` if there is one already.
    pub fn begin_server(&mut self) -> Option<u64> {
        (self.server == 0).then(|| {
            self.last_server += 1;
            self.server = self.last_server;
            self.server
        })
    }

    /// Whether it has a server.
    #[must_use]
    pub fn has_server(&self) -> bool {
        self.server != 0
    }

    /// Returns the generation of its server; 0 without one.
    #[must_use]
    pub fn server(&self) -> u64 {
        self.server
    }

    /// Ends a server, by its generation. Returns the senders of all requests that it had, except of
    /// those that are taken out, which cannot be put back any more; and its waiting threads. What it
    /// had not received waits for the next server, if a sender does.
    pub fn end_server(&mut self, generation: u64) -> (Vec<T>, Vec<T>) {
        if self.server != generation {
            return (Vec::new(), Vec::new());
        }
        self.server = 0;
        // The next server does not know what they are about.
        self.queued.retain(|request| request.sender.is_some());
        let served = core::mem::take(&mut self.served);
        let senders = served.into_values().flatten();
        let senders = senders.filter_map(|request| request.sender).collect();
        (senders, self.remove_receivers(|_| true))
    }

    /// Whether a thread of the server of a generation may wait: there is no request. `None` if that
    /// server has gone.
    #[must_use]
    pub fn may_wait(&self, generation: u64) -> Option<bool> {
        (self.server == generation).then_some(self.queued.is_empty())
    }

    /// Takes out the server that has waited longest.
    pub fn take_receiver(&mut self) -> Option<Receiver<T>> {
        self.receivers.pop_front()
    }

    /// Adds a server that waits, the last one to be taken.
    pub fn wait(&mut self, receiver: Receiver<T>) {
        self.receivers.push_back(receiver);
    }

    /// Adds a request, behind those of its rank or a higher one.
    pub fn queue(&mut self, request: Box<Request<T>>) {
        let own = request.precedence();
        let place = self
            .queued
            .partition_point(|other| other.precedence() >= own);
        self.queued.insert(place, request);
    }

    /// Adds an interrupt for the server of a generation. Returns whether it was added: not if the same one waits to be
    /// received, or that server has gone.
    pub fn queue_interrupt(&mut self, generation: u64, interrupt: Box<Request<T>>) -> bool {
        let mut waiting = self.queued.iter().take_while(|one| one.is_interrupt());
        let is_there = waiting.any(|one| one.words == interrupt.words);
        let is_added = self.server == generation && !is_there;
        if is_added {
            self.queue(interrupt);
        }
        is_added
    }

    /// Adds a request before all of its rank: it was received, but could not be handed over.
    pub fn queue_again(&mut self, request: Box<Request<T>>) {
        let own = request.precedence();
        let place = self
            .queued
            .partition_point(|other| other.precedence() > own);
        self.queued.insert(place, request);
    }

    /// Takes out the request to be received next.
    pub fn take_queued(&mut self) -> Option<Box<Request<T>>> {
        self.queued.pop_front()
    }

    /// Returns a number for a request. None is ever used twice.
    pub fn new_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Counts a request that a server has received: `crosses` says whether its sender is on another core.
    pub fn count(&mut self, crosses: bool) {
        self.received += 1;
        self.crossings += u64::from(crosses);
    }

    /// Counts an interrupt that a server has received.
    pub fn count_interrupt(&mut self) {
        self.interrupts += 1;
    }

    /// Returns what there is to do.
    #[must_use]
    pub fn load(&self) -> EndpointLoad {
        EndpointLoad {
            queued: self.queued.len(),
            served: self.served.len(),
            waiting: self.receivers.len(),
            received: self.received,
            crossings: self.crossings,
            interrupts: self.interrupts,
        }
    }

    /// Has the server of a generation have a request.
    ///
    /// # Errors
    /// The request, if that server has gone.
    pub fn serve(
        &mut self,
        number: u64,
        request: Box<Request<T>>,
        generation: u64,
    ) -> Result<(), Box<Request<T>>> {
        if self.server != generation {
            return Err(request);
        }
        self.served.insert(number, Some(request));
        Ok(())
    }

    /// Takes out a request that a server has, to work on it: [`Self::put_back`] or
    /// [`Self::finish`] follows.
    ///
    /// # Errors
    /// [`NotTaken`].
    pub fn take(&mut self, number: u64) -> Result<Box<Request<T>>, NotTaken> {
        let place = self.served.get_mut(&number).ok_or(NotTaken::Gone)?;
        place.take().ok_or(NotTaken::Busy)
    }

    /// Puts back a request that was taken out.
    ///
    /// # Errors
    /// The request, if all of them have been ended meanwhile.
    pub fn put_back(
        &mut self,
        number: u64,
        request: Box<Request<T>>,
    ) -> Result<(), Box<Request<T>>> {
        match self.served.get_mut(&number) {
            Some(place) => {
                *place = Some(request);
                Ok(())
            }
            None => Err(request),
        }
    }

    /// Forgets a request that was taken out.
    pub fn finish(&mut self, number: u64) {
        self.served.remove(&number);
    }

    /// Removes the senders that `is_chosen` accepts, except of requests that are taken out.
    pub fn remove_senders(&mut self, is_chosen: impl Fn(&Request<T>) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        let (chosen, left) = core::mem::take(&mut self.queued)
            .into_iter()
            .partition::<VecDeque<_>, _>(|request| is_chosen(request));
        self.queued = left;
        removed.extend(chosen.into_iter().filter_map(|request| request.sender));
        let is_chosen =
            |_: &u64, place: &mut Option<Box<Request<T>>>| place.as_deref().is_some_and(&is_chosen);
        let served = self.served.extract_if(.., is_chosen);
        removed.extend(served.filter_map(|(_, place)| place?.sender));
        removed
    }

    /// Removes the servers that wait and that `is_chosen` accepts.
    pub fn remove_receivers(&mut self, is_chosen: impl Fn(&Receiver<T>) -> bool) -> Vec<T> {
        let (chosen, left) = core::mem::take(&mut self.receivers)
            .into_iter()
            .partition::<VecDeque<_>, _>(is_chosen);
        self.receivers = left;
        chosen.into_iter().map(|one| one.receiver).collect()
    }

    /// Returns the earliest timeout of those that `is_own` accepts.
    #[must_use]
    pub fn next_deadline(&self, is_own: impl Fn(&T) -> bool) -> Option<u64> {
        let queued = self.queued.iter();
        let requests = queued.chain(self.served.values().flatten());
        let senders =
            requests.filter_map(|request| Some((request.sender.as_ref()?, request.deadline_ns)));
        let receivers = self.receivers.iter();
        let receivers = receivers.map(|one| (&one.receiver, one.deadline_ns));
        let own = senders.chain(receivers).filter(|(task, _)| is_own(task));
        own.filter_map(|(_, deadline_ns)| deadline_ns).min()
    }
}

#[cfg(test)]
mod tests;
