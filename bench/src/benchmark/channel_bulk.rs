//! Bytes through a channel.

use std::time::Instant;

use testbed::peer::Request;
use testbed::root::Root;
use testbed::scenario::{Finding, Shape};

use super::{Benchmark, Row, Unit};
use crate::inside::{Inside, Peer, Pipes, pin};

const KERNEL: &str = "6.12";
/// Bytes of each message: half of a ring, so that both sides are at work.
const SIZE: usize = 128 * 56;
const MESSAGES: usize = 5000;
/// What is lent at once, in bytes, and how often.
const LENT: usize = 1 << 20;
const LOANS: usize = 36;
const PAGE: usize = 4096;
const BYTES: usize = SIZE * MESSAGES;

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "channel-bulk",
    title: "Bytes through a channel",
    how: "36 MB in messages of 7 KiB from a process of a node of 6.12 to one of the base: copied \
          into the ring on one side and out of it on the other. *By reference*: the base lends the \
          node its own memory, a MiB at a time, and takes it back; nobody touches it in between. \
          Beside these as many bytes through pipes, to a process of the base on another core *and back*, counted once for each way, \
          and copied within a process.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 5,
    inside,
    outside: None,
    counted: None,
    rows: &[
        rate("channel-bulk.copy", "from a node")
            .beside("channel-bulk.pipe")
            .drawn(),
        rate("channel-bulk.reference", "lent to a node and taken back")
            .beside("channel-bulk.copy")
            .drawn(),
        rate("channel-bulk.pipe", "through pipes").drawn(),
        rate("channel-bulk.memcpy", "copied once, within a process").drawn(),
    ],
};

const fn rate(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::MegabytesPerSecond)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    pin(0, 0)?;
    let mut peer = Peer::start(inside, KERNEL)?;
    let mut pipes = Pipes::start(1)?;
    let lender = peer.lender()?;
    // Of its own pages, so that nothing else is lent with it.
    let room = vec![0_u8; LENT + PAGE];
    let lent = &room[room.as_ptr().align_offset(PAGE)..][..LENT];
    let (mut buffer, mut copy) = (vec![0; SIZE], vec![0; SIZE]);
    for _ in 0..inside.count {
        measure(inside, "copy", BYTES, || {
            let words = [MESSAGES as u32, SIZE as u32]
                .map(u32::to_le_bytes)
                .concat();
            peer.ask(Request::Flood, &words)?;
            (0..MESSAGES).try_for_each(|_| Ok(peer.receive(&mut buffer).map(drop)?))
        })?;
        measure(inside, "reference", LENT * LOANS, || {
            (0..LOANS).try_for_each(|_| {
                lender.grant(lent.as_ptr() as u64, LENT as u64, true)?;
                Ok(lender.take(lent.as_ptr() as u64, LENT as u64)?)
            })
        })?;
        measure(inside, "pipe", 2 * BYTES, || {
            (0..MESSAGES).try_for_each(|_| Ok(pipes.echo(&mut buffer)?))
        })?;
        measure(inside, "memcpy", BYTES, || {
            for _ in 0..MESSAGES {
                copy.copy_from_slice(std::hint::black_box(&buffer));
                std::hint::black_box(&mut copy);
            }
            Ok(())
        })?;
    }
    peer.remove()
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
