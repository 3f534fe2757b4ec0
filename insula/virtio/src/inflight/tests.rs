//! Tracking of a virtqueue, against a model of its driver and its backend.

use std::collections::VecDeque;

use insula_abi::Chunk;
use proptest::prelude::*;

use super::*;

const SIZE: u16 = 8;
const START: u64 = 0x4000;

/// A virtqueue in memory, with a model of its driver and its backend.
struct Model {
    memory: NodeMemory,
    queue: Virtqueue,
    available: u16,
    used: u16,
    free: VecDeque<u16>,
    inflight: Vec<u16>,
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
            inflight: Vec::new(),
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
            self.inflight.push(head);
        }
    }

    fn use_one(&mut self, which: usize) {
        if !self.inflight.is_empty() {
            let head = self.inflight.remove(which % self.inflight.len());
            let slot = u64::from(self.used % SIZE);
            self.write(self.queue.device + 4 + 8 * slot, head);
            self.used = self.used.wrapping_add(1);
            self.write(self.queue.device + 2, self.used);
            self.free.push_front(head);
        }
    }

    /// The heads that the next backend would find.
    fn found(&self, first: u16) -> Vec<u16> {
        let count = self.available.wrapping_sub(first);
        let entry = |number: u16| {
            let slot = u64::from(first.wrapping_add(number) % SIZE);
            let place = GuestAddress(self.queue.driver + 4 + 2 * slot);
            self.memory.guest().read_obj(place).unwrap()
        };
        (0..count).map(entry).collect()
    }

    /// Asserts that the next backend finds exactly the buffers in flight.
    fn assert_found(&self) {
        let (mut found, mut wanted) = (self.found(self.used), self.inflight.clone());
        found.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(found, wanted);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Make,
    Use(usize),
    Update,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Make),
        4 => (0_usize..8).prop_map(Step::Use),
        2 => Just(Step::Update),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    /// Either exactly the buffers in flight are requeued, or the error is reported.
    #[test]
    fn nothing_is_lost_and_nothing_comes_twice(
        begin in 0_usize..20,
        steps in steps(),
    ) {
        let mut model = Model::new();
        (0..begin).for_each(|number| {
            model.make();
            model.use_one(number);
        });
        let mut tracker = Inflight::track(&model.memory, &model.queue);
        for step in steps {
            match step {
                Step::Make => model.make(),
                Step::Use(which) => model.use_one(which),
                Step::Update => drop(tracker.update(&model.memory)),
            }
        }
        if let Ok(first) = tracker.requeue(&model.memory) {
            prop_assert_eq!(first, model.used);
            model.assert_found();
        }
    }

    /// With frequent polls everything is known, also after all unknown buffers came back.
    #[test]
    fn frequent_polls_know_all(steps in steps(), drained in any::<bool>()) {
        let mut model = Model::new();
        let mut tracker = Inflight::track(&model.memory, &model.queue);
        if drained {
            // Wraps without a poll; then all buffers in flight come back.
            (0..60).for_each(|number| {
                model.make();
                model.make();
                model.use_one(number);
            });
            tracker.update(&model.memory);
            prop_assert_ne!(tracker.unknown, 0);
            while !model.inflight.is_empty() {
                model.use_one(0);
                tracker.update(&model.memory);
            }
        }
        for step in steps {
            match step {
                Step::Use(which) => model.use_one(which),
                _ => model.make(),
            }
            tracker.update(&model.memory);
        }
        let first = tracker.requeue(&model.memory);
        prop_assert_eq!(first, Ok(model.used));
        model.assert_found();
    }
}

proptest! {
    /// A restored tracker knows as much, whatever the driver has done meanwhile.
    #[test]
    fn a_restored_record_equals_having_polled(before in steps(), after in 0..SIZE) {
        let mut model = Model::new();
        let mut first = Inflight::track(&model.memory, &model.queue);
        for step in before {
            match step {
                Step::Use(which) => model.use_one(which),
                _ => model.make(),
            }
            first.update(&model.memory);
            prop_assert_eq!(first.is_drained(), model.inflight.is_empty());
        }
        let record = first.record();
        // The backend is killed, and the driver goes on for a while.
        (0..after).for_each(|_| model.make());
        let mut next = Inflight::track(&model.memory, &model.queue);
        next.restore(&[record, vec![0; 40]].concat());
        prop_assert_eq!(next.requeue(&model.memory), Ok(model.used));
        model.assert_found();
    }

    /// A copy's driver makes requests before there is a backend.
    #[test]
    fn what_an_unserved_copy_requests_is_known(before in steps(), after in 0..=SIZE) {
        let mut model = Model::new();
        for step in before {
            match step {
                Step::Use(which) => model.use_one(which),
                _ => model.make(),
            }
        }
        while !model.inflight.is_empty() {
            model.use_one(0);
        }
        (0..after).for_each(|_| model.make());
        let mut tracker = Inflight::track_unserved(&model.memory, &model.queue);
        prop_assert_eq!(tracker.requeue(&model.memory), Ok(model.used));
        model.assert_found();
    }

    #[test]
    fn any_record_is_survived(record in prop::collection::vec(any::<u8>(), 0..64)) {
        let mut model = Model::new();
        model.make();
        let mut next = Inflight::track(&model.memory, &model.queue);
        next.restore(&record);
        if let Ok(first) = next.requeue(&model.memory) {
            prop_assert_eq!(model.found(first).len(), 1);
        }
    }
}

#[test]
fn indices_wrap() {
    let mut model = Model::new();
    let mut tracker = Inflight::track(&model.memory, &model.queue);
    model.make();
    for number in 0..0x2_0000 {
        model.make();
        model.use_one(number);
        tracker.update(&model.memory);
    }
    assert_eq!(tracker.requeue(&model.memory), Ok(model.used));
    model.assert_found();
}

/// Invalid rings are survived, and heads stay below the queue's size.
#[test]
fn invalid_rings_are_survived() {
    let mut random = proptest::test_runner::TestRng::deterministic_rng(
        proptest::test_runner::RngAlgorithm::ChaCha,
    );
    let model = Model::new();
    let mut tracker = Inflight::track(&model.memory, &model.queue);
    for _ in 0..2000 {
        let place = START + 0x1000 + u64::from((random.next_u32() % 0x1040) & !1);
        model.write(place, random.next_u32() as u16);
        tracker.update(&model.memory);
        assert!(tracker.known.iter().all(|head| *head < SIZE));
        let _ = tracker.requeue(&model.memory);
    }
}
