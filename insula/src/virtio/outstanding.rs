//! Which buffers of a virtqueue its back end has not used yet, learned by looking at it.
//!
//! A back end uses buffers in any order, and keeps to itself which ones it has taken. If it is
//! killed, its successor has to be told of those that it has not used: each of them once, for a
//! buffer that comes back a second time is a fault to the driver. The rings do not tell: each holds
//! the last buffers only, as many as it has entries, and the one that is not used may be older than
//! these. So somebody follows them while the back end works, and looks again before either ring
//! has gone round. Who was too late knows how many buffers have been lost sight of, and sees each of
//! them come back: a head that is used though it was not made available since. Once all are back,
//! nothing is unknown any more.
//!
//! The driver may write anything to the rings at any time, and the back end as well. What comes of it
//! is between them: here it makes no more than a wrong list of heads, each below the queue's size.
//!
//! Source: specification, 2.7 "Split Virtqueues".

use std::sync::atomic::{Ordering, fence};

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::device::Virtqueue;
use super::memory::NodeMemory;

/// Bytes before the entries of a ring: flags and index.
const RING_HEADER: u64 = 4;
/// Where the index is.
const RING_INDEX: u64 = 2;
/// Bytes of an available ring's entry, a head, and of a used ring's, a head in 32 bits and a length.
const AVAILABLE_ENTRY: u64 = 2;
const USED_ENTRY: u64 = 8;

/// A ring's place, and the number of entries that it has.
#[derive(Clone, Copy, Debug)]
struct Ring {
    start: u64,
    size: u16,
    entry: u64,
}

impl Ring {
    fn index(self, memory: &GuestMemoryMmap<()>) -> u16 {
        let at = GuestAddress(self.start + RING_INDEX);
        // It lies in the node's memory.
        memory.load(at, Ordering::Acquire).map_or(0, u16::from_le)
    }

    fn place(self, number: u16) -> GuestAddress {
        let slot = u64::from(number % self.size);
        GuestAddress(self.start + RING_HEADER + slot * self.entry)
    }

    /// The head in the entry with that number, within the queue.
    fn head(self, memory: &GuestMemoryMmap<()>, number: u16) -> u16 {
        let head: u16 = memory
            .load(self.place(number), Ordering::Relaxed)
            .map_or(0, u16::from_le);
        head % self.size
    }

    /// The heads from one number on until before another; none when the ring has gone round
    /// meanwhile.
    fn heads(self, memory: &GuestMemoryMmap<()>, first: u16, end: u16) -> Option<Vec<u16>> {
        let count = end.wrapping_sub(first).min(self.size);
        let numbers = (0..count).map(|number| first.wrapping_add(number));
        let heads = numbers.map(|number| self.head(memory, number)).collect();
        // The entries were read before the index is read again.
        fence(Ordering::Acquire);
        let now = self.index(memory).wrapping_sub(first);
        // Before the last of these is told, an entry behind it may be on its way to where the first is.
        (now < self.size).then_some(heads)
    }
}

/// A virtqueue that is followed.
#[derive(Debug)]
pub(super) struct Outstanding {
    available: Ring,
    used: Ring,
    /// How far each ring has been followed.
    seen_available: u16,
    seen_used: u16,
    /// Heads that were made available and have not been used: the oldest first, if it was seen which
    /// was.
    known: Vec<u16>,
    /// How many there are besides of which it is not known which.
    unknown: u16,
}

/// It is not known what another program would have to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unknown {
    /// So many buffers are outstanding, and not all of them have been followed.
    #[error("which of {0} requests it had not answered is not known")]
    Buffers(u16),
    /// The program has kept more to itself than that.
    #[error("what it knew cannot be known by another")]
    State,
}

impl Outstanding {
    /// Follows a virtqueue that lies in the node's memory, from its beginning on or from where it
    /// is now.
    pub(super) fn follow(memory: &NodeMemory, queue: &Virtqueue) -> Self {
        let ring = |start, entry| Ring {
            start,
            size: queue.size,
            entry,
        };
        let mut new = Self {
            available: ring(queue.driver, AVAILABLE_ENTRY),
            used: ring(queue.device, USED_ENTRY),
            seen_available: 0,
            seen_used: 0,
            known: Vec::new(),
            unknown: 0,
        };
        if new.used.index(&memory.guest()) != 0 {
            new.lose_sight(&memory.guest());
        }
        new
    }

    /// Looks what has happened since the last look; whether anything has.
    pub(super) fn look(&mut self, memory: &NodeMemory) -> bool {
        let memory = memory.guest();
        // What is used by now was made available before.
        let used = self.used.index(&memory);
        let available = self.available.index(&memory);
        if (available, used) == (self.seen_available, self.seen_used) {
            return false;
        }
        let made = self
            .available
            .heads(&memory, self.seen_available, available);
        let came = self.used.heads(&memory, self.seen_used, used);
        match made.zip(came) {
            Some((made, came)) => {
                (self.seen_available, self.seen_used) = (available, used);
                self.account(made, &came);
                // Of a driver or a back end that makes no sense nothing is known.
                if self.known.len() + usize::from(self.unknown) != usize::from(self.count()) {
                    self.lose_sight(&memory);
                }
            }
            None => self.lose_sight(&memory),
        }
        true
    }

    /// How many are outstanding.
    fn count(&self) -> u16 {
        self.seen_available.wrapping_sub(self.seen_used)
    }

    fn account(&mut self, made: Vec<u16>, came: &[u16]) {
        self.known.extend(made);
        for head in came {
            match self.known.iter().position(|known| known == head) {
                Some(place) => drop(self.known.remove(place)),
                None => self.unknown = self.unknown.saturating_sub(1),
            }
        }
    }

    /// Begins anew, with all that is outstanding unknown; unless that is all there can be.
    fn lose_sight(&mut self, memory: &GuestMemoryMmap<()>) {
        self.seen_used = self.used.index(memory);
        self.seen_available = self.available.index(memory);
        self.known.clear();
        self.unknown = self.count();
        let size = self.available.size;
        if self.unknown == size && self.used.index(memory) == self.seen_used {
            self.known.extend(0..size);
            self.unknown = 0;
        }
    }

    /// What is known, as a note for whoever follows the queue next: numbers of 16 bits.
    pub(super) fn note(&self) -> Vec<u8> {
        let head = [self.seen_available, self.seen_used, self.unknown];
        let count = self.known.len() as u16;
        let words = head
            .iter()
            .chain(std::iter::once(&count))
            .chain(&self.known);
        words.flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Goes on where such a note ends. What makes no sense is left alone, or found out by the next
    /// look.
    pub(super) fn recall(&mut self, note: &[u8]) {
        let (pairs, _) = note.as_chunks::<2>();
        let mut words = pairs.iter().map(|pair| u16::from_ne_bytes(*pair));
        let [Some(available), Some(used), Some(unknown), Some(count)] =
            std::array::from_fn(|_| words.next())
        else {
            return;
        };
        let known: Vec<_> = words.take(count.into()).collect();
        let size = self.available.size;
        if known.len() == usize::from(count) && known.iter().all(|head| *head < size) {
            (self.seen_available, self.seen_used) = (available, used);
            (self.known, self.unknown) = (known, unknown);
        }
    }

    /// Has the queue's next back end find all that is outstanding, and nothing else: the entries of
    /// the available ring that it will read first are made to tell so. Only when nobody uses the
    /// queue. Answers the number of the first; the driver may go on adding entries behind.
    ///
    /// # Errors
    /// [`Unknown::Buffers`]; the ring is as it was.
    pub(super) fn make_available_again(&mut self, memory: &NodeMemory) -> Result<u16, Unknown> {
        self.look(memory);
        let outstanding = self.count();
        if usize::from(outstanding) != self.known.len() || outstanding > self.available.size {
            return Err(Unknown::Buffers(outstanding));
        }
        let memory = memory.guest();
        for (number, head) in (0..outstanding).zip(&self.known) {
            let place = self.available.place(self.seen_used.wrapping_add(number));
            memory
                .store(head.to_le(), place, Ordering::Relaxed)
                .map_err(|_| Unknown::Buffers(outstanding))?;
        }
        Ok(self.seen_used)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use insula_abi::Chunk;
    use proptest::prelude::*;

    use super::*;

    const SIZE: u16 = 8;
    const START: u64 = 0x4000;

    /// A virtqueue in memory, with a driver and a back end that keep their own books.
    struct Model {
        memory: NodeMemory,
        queue: Virtqueue,
        available: u16,
        used: u16,
        free: VecDeque<u16>,
        outstanding: Vec<u16>,
    }

    impl Model {
        fn new() -> Self {
            let file = tempfile::tempfile().unwrap();
            file.set_len(0x3000).unwrap();
            let chunk = Chunk {
                start: START,
                size: 0x3000,
            };
            Self {
                memory: NodeMemory::map(file.into(), &[chunk], usize::MAX).unwrap(),
                queue: Virtqueue {
                    index: 0,
                    size: SIZE,
                    descriptors: START,
                    driver: START + 0x1000,
                    device: START + 0x2000,
                    event: 0,
                },
                available: 0,
                used: 0,
                free: (0..SIZE).collect(),
                outstanding: Vec::new(),
            }
        }

        fn write(&self, place: u64, value: u16) {
            let place = GuestAddress(place);
            self.memory.guest().write_obj(value, place).unwrap();
        }

        /// The driver reuses the head that came back last, as Linux does.
        fn make(&mut self) {
            if let Some(head) = self.free.pop_front() {
                let slot = u64::from(self.available % SIZE);
                self.write(self.queue.driver + 4 + 2 * slot, head);
                self.available = self.available.wrapping_add(1);
                self.write(self.queue.driver + 2, self.available);
                self.outstanding.push(head);
            }
        }

        fn use_one(&mut self, which: usize) {
            if !self.outstanding.is_empty() {
                let head = self.outstanding.remove(which % self.outstanding.len());
                let slot = u64::from(self.used % SIZE);
                self.write(self.queue.device + 4 + 8 * slot, head);
                self.used = self.used.wrapping_add(1);
                self.write(self.queue.device + 2, self.used);
                self.free.push_front(head);
            }
        }

        /// What the next back end would find.
        fn found(&self, first: u16) -> Vec<u16> {
            let count = self.available.wrapping_sub(first);
            let entry = |number: u16| {
                let slot = u64::from(first.wrapping_add(number) % SIZE);
                let place = GuestAddress(self.queue.driver + 4 + 2 * slot);
                self.memory.guest().read_obj(place).unwrap()
            };
            (0..count).map(entry).collect()
        }

        /// The next back end finds all that is outstanding and nothing else.
        fn assert_found(&self) {
            let (mut found, mut wanted) = (self.found(self.used), self.outstanding.clone());
            found.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(found, wanted);
        }
    }

    #[derive(Clone, Debug)]
    enum Deed {
        Make,
        Use(usize),
        Look,
    }

    fn deeds() -> impl Strategy<Value = Vec<Deed>> {
        let deed = prop_oneof![
            4 => Just(Deed::Make),
            4 => (0_usize..8).prop_map(Deed::Use),
            2 => Just(Deed::Look),
        ];
        prop::collection::vec(deed, 0..200)
    }

    proptest! {
        /// Either exactly what is outstanding is found again, or that it is not known.
        #[test]
        fn nothing_is_lost_and_nothing_comes_twice(
            begin in 0_usize..20,
            deeds in deeds(),
        ) {
            let mut model = Model::new();
            (0..begin).for_each(|number| {
                model.make();
                model.use_one(number);
            });
            let mut followed = Outstanding::follow(&model.memory, &model.queue);
            for deed in deeds {
                match deed {
                    Deed::Make => model.make(),
                    Deed::Use(which) => model.use_one(which),
                    Deed::Look => drop(followed.look(&model.memory)),
                }
            }
            if let Ok(first) = followed.make_available_again(&model.memory) {
                prop_assert_eq!(first, model.used);
                model.assert_found();
            }
        }

        /// Who looks often enough always knows, as does who has once seen all come back.
        #[test]
        fn who_looks_often_knows(deeds in deeds(), settle in any::<bool>()) {
            let mut model = Model::new();
            let mut followed = Outstanding::follow(&model.memory, &model.queue);
            if settle {
                // Out of sight, then all that was outstanding comes back.
                (0..60).for_each(|number| {
                    model.make();
                    model.make();
                    model.use_one(number);
                });
                followed.look(&model.memory);
                prop_assert_ne!(followed.unknown, 0);
                while !model.outstanding.is_empty() {
                    model.use_one(0);
                    followed.look(&model.memory);
                }
            }
            for deed in deeds {
                match deed {
                    Deed::Use(which) => model.use_one(which),
                    _ => model.make(),
                }
                followed.look(&model.memory);
            }
            let first = followed.make_available_again(&model.memory);
            prop_assert_eq!(first, Ok(model.used));
            model.assert_found();
        }
    }

    proptest! {
        /// Whoever follows next knows as much, whatever the driver has done meanwhile.
        #[test]
        fn a_note_is_as_good_as_having_looked(before in deeds(), after in 0..SIZE) {
            let mut model = Model::new();
            let mut first = Outstanding::follow(&model.memory, &model.queue);
            for deed in before {
                match deed {
                    Deed::Use(which) => model.use_one(which),
                    _ => model.make(),
                }
                first.look(&model.memory);
            }
            let note = first.note();
            // The back end is killed, and the driver goes on for a while.
            (0..after).for_each(|_| model.make());
            let mut next = Outstanding::follow(&model.memory, &model.queue);
            next.recall(&[note, vec![0; 40]].concat());
            prop_assert_eq!(next.make_available_again(&model.memory), Ok(model.used));
            model.assert_found();
        }

        #[test]
        fn any_note_is_survived(note in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut model = Model::new();
            model.make();
            let mut next = Outstanding::follow(&model.memory, &model.queue);
            next.recall(&note);
            if let Ok(first) = next.make_available_again(&model.memory) {
                prop_assert_eq!(model.found(first).len(), 1);
            }
        }
    }

    #[test]
    fn numbers_begin_anew() {
        let mut model = Model::new();
        let mut followed = Outstanding::follow(&model.memory, &model.queue);
        model.make();
        for number in 0..0x2_0000 {
            model.make();
            model.use_one(number);
            followed.look(&model.memory);
        }
        assert_eq!(followed.make_available_again(&model.memory), Ok(model.used));
        model.assert_found();
    }

    /// Rings that make no sense are survived, and heads stay below the queue's size.
    #[test]
    fn nonsense_is_survived() {
        let mut random = proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        );
        let model = Model::new();
        let mut followed = Outstanding::follow(&model.memory, &model.queue);
        for _ in 0..2000 {
            let place = START + 0x1000 + u64::from((random.next_u32() % 0x1040) & !1);
            model.write(place, random.next_u32() as u16);
            followed.look(&model.memory);
            assert!(followed.known.iter().all(|head| *head < SIZE));
            let _ = followed.make_available_again(&model.memory);
        }
    }
}
