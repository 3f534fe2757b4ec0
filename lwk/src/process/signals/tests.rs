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
    Info::sent(signal, Info::USER, 7)
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
    assert_eq!(default(number::TSTP), Some(Deed::Stop));
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
