//! Datagrams.

use insula_abi::net::{NONE, operation, ready};
use nix::errno::Errno;
use nix::libc;

use super::calls::address;
use super::{Pair, bytes};

fn bound(pair: &mut Pair, end: usize, port: u16) -> u64 {
    let handle = pair.socket(end, libc::SOCK_DGRAM);
    let bound = pair.call(end, operation::BIND, &[handle, u64::from(port)]);
    assert_eq!(bound, Ok(0));
    handle
}

#[test]
fn datagrams_arrive_one_by_one() {
    let mut pair = Pair::new();
    let two = bound(&mut pair, 1, 53);
    let one = pair.socket(0, libc::SOCK_DGRAM);
    for length in [0, 5, 1472] {
        let sent = pair.send_to(0, one, address(1, 53), &bytes(length, length));
        assert_eq!(sent, Ok(length as u64));
    }
    let too_long = pair.send_to(0, one, address(1, 53), &bytes(1473, 0));
    assert_eq!(too_long, Err(Errno::EMSGSIZE));
    pair.run(0);
    let told = pair.announced(1, two);
    assert_eq!(told, Some((ready::IN | ready::OUT, ready::IN)));
    assert_eq!(pair.receive(1, two, 10).unwrap(), b"");
    let (peeked, _) = pair.receive_with(1, two, (10, libc::MSG_PEEK)).unwrap();
    assert_eq!(peeked, bytes(5, 5));
    let (part, words) = pair.receive_with(1, two, (3, 0)).unwrap();
    assert_eq!(part, bytes(5, 5)[..3]);
    assert_eq!((words[2] >> 16, words[3]), (address(0, 0) >> 16, 5));
    assert_eq!(pair.receive(1, two, 2000).unwrap(), bytes(1472, 1472));
    assert_eq!(pair.receive(1, two, 10), Err(Errno::EAGAIN));
    // And back.
    pair.send_to(1, two, words[2], b"back").unwrap();
    pair.run(0);
    assert_eq!(pair.receive(0, one, 10).unwrap(), b"back");
}

#[test]
fn a_connected_socket_hears_its_peer_only() {
    let mut pair = Pair::new();
    let (two, other) = (bound(&mut pair, 1, 53), bound(&mut pair, 1, 54));
    let one = bound(&mut pair, 0, 1000);
    assert_eq!(pair.send(0, one, b"whom"), Err(Errno::EDESTADDRREQ));
    let connected = pair.call(0, operation::CONNECT, &[one, address(1, 53)]);
    assert_eq!(connected, Ok(0));
    assert_eq!(pair.send(0, one, b"you"), Ok(3));
    pair.send_to(1, other, address(0, 1000), b"not you")
        .unwrap();
    pair.run(0);
    assert_eq!(pair.ready(0, one) & ready::IN, 0);
    assert_eq!(pair.receive(1, two, 10).unwrap(), b"you");
    pair.send_to(1, other, address(0, 1000), b"not you")
        .unwrap();
    pair.send_to(1, two, address(0, 1000), b"me").unwrap();
    pair.run(0);
    assert_eq!(pair.receive(0, one, 10).unwrap(), b"me");
    assert_eq!(pair.call(0, operation::CONNECT, &[one, NONE]), Ok(0));
    assert_eq!(pair.send(0, one, b"whom"), Err(Errno::EDESTADDRREQ));
}

#[test]
fn datagrams_that_nobody_takes_are_dropped() {
    let mut pair = Pair::new();
    let two = bound(&mut pair, 1, 53);
    let one = pair.socket(0, libc::SOCK_DGRAM);
    for _ in 0..200 {
        pair.send_to(0, one, address(1, 53), &bytes(1000, 0))
            .unwrap();
        pair.run(0);
    }
    let received = std::iter::from_fn(|| pair.receive(1, two, 2000).ok()).count();
    assert_eq!(received, 64);
}
