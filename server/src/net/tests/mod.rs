//! Two servers whose cards are wired to each other, asked as the kernel asks them.

mod calls;
mod datagrams;
mod streams;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use super::nic::{FRAME_MAX, Nic};
use super::{Addressing, Ipv4Address, Ipv4Cidr, Network};

/// Most frames on their way to a card.
const ROOM: usize = 256;

type Frames = Rc<RefCell<VecDeque<Vec<u8>>>>;

/// A card at one end of a cable.
#[derive(Clone, Debug)]
struct PlayedCard {
    address: u8,
    arriving: Frames,
    leaving: Frames,
    /// One of so many frames gets lost, on average; 0 for none.
    loses: Rc<RefCell<u32>>,
    /// State of a generator of random numbers.
    random: u32,
}

impl Nic for PlayedCard {
    type Error = Infallible;

    fn address(&self) -> [u8; 6] {
        [2, 0, 0, 0, 0, self.address]
    }

    fn receive(&mut self, to: &mut Vec<u8>) -> Result<bool, Infallible> {
        let frame = self.arriving.borrow_mut().pop_front();
        Ok(frame.is_some_and(|frame| {
            *to = frame;
            true
        }))
    }

    fn has_room(&self) -> bool {
        self.leaving.borrow().len() < ROOM
    }

    fn send(&mut self, frame: &[u8]) {
        assert!(frame.len() <= FRAME_MAX);
        // Not each nth frame: that could be the same one each time that it is sent.
        self.random = self
            .random
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        let loses = *self.loses.borrow();
        if loses == 0 || !(self.random >> 16).is_multiple_of(loses) {
            self.leaving.borrow_mut().push_back(frame.to_vec());
        }
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }

    fn can_interrupt(&self) -> bool {
        true
    }

    fn expect_interrupt(&mut self, is_expected: bool) -> bool {
        is_expected && self.arriving.borrow().is_empty()
    }

    fn check(&self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Both ends, at 10.0.0.1 and 10.0.0.2.
struct Pair {
    ends: [Network<PlayedCard>; 2],
    /// What each end has announced.
    announced: [Vec<[u64; 3]>; 2],
    now_ms: i64,
    loses: Rc<RefCell<u32>>,
    last_handle: u64,
}

impl Pair {
    fn new() -> Self {
        let (one, two) = (Frames::default(), Frames::default());
        let loses = Rc::new(RefCell::new(0));
        let end = |number: u8, arriving: &Frames, leaving: &Frames| {
            let card = PlayedCard {
                address: number,
                arriving: Rc::clone(arriving),
                leaving: Rc::clone(leaving),
                loses: Rc::clone(&loses),
                random: number.into(),
            };
            let own = Ipv4Cidr::new(Ipv4Address::new(10, 0, 0, number), 24);
            Network::new(card, Addressing::Static(own, None), number.into())
        };
        Self {
            ends: [end(1, &one, &two), end(2, &two, &one)],
            announced: Default::default(),
            now_ms: 0,
            loses,
            last_handle: 0,
        }
    }

    /// Has both ends work until nothing is to be done any more, and no less than that long.
    fn run(&mut self, at_least_ms: i64) {
        let end_ms = self.now_ms + at_least_ms;
        loop {
            self.now_ms += 1;
            let mut is_busy = false;
            for (end, announced) in self.ends.iter_mut().zip(&mut self.announced) {
                is_busy |= end.poll(self.now_ms).unwrap();
                let new = end.take_announcements();
                announced.extend(new.iter().map(|one| [one.0[0], one.0[1], one.0[2]]));
            }
            if !is_busy && self.now_ms >= end_ms {
                return;
            }
        }
    }

    /// Has both ends work, then rest for as long as both say that nothing is due. Returns how long.
    fn work_and_rest(&mut self) -> Duration {
        const AT_MOST: Duration = Duration::from_secs(1);
        self.run(0);
        let rests = self.ends.iter_mut().map(|end| end.rest(AT_MOST));
        let rest = rests.min().unwrap_or_default();
        self.ends.iter_mut().for_each(Network::end_rest);
        self.now_ms += rest.as_millis() as i64;
        rest
    }

    /// Takes what an end has announced of a socket: what it was ready for last, and what has happened.
    fn announced(&mut self, end: usize, handle: u64) -> Option<(u32, u32)> {
        let all = std::mem::take(&mut self.announced[end]);
        let own = all.iter().filter(|[of, ..]| *of == handle);
        own.fold(None, |before: Option<(u32, u32)>, [_, ready, edges]| {
            let edges = *edges as u32 | before.map_or(0, |(_, edges)| edges);
            Some((*ready as u32, edges))
        })
    }

    /// Returns a new handle.
    fn handle(&mut self) -> u64 {
        self.last_handle += 1;
        self.last_handle
    }
}

fn bytes(length: usize, seed: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at * 7 + at / 251 + seed) as u8)
        .collect()
}
