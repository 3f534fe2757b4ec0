//! Connections.

use std::time::Duration;

use insula_abi::net::{operation, ready};
use nix::errno::Errno;
use nix::libc;
use proptest::prelude::*;

use super::calls::address;
use super::{Pair, bytes};

const SO_ERROR: (i32, i32) = (libc::SOL_SOCKET, libc::SO_ERROR);

#[test]
fn bytes_arrive_in_both_directions() {
    let mut pair = Pair::new();
    let [one, two] = pair.connection(80);
    // As Linux, it says once more that it is connected.
    for result in [Ok(0), Err(Errno::EISCONN)] {
        let again = pair.call(0, operation::CONNECT, &[one, address(1, 80)]);
        assert_eq!(again, result);
    }
    let names = pair.words(1, operation::NAMES, &[two]);
    assert_eq!(names[2], address(1, 80));
    assert_eq!(names[3] >> 16, address(0, 0) >> 16);
    assert_eq!(pair.receive(1, two, 10), Err(Errno::EAGAIN));
    assert_eq!(pair.send(0, one, b"request"), Ok(7));
    pair.run(0);
    assert_eq!(
        pair.announced(1, two),
        Some((ready::IN | ready::OUT, ready::IN))
    );
    assert_eq!(pair.call(1, operation::QUEUED, &[two]), Ok(7));
    let (peeked, _) = pair.receive_with(1, two, (3, libc::MSG_PEEK)).unwrap();
    assert_eq!(peeked, b"req");
    assert_eq!(pair.receive(1, two, 4).unwrap(), b"requ");
    assert_eq!(pair.receive(1, two, 10).unwrap(), b"est");
    assert_eq!(pair.send(1, two, b"reply"), Ok(5));
    pair.run(0);
    assert_eq!(pair.receive(0, one, 10).unwrap(), b"reply");
}

#[test]
fn a_full_buffer_has_the_sender_wait() {
    let mut pair = Pair::new();
    let [one, two] = pair.connection(80);
    let sent = bytes(1 << 20, 3);
    let (mut at, mut received) = (0, Vec::new());
    let mut waits = 0;
    while received.len() < sent.len() {
        while at < sent.len()
            && let Ok(count) = pair.send(0, one, &sent[at..])
        {
            at += count as usize;
        }
        if at < sent.len() {
            assert_eq!(pair.send(0, one, &sent[at..]), Err(Errno::EAGAIN));
            assert_eq!(pair.ready(0, one) & ready::OUT, 0);
            waits += 1;
        }
        pair.run(0);
        while let Ok(some) = pair.receive(1, two, 10_000) {
            received.extend(some);
        }
        pair.run(10);
        let is_told = pair
            .announced(0, one)
            .is_some_and(|(ready, _)| ready & ready::OUT != 0);
        assert!(is_told || pair.ready(0, one) & ready::OUT != 0);
    }
    assert!(received == sent);
    assert!(waits > 0);
}

/// Ends that rest as long as they say so resend in time what was lost.
#[test]
fn nothing_that_is_due_is_slept_through() {
    let mut pair = Pair::new();
    let [one, two] = pair.connection(80);
    *pair.loses.borrow_mut() = 6;
    let sent = bytes(256 << 10, 3);
    let (mut at, mut received) = (0, Vec::new());
    let (began_ms, mut rested) = (pair.now_ms, Duration::ZERO);
    while received.len() < sent.len() {
        if at < sent.len()
            && let Ok(count) = pair.send(0, one, &sent[at..])
        {
            at += count as usize;
        }
        rested += pair.work_and_rest();
        if let Ok(more) = pair.receive(1, two, 1 << 20) {
            received.extend(more);
        }
        assert!(pair.now_ms - began_ms < 600_000, "{} bytes", received.len());
    }
    assert!(received == sent && rested > Duration::from_millis(100));
    *pair.loses.borrow_mut() = 0;
    let idle = (0..200).map(|_| pair.work_and_rest()).max();
    assert_eq!(idle, Some(Duration::from_secs(1)), "it ends");
}

#[test]
fn an_end_is_seen_after_what_was_sent() {
    let mut pair = Pair::new();
    let [one, two] = pair.connection(80);
    pair.send(0, one, b"last").unwrap();
    assert_eq!(pair.call(0, operation::SHUTDOWN, &[one, 1]), Ok(0));
    assert_eq!(pair.send(0, one, b"more"), Err(Errno::EPIPE));
    pair.run(0);
    let at_end = ready::IN | ready::OUT | ready::RDHUP;
    assert_eq!(pair.ready(1, two), at_end);
    assert_eq!(pair.receive(1, two, 10).unwrap(), b"last");
    assert_eq!(pair.receive(1, two, 10).unwrap(), b"");
    assert_eq!(pair.ready(1, two), at_end);
    // The other direction goes on.
    pair.send(1, two, b"answer").unwrap();
    pair.run(0);
    assert_eq!(pair.receive(0, one, 10).unwrap(), b"answer");
    pair.call(1, operation::RELEASE, &[two]).unwrap();
    pair.run(0);
    assert_eq!(pair.receive(0, one, 10).unwrap(), b"");
    assert!(pair.ready(0, one) & ready::HUP != 0);
    assert_eq!(pair.option(0, one, SO_ERROR), Ok(0));
}

#[test]
fn what_arrived_before_both_ends_is_no_reset() {
    let mut pair = Pair::new();
    let [one, two] = pair.connection(80);
    pair.call(1, operation::SHUTDOWN, &[two, 1]).unwrap();
    pair.send(0, one, b"unread").unwrap();
    pair.call(0, operation::RELEASE, &[one]).unwrap();
    pair.run(20_000);
    assert_eq!(pair.ready(1, two) & ready::ERROR, 0);
    assert_eq!(pair.receive(1, two, 10).unwrap(), b"unread");
    assert_eq!(pair.receive(1, two, 10).unwrap(), b"");
    assert_eq!(pair.option(1, two, SO_ERROR), Ok(0));
}

#[test]
fn a_reset_after_the_end_of_the_peer_is_a_broken_pipe() {
    let mut pair = Pair::new();
    let [one, two] = pair.connection(80);
    pair.call(0, operation::SHUTDOWN, &[one, 1]).unwrap();
    pair.send(1, two, b"nobody reads it").unwrap();
    pair.run(0);
    pair.call(0, operation::RELEASE, &[one]).unwrap();
    pair.run(0);
    assert_eq!(pair.option(1, two, SO_ERROR), Ok(Errno::EPIPE as i32));
}

#[test]
fn what_was_sent_before_a_release_arrives() {
    let mut pair = Pair::new();
    let [one, two] = pair.connection(80);
    let sent = bytes(60_000, 1);
    assert_eq!(pair.send(0, one, &sent), Ok(60_000));
    pair.call(0, operation::RELEASE, &[one]).unwrap();
    pair.run(100);
    let mut received = Vec::new();
    while let Ok(some) = pair.receive(1, two, 100_000)
        && !some.is_empty()
    {
        received.extend(some);
        pair.run(10);
    }
    assert!(received == sent);
    // Nothing is left of it.
    pair.call(1, operation::RELEASE, &[two]).unwrap();
    pair.run(70_000);
    assert_eq!(pair.ends[0].stack.sockets.iter().count(), 0);
}

#[test]
fn a_program_that_ignores_what_arrived_resets() {
    let mut pair = Pair::new();
    let [one, two] = pair.connection(80);
    pair.send(0, one, b"nobody reads it").unwrap();
    pair.run(0);
    pair.call(1, operation::RELEASE, &[two]).unwrap();
    pair.run(0);
    assert!(pair.ready(0, one) & ready::ERROR != 0);
    assert_eq!(pair.receive(0, one, 10), Err(Errno::ECONNRESET));
    assert_eq!(pair.receive(0, one, 10).unwrap(), b"");
    assert_eq!(pair.send(0, one, b"more"), Err(Errno::EPIPE));
}

#[test]
fn where_nobody_listens_connections_are_refused() {
    let mut pair = Pair::new();
    let one = pair.connect(81);
    let again = pair.call(0, operation::CONNECT, &[one, address(1, 81)]);
    assert_eq!(again, Err(Errno::EALREADY));
    assert_eq!(pair.ready(0, one), 0);
    pair.run(0);
    let (ready, _) = pair.announced(0, one).unwrap();
    assert!(ready & (ready::ERROR | ready::OUT) == ready::ERROR | ready::OUT);
    let refused = Errno::ECONNREFUSED as i32;
    assert_eq!(pair.option(0, one, SO_ERROR), Ok(refused));
    assert_eq!(pair.option(0, one, SO_ERROR), Ok(0));
}

#[test]
fn a_full_backlog_has_others_wait() {
    let mut pair = Pair::new();
    let listener = pair.listener(1, 80, 1);
    let all: Vec<_> = (0..3).map(|_| pair.connect(80)).collect();
    pair.run(0);
    assert_eq!(pair.announced(1, listener), Some((ready::IN, ready::IN)));
    let first = [
        pair.accept(listener).unwrap(),
        pair.accept(listener).unwrap(),
    ];
    assert_eq!(pair.accept(listener), Err(Errno::EAGAIN));
    // The third is sent again.
    pair.run(5_000);
    let third = pair.accept(listener).unwrap();
    for (handle, accepted) in all.iter().zip([first[0], first[1], third]) {
        pair.send(0, *handle, b"hello").unwrap();
        pair.run(0);
        let _ = pair.receive(1, accepted, 10).unwrap();
    }
}

#[test]
fn many_connections_at_once_are_accepted() {
    let mut pair = Pair::new();
    let listener = pair.listener(1, 80, 64);
    let all: Vec<_> = (0..50).map(|_| pair.connect(80)).collect();
    pair.run(0);
    for handle in all {
        let accepted = pair.accept(listener).unwrap();
        pair.send(0, handle, b"x").unwrap();
        pair.call(0, operation::RELEASE, &[handle]).unwrap();
        pair.run(0);
        assert_eq!(pair.receive(1, accepted, 10).unwrap(), b"x");
        assert_eq!(pair.receive(1, accepted, 10).unwrap(), b"");
        pair.call(1, operation::RELEASE, &[accepted]).unwrap();
    }
    pair.call(1, operation::RELEASE, &[listener]).unwrap();
    pair.run(70_000);
    for end in &pair.ends {
        assert_eq!(end.stack.sockets.iter().count(), 0);
    }
}

#[test]
fn a_listener_that_goes_resets_what_nobody_accepted() {
    let mut pair = Pair::new();
    let listener = pair.listener(1, 80, 8);
    let one = pair.connect(80);
    pair.run(0);
    assert!(pair.ready(0, one) & ready::OUT != 0);
    pair.call(1, operation::RELEASE, &[listener]).unwrap();
    pair.run(0);
    assert_eq!(pair.receive(0, one, 10), Err(Errno::ECONNRESET));
    assert_eq!(pair.ends[1].stack.sockets.iter().count(), 0);
}

#[test]
fn addresses_are_checked() {
    let mut pair = Pair::new();
    let bind = |pair: &mut Pair, to| {
        let handle = pair.socket(1, libc::SOCK_STREAM);
        (handle, pair.call(1, operation::BIND, &[handle, to]))
    };
    assert_eq!(bind(&mut pair, address(1, 80)).1, Ok(0));
    assert_eq!(bind(&mut pair, address(1, 80)).1, Err(Errno::EADDRINUSE));
    assert_eq!(bind(&mut pair, address(0, 81)).1, Err(Errno::EADDRNOTAVAIL));
    let (any, bound) = bind(&mut pair, 0);
    assert_eq!(bound, Ok(0));
    assert!(pair.words(1, operation::NAMES, &[any])[2] as u16 >= 32768);
    let again = pair.call(1, operation::BIND, &[any, 0]);
    assert_eq!(again, Err(Errno::EINVAL));
    let far = pair.socket(0, libc::SOCK_STREAM);
    for to in [0x7f00_0001_0050, 0x0808_0808_0050, address(0, 80)] {
        let refused = pair.call(0, operation::CONNECT, &[far, to]);
        assert_eq!(refused, Err(Errno::ENETUNREACH));
    }
}

#[test]
fn options_are_kept_and_others_refused() {
    let mut pair = Pair::new();
    let [one, two] = pair.connection(80);
    let no_delay = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
    assert_eq!(pair.option(0, one, no_delay), Ok(0));
    assert_eq!(
        pair.set_option(0, one, no_delay, &1_i32.to_ne_bytes()),
        Ok(0)
    );
    assert_eq!(pair.option(0, one, no_delay), Ok(1));
    assert_eq!(pair.option(1, two, no_delay), Ok(0));
    let kind = (libc::SOL_SOCKET, libc::SO_TYPE);
    assert_eq!(pair.option(0, one, kind), Ok(libc::SOCK_STREAM));
    assert_eq!(
        pair.set_option(0, one, kind, &[0; 4]),
        Err(Errno::ENOPROTOOPT)
    );
    let unknown = (libc::SOL_SOCKET, 12345);
    assert_eq!(pair.option(0, one, unknown), Err(Errno::ENOPROTOOPT));
    assert_eq!(pair.set_option(0, one, no_delay, &[]), Err(Errno::EINVAL));
    // Lingering for 0 s resets.
    let linger = (libc::SOL_SOCKET, libc::SO_LINGER);
    assert_eq!(
        pair.set_option(0, one, linger, &[1, 0, 0, 0, 0, 0, 0, 0]),
        Ok(0)
    );
    pair.call(0, operation::RELEASE, &[one]).unwrap();
    pair.run(0);
    assert_eq!(pair.receive(1, two, 1), Err(Errno::ECONNRESET));
}

#[test]
fn a_server_that_came_anew_does_not_know_sockets() {
    let mut pair = Pair::new();
    assert_eq!(pair.receive(0, 77, 10), Err(Errno::ECONNRESET));
    assert_eq!(pair.call(0, operation::RELEASE, &[77]), Ok(0));
    assert_eq!(pair.call(0, 9999, &[77]), Err(Errno::EOPNOTSUPP));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever parts are sent and received, with frames lost meanwhile: the right bytes arrive.
    #[test]
    fn right_bytes_arrive_over_a_bad_cable(
        steps in prop::collection::vec((any::<bool>(), 1_usize..30_000), 1..60),
        loses in prop::sample::select(vec![0_u32, 5, 20]),
    ) {
        let mut pair = Pair::new();
        let [one, two] = pair.connection(80);
        *pair.loses.borrow_mut() = loses;
        let all = bytes(2_000_000, 9);
        let (mut sent, mut received) = (0, 0);
        for (sends, length) in steps {
            if sends {
                if let Ok(count) = pair.send(0, one, &all[sent..sent + length]) {
                    sent += count as usize;
                }
            } else if let Ok(some) = pair.receive(1, two, length) {
                prop_assert!(some[..] == all[received..received + some.len()]);
                received += some.len();
            }
            pair.run(5);
        }
        pair.call(0, operation::SHUTDOWN, &[one, 1]).unwrap();
        for _ in 0..10_000 {
            match pair.receive(1, two, 8192) {
                Ok(some) if some.is_empty() => break,
                Ok(some) => {
                    prop_assert!(some[..] == all[received..received + some.len()]);
                    received += some.len();
                }
                Err(error) => prop_assert_eq!(error, Errno::EAGAIN),
            }
            pair.run(50);
        }
        prop_assert_eq!(received, sent);
    }

    /// No requests, however wrong, panic or hurt others.
    #[test]
    fn random_requests_do_not_panic(
        requests in prop::collection::vec(
            (0_usize..2, 0_u32..16, 0_u64..6, 0_u64..8, any::<u64>(), any::<bool>()),
            1..120,
        ),
    ) {
        let mut pair = Pair::new();
        pair.last_handle = 100;
        for (end, operation, handle, small, large, is_small) in requests {
            let word = if is_small { small } else { large };
            let words = [handle, word, large >> 32];
            if operation == operation::SEND {
                let _ = pair.send_to(end, handle, word, &bytes(small as usize * 300, 0));
            } else {
                pair.words(end, operation, &words);
            }
            pair.run(0);
        }
        let [one, two] = pair.connection(4242);
        pair.send(0, one, b"still").unwrap();
        pair.run(0);
        prop_assert_eq!(pair.receive(1, two, 10).unwrap(), b"still");
    }
}
