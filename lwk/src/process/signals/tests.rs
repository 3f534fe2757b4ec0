//! Tests of signals.

use proptest::prelude::*;

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

/// A program of two threads, 1 and 2, that catches USR1 and the first of those that are queued.
fn two() -> (Signals, [Arc<Notice>; 2]) {
    let mut signals = Signals::default();
    let notices =
        [1, 2].map(|id| signals.join(id, 0, id as u32, (Priority::default(), CoreSet::ALL)));
    signals.set_action(USR1, handler());
    signals.set_action(RT, handler());
    (signals, notices)
}

#[test]
fn a_signal_goes_to_who_wants_it() {
    let (mut signals, notices) = two();
    signals.block(1, bit(USR1));
    assert_eq!(signals.next(1), None);
    let told = signals
        .post(None, user(USR1))
        .unwrap()
        .expect("thread 2 wants it");
    assert!(Arc::ptr_eq(&told, &notices[1]) && notices[1].is_told() && !notices[0].is_told());
    assert_eq!(signals.next(1), None);
    assert_eq!(signals.next(2), Some(Deed::Handle(user(USR1), handler())));
    assert_eq!(signals.next(2), None);
    assert!(!notices[1].is_told());
}

#[test]
fn what_is_blocked_comes_later() {
    let (mut signals, notices) = two();
    let [one, _] = &notices;
    signals.block(1, u64::MAX);
    signals.block(2, u64::MAX);
    assert_eq!((signals.next(1), signals.next(2)), (None, None));
    assert!(signals.post(None, user(USR1)).unwrap().is_none());
    assert!(signals.post(Some(1), user(TERM)).unwrap().is_none());
    assert_eq!(signals.pending(1), bit(USR1) | bit(TERM));
    assert_eq!(signals.pending(2), bit(USR1));
    assert_eq!(signals.block(1, bit(USR1)), !UNBLOCKABLE);
    assert!(one.is_told());
    assert_eq!(signals.next(1), Some(ending(TERM)));
    // Whoever leaves leaves to the others what was for all.
    signals.block(2, 0);
    signals.leave(1);
    assert!(notices[1].is_told());
    assert_eq!(signals.next(2), Some(Deed::Handle(user(USR1), handler())));
}

#[test]
fn some_are_queued_and_some_are_not() {
    let (mut signals, _) = two();
    for _ in 0..3 {
        signals.post(Some(1), user(USR1)).unwrap();
        signals.post(Some(1), user(RT)).unwrap();
    }
    let deeds: Vec<Deed> = core::iter::from_fn(|| signals.next(1)).collect();
    let handle = |signal| Deed::Handle(user(signal), handler());
    assert_eq!(deeds, [USR1, RT, RT, RT].map(handle));
    for _ in 0..QUEUE_MAX {
        signals.post(Some(1), user(RT)).unwrap();
    }
    assert!(signals.post(Some(1), user(RT)).is_err());
    // Else a program could fault for ever.
    signals.force(1, user(number::SEGV));
    assert!(matches!(
        signals.next(1),
        Some(Deed::End {
            signal: number::SEGV,
            ..
        })
    ));
}

#[test]
fn what_is_ignored_does_not_come() {
    let (mut signals, notices) = two();
    assert!(signals.post(None, user(number::WINCH)).unwrap().is_none());
    signals.post(None, user(USR1)).unwrap();
    signals.set_action(
        USR1,
        Action {
            handler: Action::IGNORE,
            ..handler()
        },
    );
    assert_eq!(signals.next(1), None);
    // Who waits for it gets it.
    signals.await_signals(2, bit(USR1));
    assert!(signals.post(None, user(USR1)).unwrap().is_some());
    assert_eq!(signals.take(2, bit(USR1)), Some(user(USR1)));
    assert!(notices.iter().any(|notice| notice.is_told()));
}

#[test]
fn defaults_are_as_linux_has_them() {
    let (mut signals, _) = two();
    let mut default = |signal| {
        signals.post(Some(1), user(signal)).unwrap();
        signals.next(1)
    };
    let stop = Some(Deed::Stop {
        signal: number::TSTP,
    });
    assert_eq!(default(number::TSTP), stop);
    assert_eq!(
        default(number::SEGV),
        Some(Deed::End {
            signal: 11,
            dumps: true
        })
    );
    assert_eq!(
        default(TERM),
        Some(Deed::End {
            signal: 15,
            dumps: false
        })
    );
    assert_eq!(default(number::CHLD), None);
}

#[test]
fn a_fault_cannot_be_put_off() {
    let (mut signals, _) = two();
    signals.set_action(number::SEGV, handler());
    let fault = Info::fault(number::SEGV, 1, 0x1234);
    signals.force(1, fault);
    assert_eq!(signals.next(1), Some(Deed::Handle(fault, handler())));
    signals.block(1, bit(number::SEGV));
    signals.force(1, fault);
    assert_eq!(signals.next(1), Some(ending(number::SEGV)));
}

#[test]
fn a_handler_can_be_for_once() {
    let (mut signals, _) = two();
    let once = Action {
        flags: Action::RESET,
        ..handler()
    };
    signals.set_action(TERM, once);
    signals.post(Some(1), user(TERM)).unwrap();
    signals.post(Some(2), user(TERM)).unwrap();
    assert_eq!(signals.next(1), Some(Deed::Handle(user(TERM), once)));
    assert_eq!(signals.next(2), Some(ending(TERM)));
}

proptest! {
    #[test]
    fn bytes_are_read_as_written(words in any::<[u64; 4]>(), fields in any::<[u64; 4]>(), errno: i32, code: i32) {
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
fn what_is_meant_for_one_thread_comes_to_it() {
    const OWN: u64 = 1;
    const OTHER: u64 = 9;
    let timer = |id, for_thread| Timer { id, for_thread };
    for (signal, code, sender, is_for_thread) in [
        (RT, Info::TKILL, OTHER, true),
        (RT, Info::USER, OTHER, false),
        (RT, Info::TIMER, 3, true),
        (RT, Info::TIMER, 4, false),
        (RT, Info::TIMER, 5, false),
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
                .post_sent(&sent(signal, code, sender), OWN)
                .is_none()
        );
        let found = [1, 2].map(|id| signals.pending(id) != 0);
        assert_eq!(found, [!is_for_thread, true], "{signal} {code} {sender}");
    }
    let (mut signals, _) = two();
    for none in [0, -1, 65] {
        let sent = insula_abi::lwk::Signal {
            signal: none,
            ..sent(USR1, 0, OTHER)
        };
        assert!(signals.post_sent(&sent, OWN).is_none());
    }
    assert_eq!(signals.next(1), None);
}

#[test]
fn a_timer_waits_once_and_counts() {
    let (mut signals, _) = two();
    signals.block(1, u64::MAX);
    signals.block(2, u64::MAX);
    for overruns in [0, 2, 0] {
        signals.post_sent(&sent(RT, Info::TIMER, 3 | overruns << 32), 1);
    }
    let found = signals.take(1, bit(RT)).map(|info| info.fields[0] >> 32);
    assert_eq!((found, signals.take(1, bit(RT))), (Some(4), None));
}

#[test]
fn who_goes_on_is_not_stopped_by_what_came_before() {
    let (mut signals, _) = two();
    signals.set_action(number::CONT, handler());
    let stop = Some(Deed::Stop {
        signal: number::TSTP,
    });
    signals.post(None, user(number::TSTP)).unwrap();
    assert_eq!(signals.next(1), stop);
    signals.post(Some(2), user(number::TSTP)).unwrap();
    signals.post(None, user(number::CONT)).unwrap();
    let goes_on = Some(Deed::Handle(user(number::CONT), handler()));
    assert_eq!((signals.next(2), signals.next(1)), (goes_on, None));
    signals.post(None, user(number::CONT)).unwrap();
    signals.post(None, user(number::TSTP)).unwrap();
    assert_eq!((signals.next(1), signals.next(2)), (stop, None));
}
