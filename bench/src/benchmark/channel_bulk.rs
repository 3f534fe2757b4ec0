//! Throughput of a channel.

use std::time::Instant;

use insula_driver::GrantTable;
use testbed::base::{Finding, Shape};
use testbed::host::root::Root;
use testbed::node::peer::Request;

use super::{Benchmark, Row, Unit};
use crate::inside::{Inside, Peer, Pipes, pin};

const KERNEL: &str = "6.12";
/// Bytes of each message: half of a ring, so that both sides work at once.
const SIZE: usize = 128 * 56;
const MESSAGES: u32 = 5000;
/// Bytes of a grant, and number of grants.
const GRANTED: usize = 1 << 20;
const GRANTS: usize = 36;
const PAGE: usize = 4096;
const BYTES: usize = SIZE * MESSAGES as usize;
/// Cores of this process, of the other process on the base, and of the node.
const OWN_CORE: usize = 0;
const PROCESS_CORE: usize = 1;
const NODE_CORE: usize = 3;

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "channel-bulk",
    title: "Bytes through a channel",
    how: "36 MB in messages of 7 KiB. *One way*: a process of a node of 6.12 sends them to one of \
          the base, copied into the ring on one side and out of it on the other; the peer is a \
          process on another core of the base that sends as many through a pipe. *There and \
          back*: each message is sent back before the next is sent, and counts for each way; the \
          peer is a pair of pipes. Channel and pipes have their defaults: a channel's endpoints \
          poll the rings 200 times before they sleep and hold 14 KiB, a pipe holds 64 KiB. *By \
          reference*: the base grants the node its own memory, a MiB at a time, and revokes it; \
          nobody touches it in between, so a copy is no peer. *Copied* is within a process.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 5,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        rate("channel-bulk.copy", "one way, from a node")
            .beside("channel-bulk.pipe")
            .drawn(),
        rate("channel-bulk.pipe", "one way, through a pipe").drawn(),
        rate("channel-bulk.trip", "there and back, node")
            .beside("channel-bulk.pipe-trip")
            .drawn(),
        rate("channel-bulk.pipe-trip", "there and back, through pipes").drawn(),
        rate("channel-bulk.reference", "granted to a node and revoked").drawn(),
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
    let table = peer.grant_table()?;
    let mut buffer = vec![0; SIZE];
    for _ in 0..inside.count {
        measure(inside, "copy", BYTES, || {
            let words = [MESSAGES, SIZE as u32].map(u32::to_le_bytes).concat();
            peer.request(Request::Flood, &words)?;
            (0..MESSAGES).try_for_each(|_| Ok(peer.receive(&mut buffer).map(drop)?))
        })?;
        measure(inside, "pipe", BYTES, || {
            Ok(flood.receive(MESSAGES, &mut buffer)?)
        })?;
        measure(inside, "trip", 2 * BYTES, || {
            (0..MESSAGES).try_for_each(|_| {
                peer.request(Request::Echo, &buffer)?;
                Ok(peer.receive(&mut buffer).map(drop)?)
            })
        })?;
        measure(inside, "pipe-trip", 2 * BYTES, || {
            (0..MESSAGES).try_for_each(|_| Ok(pipes.echo(&mut buffer)?))
        })?;
        grant(inside, &table)?;
        copy(inside, &buffer)?;
    }
    peer.remove()
}

fn grant(inside: &Inside, table: &GrantTable) -> Result<(), Finding> {
    // On pages of its own, so that no other data is granted with it.
    let room = vec![0_u8; GRANTED + PAGE];
    let granted = &room[room.as_ptr().align_offset(PAGE)..][..GRANTED];
    measure(inside, "reference", GRANTED * GRANTS, || {
        (0..GRANTS).try_for_each(|_| {
            table.grant(granted.as_ptr() as u64, GRANTED as u64, true)?;
            Ok(table.revoke(granted.as_ptr() as u64, GRANTED as u64)?)
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
