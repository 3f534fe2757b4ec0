//! Bytes through a channel.

use std::time::Instant;

use insula::driver::Lender;
use testbed::peer::Request;
use testbed::root::Root;
use testbed::scenario::{Finding, Shape};

use super::{Benchmark, Row, Unit};
use crate::inside::{Inside, Peer, Pipes, pin};

const KERNEL: &str = "6.12";
/// Bytes of each message: half of a ring, so that both sides are at work.
const SIZE: usize = 128 * 56;
const MESSAGES: u32 = 5000;
/// What is lent at once, in bytes, and how often.
const LENT: usize = 1 << 20;
const LOANS: usize = 36;
const PAGE: usize = 4096;
const BYTES: usize = SIZE * MESSAGES as usize;
/// This process's, the other's on the base, and the node's.
const OWN_CORE: usize = 0;
const PROCESS_CORE: usize = 1;
const NODE_CORE: usize = 3;

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "channel-bulk",
    title: "Bytes through a channel",
    how: "36 MB in messages of 7 KiB. *One way*: a process of a node of 6.12 sends them one after \
          the other to one of the base, copied into the ring on one side and out of it on the \
          other; beside it a process on another core of the base sends as many through a pipe. \
          *There and back*: each message is sent back before the next is sent, and counts for each \
          way; beside it the same through a pair of pipes. Channel and pipes are as programs have \
          them: a channel's ends look at the rings 200 times before they sleep and hold 14 KiB, a \
          pipe holds 64 KiB. *By reference*: the base lends the node its own memory, a MiB at a \
          time, and takes it back; nobody touches it in between, so no copy can be beside it. \
          *Copied* is within a process.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 5,
    inside,
    outside: None,
    counted: None,
    rows: &[
        rate("channel-bulk.copy", "one way, from a node")
            .beside("channel-bulk.pipe")
            .drawn(),
        rate("channel-bulk.pipe", "one way, through a pipe").drawn(),
        rate("channel-bulk.trip", "there and back, node")
            .beside("channel-bulk.pipe-trip")
            .drawn(),
        rate("channel-bulk.pipe-trip", "there and back, through pipes").drawn(),
        rate("channel-bulk.reference", "lent to a node and taken back").drawn(),
        rate("channel-bulk.memcpy", "copied once, within a process"),
    ],
};

const fn rate(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::MegabytesPerSecond)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    pin(0, OWN_CORE)?;
    let mut peer = Peer::start(inside, KERNEL, NODE_CORE)?;
    let mut pipes = Pipes::start(PROCESS_CORE)?;
    let mut flood = Pipes::flood(PROCESS_CORE)?;
    let lender = peer.lender()?;
    let mut buffer = vec![0; SIZE];
    for _ in 0..inside.count {
        measure(inside, "copy", BYTES, || {
            let words = [MESSAGES, SIZE as u32].map(u32::to_le_bytes).concat();
            peer.ask(Request::Flood, &words)?;
            (0..MESSAGES).try_for_each(|_| Ok(peer.receive(&mut buffer).map(drop)?))
        })?;
        measure(inside, "pipe", BYTES, || {
            Ok(flood.receive(MESSAGES, &mut buffer)?)
        })?;
        measure(inside, "trip", 2 * BYTES, || {
            (0..MESSAGES).try_for_each(|_| {
                peer.ask(Request::Echo, &buffer)?;
                Ok(peer.receive(&mut buffer).map(drop)?)
            })
        })?;
        measure(inside, "pipe-trip", 2 * BYTES, || {
            (0..MESSAGES).try_for_each(|_| Ok(pipes.echo(&mut buffer)?))
        })?;
        lend(inside, &lender)?;
        copy(inside, &buffer)?;
    }
    peer.remove()
}

fn lend(inside: &Inside, lender: &Lender) -> Result<(), Finding> {
    // Of its own pages, so that nothing else is lent with it.
    let room = vec![0_u8; LENT + PAGE];
    let lent = &room[room.as_ptr().align_offset(PAGE)..][..LENT];
    measure(inside, "reference", LENT * LOANS, || {
        (0..LOANS).try_for_each(|_| {
            lender.grant(lent.as_ptr() as u64, LENT as u64, true)?;
            Ok(lender.take(lent.as_ptr() as u64, LENT as u64)?)
        })
    })
}

fn copy(inside: &Inside, buffer: &[u8]) -> Result<(), Finding> {
    let mut copy = vec![0; buffer.len()];
    measure(inside, "memcpy", BYTES, || {
        for _ in 0..MESSAGES {
            copy.copy_from_slice(std::hint::black_box(buffer));
            std::hint::black_box(&mut copy);
        }
        Ok(())
    })
}

fn measure(
    inside: &Inside,
    way: &str,
    bytes: usize,
    move_all: impl FnOnce() -> Result<(), Finding>,
) -> Result<(), Finding> {
    let began = Instant::now();
    move_all()?;
    let rate = bytes as f64 / began.elapsed().as_secs_f64() / 1e6;
    inside.record(&format!("channel-bulk.{way}"), rate)
}
