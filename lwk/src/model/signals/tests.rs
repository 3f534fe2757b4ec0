//! Tests of signals.

use proptest::prelude::*;

use super::pending::QUEUE_MAX;
use super::*;

const USR1: u32 = 10;
const TERM: u32 = 15;
const RT: u32 = 34;

fn handler() -> Action {
    Action {
        handler: 0x1000,
        ..Action::default()
    }
}

fn user(signal: u32) -> Info {
    Info::sent(signal, Info::USER, 7, 0)
}

/// A process with threads 1 and 2 that handles USR1 and the first real-time signal.
fn two() -> (Signals, [Arc<ThreadHandle>; 2]) {
    let mut signals = Signals::default();
    let handles =
        [1, 2].map(|id| signals.add_thread(id, 0, id as u32, (Priority::default(), CoreSet::ALL)));
    signals.set_action(USR1, handler());
    signals.set_action(RT, handler());
    (signals, handles)
}

#[test]
fn a_signal_goes_to_a_thread_that_accepts_it() {
    let (mut signals, handles) = two();
    signals.block(1, bit(USR1));
    assert_eq!(signals.next(1), None);
    let target = signals
        .send(None, user(USR1))
        .unwrap()
        .expect("thread 2 accepts it");
    assert!(
        Arc::ptr_eq(&target, &handles[1])
            && handles[1].is_signal_pending()
            && !handles[0].is_signal_pending()
    );
    assert_eq!(signals.next(1), None);
    assert_eq!(
        signals.next(2),
        Some(Disposition::Handle(user(USR1), handler()))
    );
    assert_eq!(signals.next(2), None);
    assert!(!handles[1].is_signal_pending());
}

#[test]
fn blocked_signals_stay_pending() {
    let (mut signals, handles) = two();
    let [one, _] = &handles;
    signals.block(1, u64::MAX);
    signals.block(2, u64::MAX);
    assert_eq!((signals.next(1), signals.next(2)), (None, None));
    assert!(signals.send(None, user(USR1)).unwrap().is_none());
    assert!(signals.send(Some(1), user(TERM)).unwrap().is_none());
    assert_eq!(signals.pending(1), bit(USR1) | bit(TERM));
    assert_eq!(signals.pending(2), bit(USR1));
    assert_eq!(signals.block(1, bit(USR1)), !UNBLOCKABLE);
    assert!(one.is_signal_pending());
    assert_eq!(signals.next(1), Some(termination(TERM)));
    // A thread that exits leaves signals pending for the process to the others.
    signals.block(2, 0);
    signals.remove_thread(1);
    assert!(handles[1].is_signal_pending());
    assert_eq!(
        signals.next(2),
        Some(Disposition::Handle(user(USR1), handler()))
    );
}

#[test]
fn only_real_time_signals_are_queued() {
    let (mut signals, _) = two();
    for _ in 0..3 {
        signals.send(Some(1), user(USR1)).unwrap();
        signals.send(Some(1), user(RT)).unwrap();
    }
    let dispositions: Vec<Disposition> = core::iter::from_fn(|| signals.next(1)).collect();
    let handle = |signal| Disposition::Handle(user(signal), handler());
    assert_eq!(dispositions, [USR1, RT, RT, RT].map(handle));
    for _ in 0..QUEUE_MAX {
        signals.send(Some(1), user(RT)).unwrap();
    }
    assert!(signals.send(Some(1), user(RT)).is_err());
    // Otherwise a program could fault for ever.
    signals.force(1, user(number::SEGV));
    assert!(matches!(
        signals.next(1),
        Some(Disposition::Terminate {
            signal: number::SEGV,
            ..
        })
    ));
}

#[test]
fn ignored_signals_are_discarded() {
    let (mut signals, handles) = two();
    assert!(signals.send(None, user(number::WINCH)).unwrap().is_none());
    signals.send(None, user(USR1)).unwrap();
    signals.set_action(
        USR1,
        Action {
            handler: Action::IGNORE,
            ..handler()
        },
    );
    assert_eq!(signals.next(1), None);
    // A thread that waits for the signal gets it.
    signals.await_signals(2, bit(USR1));
    assert!(signals.send(None, user(USR1)).unwrap().is_some());
    assert_eq!(signals.take(2, bit(USR1)), Some(user(USR1)));
    assert!(handles.iter().any(|handle| handle.is_signal_pending()));
}

#[test]
fn default_actions_are_as_on_linux() {
    let (mut signals, _) = two();
    let mut default = |signal| {
        signals.send(Some(1), user(signal)).unwrap();
        signals.next(1)
    };
    let stop = Some(Disposition::Stop {
        signal: number::TSTP,
    });
    assert_eq!(default(number::TSTP), stop);
    assert_eq!(
        default(number::SEGV),
        Some(Disposition::Terminate {
            signal: 11,
            dumps_core: true
        })
    );
    assert_eq!(
        default(TERM),
        Some(Disposition::Terminate {
            signal: 15,
            dumps_core: false
        })
    );
    assert_eq!(default(number::CHLD), None);
}

#[test]
fn a_fault_cannot_be_blocked() {
    let (mut signals, _) = two();
    signals.set_action(number::SEGV, handler());
    let fault = Info::fault(number::SEGV, 1, 0x1234);
    signals.force(1, fault);
    assert_eq!(signals.next(1), Some(Disposition::Handle(fault, handler())));
    signals.block(1, bit(number::SEGV));
    signals.force(1, fault);
    assert_eq!(signals.next(1), Some(termination(number::SEGV)));
}

#[test]
fn a_handler_can_be_reset_after_one_use() {
    let (mut signals, _) = two();
    let once = Action {
        flags: Action::RESET,
        ..handler()
    };
    signals.set_action(TERM, once);
    signals.send(Some(1), user(TERM)).unwrap();
    signals.send(Some(2), user(TERM)).unwrap();
    assert_eq!(signals.next(1), Some(Disposition::Handle(user(TERM), once)));
    assert_eq!(signals.next(2), Some(termination(TERM)));
}

proptest! {
    #[test]
    fn encoding_and_decoding_agree(words in any::<[u64; 4]>(), fields in any::<[u64; 4]>(), errno: i32, code: i32) {
        let action = Action {
            handler: words[0],
            flags: words[1],
            restorer: words[2],
            mask: words[3] & !UNBLOCKABLE,
        };
        prop_assert_eq!(Action::from_bytes(&action.to_bytes()), action);
        let info = Info { signal: 5, errno, code, fields };
        prop_assert_eq!(Info::from_bytes(5, &info.to_bytes()), info);
    }
}

fn sent(signal: u32, code: i32, sender: u64) -> insula_abi::lwk::Signal {
    insula_abi::lwk::Signal {
        signal: signal as i32,
        code,
        thread: 2,
        fields: [sender, 0, 0, 0],
        ..Default::default()
    }
}

#[test]
fn directed_signals_go_to_their_thread() {
    const OWN: u64 = 1;
    const OTHER: u64 = 9;
    let timer = |id, to_thread| Timer { id, to_thread };
    for (signal, code, sender, is_to_thread) in [
        (RT, Info::TKILL, OTHER, true),
        (RT, Info::USER, OTHER, false),
        (RT, Info::TIMER, 3, true),
        (RT, Info::TIMER, 4, false),
        (number::PIPE, Info::USER, OWN, true),
        (number::PIPE, Info::USER, OTHER, false),
        (number::CHLD, 1, OWN, false),
    ] {
        let (mut signals, _) = two();
        signals.set_action(number::CHLD, handler());
        signals.add_timer(timer(3, true));
        signals.add_timer(timer(4, false));
        signals.block(1, u64::MAX);
        signals.block(2, u64::MAX);
        assert!(
            signals
                .send_from_base(&sent(signal, code, sender), OWN)
                .is_none()
        );
        let found = [1, 2].map(|id| signals.pending(id) != 0);
        assert_eq!(found, [!is_to_thread, true], "{signal} {code} {sender}");
    }
    let (mut signals, _) = two();
    for none in [0, -1, 65] {
        let sent = insula_abi::lwk::Signal {
            signal: none,
            ..sent(USR1, 0, OTHER)
        };
        assert!(signals.send_from_base(&sent, OWN).is_none());
    }
    assert_eq!(signals.next(1), None);
}

#[test]
fn overruns_of_a_timer_are_merged() {
    let (mut signals, _) = two();
    signals.block(1, u64::MAX);
    signals.block(2, u64::MAX);
    signals.add_timer(Timer {
        id: 3,
        to_thread: false,
    });
    for merge_timer_overrun in [0, 2, 0] {
        signals.send_from_base(&sent(RT, Info::TIMER, 3 | merge_timer_overrun << 32), 1);
    }
    let found = signals.take(1, bit(RT)).map(|info| info.fields[0] >> 32);
    assert_eq!((found, signals.take(1, bit(RT))), (Some(4), None));
}

#[test]
fn signals_of_deleted_timers_are_dropped() {
    let (mut signals, _) = two();
    let [first, second] = [3, 4].map(|id| Timer {
        id,
        to_thread: id == 3,
    });
    for timer in [first, second] {
        signals.add_timer(timer);
    }
    signals.remove_timer(first.id);
    // The default would end the program.
    signals.send_from_base(&sent(RT, Info::TIMER, 3), 1);
    assert_eq!((signals.next(1), signals.next(2)), (None, None));
    signals.take_timers();
    signals.send_from_base(&sent(RT, Info::TIMER, 4), 1);
    assert_eq!((signals.next(1), signals.next(2)), (None, None));
    signals.add_timer(first);
    signals.send_from_base(&sent(RT, Info::TIMER, 3), 1);
    assert!(signals.next(2).is_some());
}

#[test]
fn sigcont_discards_pending_stop_signals() {
    let (mut signals, _) = two();
    signals.set_action(number::CONT, handler());
    let stop = Some(Disposition::Stop {
        signal: number::TSTP,
    });
    signals.send(None, user(number::TSTP)).unwrap();
    assert_eq!(signals.next(1), stop);
    signals.send(Some(2), user(number::TSTP)).unwrap();
    signals.send(None, user(number::CONT)).unwrap();
    let continued = Some(Disposition::Handle(user(number::CONT), handler()));
    assert_eq!((signals.next(2), signals.next(1)), (continued, None));
    signals.send(None, user(number::CONT)).unwrap();
    signals.send(None, user(number::TSTP)).unwrap();
    assert_eq!((signals.next(1), signals.next(2)), (stop, None));
}

#[test]
fn only_what_all_threads_block_is_taken_as_blocked() {
    let (mut signals, _) = two();
    let wanted = bit(USR1) | bit(RT);
    signals.block(1, wanted);
    signals.send(None, user(USR1)).unwrap();
    // The other thread will handle it.
    assert!(!signals.has_blocked(1, wanted));
    assert_eq!(signals.take_blocked(1, wanted), None);
    signals.send(Some(1), user(RT)).unwrap();
    assert_eq!(signals.take_blocked(1, wanted), Some((user(RT), true)));
    signals.block(2, wanted);
    assert!(signals.has_blocked(1, wanted) && !signals.has_blocked(1, bit(RT)));
    signals.await_signals(2, bit(USR1));
    assert_eq!(signals.take_blocked(1, wanted), None);
    signals.await_signals(2, 0);
    assert_eq!(signals.take_blocked(1, wanted), Some((user(USR1), false)));
    assert!(!signals.has_blocked(1, wanted));
}
