//! Tests of endpoints.

use std::collections::BTreeSet;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

fn request(sender: u64, rank: u32) -> Box<Request<u64>> {
    Box::new(Request {
        sender: Some(sender),
        message: 0,
        operation: 0,
        words: [0; MESSAGE_WORDS],
        head: Vec::new(),
        readable: Windows::default(),
        writable: Windows::default(),
        rank,
        deadline_ns: None,
    })
}

#[test]
fn parts_stay_within_their_window() {
    let window = Window {
        address: 100,
        length: 10,
    };
    let part = |offset, length| {
        let part = window.part(offset, length);
        (part.address, part.length)
    };
    assert_eq!(part(0, 10), (100, 10));
    assert_eq!(part(4, u64::MAX), (104, 6));
    assert_eq!(part(10, 1), (110, 0));
    assert_eq!(part(u64::MAX, 1), (110, 0));
}

#[test]
fn parts_of_several_windows_are_one_behind_the_other() {
    let windows = Windows {
        first: Window {
            address: 100,
            length: 10,
        },
        more: [(0, 0), (200, 5), (300, 20)]
            .map(|(address, length)| Window { address, length })
            .to_vec(),
    };
    let parts = |offset, length| -> Vec<(u64, u64)> {
        let parts = windows.parts(offset, length);
        parts.map(|part| (part.address, part.length)).collect()
    };
    assert_eq!(windows.length(), 35);
    assert_eq!(parts(0, u64::MAX), [(100, 10), (200, 5), (300, 20)]);
    assert_eq!(parts(8, 5), [(108, 2), (200, 3)]);
    assert_eq!(parts(12, 4), [(202, 3), (300, 1)]);
    assert_eq!(parts(34, 9), [(319, 1)]);
    assert_eq!(parts(35, 9), []);
}

#[test]
fn urgent_requests_are_received_first_and_equal_ones_in_their_order() {
    let mut endpoint = Endpoint::default();
    for (sender, rank) in [(1, 0), (2, 5), (3, 0), (4, 9), (5, 5)] {
        endpoint.queue(request(sender, rank));
    }
    let first = endpoint.take_queued().unwrap();
    endpoint.queue_again(first);
    let second = |endpoint: &mut Endpoint<u64>| {
        let first = endpoint.take_queued().unwrap();
        let second = endpoint.take_queued().unwrap();
        endpoint.queue_again(second);
        endpoint.queue_again(first);
    };
    second(&mut endpoint);
    let order: Vec<u64> = std::iter::from_fn(|| endpoint.take_queued())
        .filter_map(|request| request.sender)
        .collect();
    assert_eq!(order, [4, 2, 5, 1, 3]);
}

#[test]
fn who_is_taken_out_is_not_removed_and_comes_back_unless_the_server_went() {
    let mut endpoint = Endpoint::default();
    let server = endpoint.begin_server().unwrap();
    assert_eq!(endpoint.begin_server(), None);
    endpoint.serve(1, request(10, 0), server).unwrap();
    let taken = endpoint.take(1).unwrap();
    assert_eq!(endpoint.take(1).unwrap_err(), NotTaken::Busy);
    assert_eq!(endpoint.take(2).unwrap_err(), NotTaken::Gone);
    assert!(endpoint.remove_senders(|_| true).is_empty());
    endpoint.put_back(1, taken).unwrap();
    let taken = endpoint.take(1).unwrap();
    assert_eq!(endpoint.end_server(server), (vec![], vec![]));
    assert_eq!(endpoint.put_back(1, taken).unwrap_err().sender, Some(10));
    let next = endpoint.begin_server().unwrap();
    assert_eq!(
        endpoint
            .serve(2, request(11, 0), server)
            .unwrap_err()
            .sender,
        Some(11)
    );
    assert_eq!(endpoint.end_server(server), (vec![], vec![]));
    assert_eq!(endpoint.end_server(next), (vec![], vec![]));
    assert!(endpoint.is_idle());
}

#[test]
fn what_nobody_waits_for_ends_with_its_server() {
    let mut endpoint = Endpoint::default();
    let server = endpoint.begin_server().unwrap();
    let mut posted = request(0, 0);
    posted.sender = None;
    endpoint.queue(posted);
    endpoint.queue(request(1, 0));
    endpoint.end_server(server);
    assert!(!endpoint.has_server());
    assert_eq!(endpoint.take_queued().unwrap().sender, Some(1));
    assert!(endpoint.is_idle());
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send(u32),
    Receive,
    Wait,
    Reply(usize),
    TakeOut(usize),
    PutBack,
    Interrupt(u64),
    EndServer,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..3_u32).prop_map(Step::Send),
        3 => Just(Step::Receive),
        1 => Just(Step::Wait),
        2 => (0..4_usize).prop_map(Step::Reply),
        1 => (0..4_usize).prop_map(Step::TakeOut),
        1 => Just(Step::PutBack),
        1 => (0..16_u64).prop_map(Step::Interrupt),
        1 => Just(Step::EndServer),
    ]
}

/// An endpoint, and where each task is: it must come out exactly once.
#[derive(Default)]
struct Play {
    endpoint: Endpoint<u64>,
    server: u64,
    served: Vec<u64>,
    taken: Option<(u64, Box<Request<u64>>)>,
    inside: BTreeSet<u64>,
    next: u64,
}

impl Play {
    fn enter(&mut self) -> u64 {
        self.next += 1;
        self.inside.insert(self.next);
        self.next
    }

    fn leave(&mut self, task: u64) {
        assert!(self.inside.remove(&task), "{task} left twice");
    }

    fn leave_all(&mut self, tasks: Vec<u64>) {
        tasks.into_iter().for_each(|task| self.leave(task));
    }

    fn send(&mut self, rank: u32) {
        let sender = self.enter();
        match self.endpoint.take_receiver() {
            Some(receiver) => {
                self.serve(request(sender, rank), receiver.generation);
                self.leave(receiver.receiver);
            }
            None => self.endpoint.queue(request(sender, rank)),
        }
    }

    fn serve(&mut self, request: Box<Request<u64>>, generation: u64) {
        let number = self.endpoint.new_number();
        match self.endpoint.serve(number, request, generation) {
            Ok(()) => self.served.push(number),
            Err(request) => self.endpoint.queue_again(request),
        }
    }

    fn receive(&mut self) {
        if let Some(request) = self.endpoint.take_queued() {
            self.serve(request, self.server);
        }
    }

    fn play(&mut self, step: Step) {
        let number = |at: usize, served: &[u64]| served.get(at).copied().unwrap_or(0);
        match step {
            Step::Send(rank) => self.send(rank),
            Step::Receive => self.receive(),
            Step::Wait => {
                let receiver = self.enter();
                self.endpoint.wait(Receiver {
                    receiver,
                    generation: self.server,
                    messages: 0,
                    deadline_ns: None,
                });
            }
            Step::Reply(at) => {
                let number = number(at, &self.served);
                if let Ok(request) = self.endpoint.take(number) {
                    self.endpoint.finish(number);
                    self.leave(request.sender.unwrap());
                }
            }
            Step::TakeOut(at) if self.taken.is_none() => {
                let number = number(at, &self.served);
                self.taken = self
                    .endpoint
                    .take(number)
                    .ok()
                    .map(|request| (number, request));
            }
            Step::TakeOut(_) => {}
            Step::PutBack => {
                if let Some((number, request)) = self.taken.take()
                    && let Err(request) = self.endpoint.put_back(number, request)
                {
                    self.leave(request.sender.unwrap());
                }
            }
            Step::Interrupt(chosen) => {
                let senders = self
                    .endpoint
                    .remove_senders(|request| request.sender.unwrap() % 16 == chosen);
                self.leave_all(senders);
                let receivers = self
                    .endpoint
                    .remove_receivers(|one| one.receiver % 16 == chosen);
                self.leave_all(receivers);
            }
            Step::EndServer => {
                let (senders, receivers) = self.endpoint.end_server(self.server);
                self.leave_all(senders);
                self.leave_all(receivers);
                self.server = self.endpoint.begin_server().expect("it has none");
            }
        }
    }
}

proptest! {
    /// Whatever happens, each task leaves exactly once.
    #[test]
    fn nobody_is_lost_and_nobody_leaves_twice(steps in proptest::collection::vec(step(), 1..80)) {
        let mut play = Play::default();
        play.play(Step::EndServer);
        for step in steps {
            play.play(step);
        }
        play.play(Step::PutBack);
        let senders = play.endpoint.remove_senders(|_| true);
        play.leave_all(senders);
        let receivers = play.endpoint.remove_receivers(|_| true);
        play.leave_all(receivers);
        prop_assert!(play.inside.is_empty());
        prop_assert!(play.endpoint.is_idle());
    }
}

#[test]
fn an_interrupt_waits_once_before_all_requests_and_ends_with_its_server() {
    let interrupt = |number| {
        Box::new(Request::unanswered(
            PCI_INTERRUPTED,
            [1, number, 0, 0, 0, 0],
        ))
    };
    let mut endpoint = Endpoint::default();
    assert!(!endpoint.queue_interrupt(1, interrupt(0)), "no server");
    let generation = endpoint.begin_server().unwrap();
    endpoint.queue(request(7, 99));
    assert!(endpoint.queue_interrupt(generation, interrupt(0)));
    assert!(endpoint.queue_interrupt(generation, interrupt(1)));
    assert!(!endpoint.queue_interrupt(generation, interrupt(0)));
    endpoint.queue(request(8, 100));
    endpoint.queue_again(request(9, 100));
    let first = endpoint.take_queued().unwrap();
    assert!(first.is_interrupt() && first.words[1] == 0);
    endpoint.queue_again(first);
    assert_eq!(endpoint.may_wait(generation), Some(false));
    let taken = std::iter::from_fn(|| endpoint.take_queued());
    let order: Vec<_> = taken.map(|one| (one.sender, one.words[1])).collect();
    let expected = [
        (None, 0),
        (None, 1),
        (Some(9), 0),
        (Some(8), 0),
        (Some(7), 0),
    ];
    assert_eq!(order, expected);
    assert!(
        endpoint.queue_interrupt(generation, interrupt(0)),
        "it was received"
    );
    endpoint.end_server(generation);
    let next = endpoint.begin_server().unwrap();
    assert_eq!(endpoint.may_wait(next), Some(true));
    assert!(
        !endpoint.queue_interrupt(generation, interrupt(0)),
        "another one's"
    );
}
