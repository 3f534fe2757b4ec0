//! Channels between the base and a Linux node.

mod doorbells;
mod page_references;

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use insula_abi::channel::{CHANNELS_MAX, Channels, EVENTS, SLOTS_MAX, SLOTS_MIN, area_size};
use insula_abi::{GRANULE, NUMA_ANY};
use insula_channel::{Message, Words};
use insula_driver::Driver;
use insula_driver::channel::{COUNT, ChannelError, End, PROGRAMS_COUNT, Side};
use insula_driver::name::Name;
use nix::errno::Errno;
use nix::sys::eventfd::EventFd;

use crate::base::support::insula_command::{TIMEOUT, assert_equal, insula, with_cleanup};
use crate::base::support::nodes::peer_node::Peer;
use crate::base::support::nodes::test_node::{TestNode, peer_image};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::node::peer::{EVENT, Request, numbered};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "channels",
    proves: "base and node exchange messages by rings; no doorbell is lost, and no peer does harm",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_1],
    limit: Duration::from_secs(400),
    soak_limit: Some(Duration::from_secs(1800)),
    play,
};

/// Request for more messages of 100 bytes than anybody waits for.
const FLOOD: [u8; 8] = [0xff, 0xff, 0xff, 0, 100, 0, 0, 0];
/// Largest message of a ring of a node's channels.
const LARGEST: usize = 256 * 56;

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        invalid_channels()?;
        for (version, end) in [("6.1", Request::Crash), ("6.12", Request::Flood)] {
            let in_context = |error: Finding| error.when(&format!("with a node of {version}"));
            with_node(context, version, end).map_err(in_context)?;
        }
        Ok(())
    })
}

/// Invalid channels are refused; those of a node that never starts are disconnected with it.
fn invalid_channels() -> Result<(), Finding> {
    let driver = Driver::open()?;
    let memory = driver.create_memory()?;
    memory.grow(&insula_abi::Request {
        size: GRANULE,
        min_phys: 0,
        max_phys: 0,
        chunk_max: 0,
        numa_node: NUMA_ANY,
        flags: 0,
    })?;
    let start = memory.chunks()?.first().map_or(0, |chunk| chunk.start);
    let name: Name = "nobody".parse()?;
    let node = driver.create_node(&name.to_abi(), &[], &[1], &memory)?;
    let good = Channels {
        start,
        count: 2,
        slots: SLOTS_MIN,
    };
    let end = start + GRANULE - area_size(2, SLOTS_MIN);
    let answer = |channels| {
        node.lay_out_channels(channels)
            .err()
            .map(|error| error.errno)
    };
    for bad in [
        Channels { count: 0, ..good },
        Channels {
            count: CHANNELS_MAX + 1,
            ..good
        },
        Channels {
            slots: SLOTS_MIN / 2,
            ..good
        },
        Channels {
            slots: SLOTS_MIN + 1,
            ..good
        },
        Channels {
            slots: 2 * SLOTS_MAX,
            ..good
        },
        Channels {
            start: start + 8,
            ..good
        },
        Channels {
            start: end + 4096,
            ..good
        },
        Channels {
            start: u64::MAX - 4095,
            ..good
        },
        Channels { start: 0, ..good },
    ] {
        assert_equal(&format!("{bad:x?}"), &answer(bad), &Some(Errno::EINVAL))?;
    }
    let refused = node.open_channel(0).err().map(|error| error.errno);
    assert_equal(
        "a channel before any was laid out",
        &refused,
        &Some(Errno::ENOENT),
    )?;
    for channels in [good, Channels { start: end, ..good }] {
        assert_equal("channels", &answer(channels), &None)?;
    }
    let mut channel = End::attach(node.open_channel(1)?, Side::Base)?;
    send_request(&mut channel, Request::Echo, b"to nobody")?;
    let brief = Duration::from_millis(1);
    let answer = channel.receive(&mut [0; 8], brief);
    Finding::unless(matches!(answer, Err(ChannelError::TimedOut(_))), || {
        format!("a node that does not run answered: {answer:?}")
    })?;
    drop(node);
    let gone = channel.receive(&mut [0; 8], TIMEOUT);
    Finding::unless(matches!(gone, Err(ChannelError::Disconnected)), || {
        format!("a removed node answered: {gone:?}")
    })
}

/// Plays on a node, which is killed by the request `end`.
fn with_node(context: &Context, version: &str, end: Request) -> Result<(), Finding> {
    let image = peer_image(context, version)?;
    let source = ["--image", &image];
    let name = format!("peer-{version}");
    let node = TestNode::start(&name, &source, &["--memory", "256M"], "peer")?;
    node.wait_until_ready()?;
    let driver = Driver::open()?;
    let peer = Peer::new(&driver, &name)?;
    ping_pong(&peer, context.count(100, 20_000))?;
    bulk(&peer, context.count(300, 100_000) as u32)?;
    many_channels(&peer)?;
    one_at_a_time(&peer)?;
    by_events(&peer)?;
    by_one_eventfd(&peer)?;
    page_references::play(&peer)?;
    disconnects(&peer)?;
    doorbells::move_while_used(&peer, context.count(30, 3000))?;
    hostile(&peer, context.count(10, 500))?;
    node_dies(&peer, &node, end)?;
    insula(&["rm", "--force", &name]).map(drop)
}

fn send_request(end: &mut End, request: Request, bytes: &[u8]) -> Result<(), ChannelError> {
    end.send(&Message::bytes(request as u8, bytes), TIMEOUT)
}

/// Sends bytes that must come back.
fn echo(end: &mut End, bytes: &[u8]) -> Result<(), Finding> {
    send_request(end, Request::Echo, bytes)?;
    expect(end, bytes)
}

fn expect(end: &mut End, bytes: &[u8]) -> Result<(), Finding> {
    let mut buffer = vec![0; LARGEST];
    let received = end.receive(&mut buffer, TIMEOUT)?;
    Finding::unless(received.bytes(&buffer) == bytes, || {
        let other = received.bytes(&buffer);
        format!(
            "{} other bytes received than the {} expected",
            other.len(),
            bytes.len()
        )
    })
}

fn ping_pong(peer: &Peer, count: u64) -> Result<(), Finding> {
    let mut end = peer.open(0)?;
    (0..count as u32)
        .try_for_each(|number| echo(&mut end, &numbered(number, number as usize % 200)))
}

/// More than the ring holds, in messages up to its whole length, so that both sides wait for each
/// other.
fn bulk(peer: &Peer, count: u32) -> Result<(), Finding> {
    let mut end = peer.open(1)?;
    for size in [1, 1000, LARGEST] {
        let words = [count.to_le_bytes(), (size as u32).to_le_bytes()].concat();
        send_request(&mut end, Request::Flood, &words)?;
        (0..count).try_for_each(|number| expect(&mut end, &numbered(number, size)))?;
    }
    let refused = send_request(&mut end, Request::Echo, &[0; LARGEST + 1]);
    Finding::unless(matches!(refused, Err(ChannelError::TooLong { .. })), || {
        format!("a message longer than the ring: {refused:?}")
    })
}

/// All channels at once, each by a thread of its own.
fn many_channels(peer: &Peer) -> Result<(), Finding> {
    std::thread::scope(|scope| {
        let echoes = |index| {
            let mut end = peer.open(index)?;
            (0..50).try_for_each(|number| echo(&mut end, &numbered(number * 8 + index, 100)))
        };
        let threads: Vec<_> = (0..PROGRAMS_COUNT)
            .map(|index| scope.spawn(move || echoes(index)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(Finding::new("an echo panicked")))
        })
    })
}

/// There is one endpoint on each side, and as many channels as were laid out.
fn one_at_a_time(peer: &Peer) -> Result<(), Finding> {
    let end = peer.open(0)?;
    let errno = |index| peer.node.open_channel(index).err().map(|error| error.errno);
    assert_equal("a second end", &errno(0), &Some(Errno::EBUSY))?;
    assert_equal("one channel too many", &errno(COUNT), &Some(Errno::ENOENT))?;
    drop(end);
    echo(&mut peer.open(0)?, b"again")
}

/// Signals through eventfds alone, either way. A lost one would be a wait without end.
fn by_events(peer: &Peer) -> Result<(), Finding> {
    const ROUNDS: u32 = 50;
    let mut end = peer.open(6)?;
    let (ioeventfd, irqfd) = (EventFd::new()?, EventFd::new()?);
    let no_eventfd = end.channel().as_fd();
    let bind = |event, ioeventfd, irqfd| {
        let bound = end.channel().bind_eventfds(event, Some((ioeventfd, irqfd)));
        bound.err().map(|error| error.errno)
    };
    let refused = bind(EVENT, &no_eventfd, &irqfd);
    assert_equal(
        "a descriptor that is no eventfd",
        &refused,
        &Some(Errno::EINVAL),
    )?;
    let refused = bind(EVENTS, &ioeventfd, &irqfd);
    assert_equal("an event that is none", &refused, &Some(Errno::EINVAL))?;
    assert_equal("an event", &bind(EVENT, &ioeventfd, &irqfd), &None)?;
    send_request(&mut end, Request::Events, &ROUNDS.to_le_bytes())?;
    expect(&mut end, &ROUNDS.to_le_bytes())?;
    for _ in 0..ROUNDS {
        irqfd.write(1)?;
        assert_equal("signals", &ioeventfd.read()?, &1)?;
    }
    Ok(())
}

/// An eventfd that is bound to both directions of a channel pins neither itself nor the channel.
fn by_one_eventfd(peer: &Peer) -> Result<(), Finding> {
    let end = peer.open(6)?;
    let eventfd = EventFd::new()?;
    end.channel()
        .bind_eventfds(EVENT, Some((&eventfd, &eventfd)))?;
    drop(end);
    drop(eventfd);
    peer.open(6).map(drop)
}

/// Each side sees the other disconnect, and both connect again.
fn disconnects(peer: &Peer) -> Result<(), Finding> {
    for _ in 0..3 {
        let mut end = peer.open(2)?;
        echo(&mut end, b"here")?;
        send_request(&mut end, Request::Leave, &[])?;
        let left = end.receive(&mut [0; 8], TIMEOUT);
        Finding::unless(matches!(left, Err(ChannelError::Disconnected)), || {
            format!("the node left, and the base's result was: {left:?}")
        })?;
        drop(end);
        // The base disconnects at any moment of a flood.
        let mut end = peer.open(2)?;
        send_request(&mut end, Request::Flood, &FLOOD)?;
        (0..fastrand::u32(..50)).try_for_each(|number| expect(&mut end, &numbered(number, 100)))?;
    }
    echo(&mut peer.open(2)?, b"still here")
}

/// The node overwrites the rings with random values, while the base uses them; then the base does.
fn hostile(peer: &Peer, rounds: u64) -> Result<(), Finding> {
    for round in 0..rounds {
        let mut end = peer.open(4)?;
        echo(&mut end, b"all is well")?;
        send_request(&mut end, Request::Scribble, &[])?;
        let mut buffer = [0; LARGEST];
        for _ in 0..200 {
            let brief = Duration::from_millis(round % 3);
            let sent = end.send(&Message::bytes(0, &buffer[..300]), brief);
            let received = end.receive(&mut buffer, brief);
            let gone = |error: &ChannelError| matches!(error, ChannelError::Disconnected);
            if sent.as_ref().is_err_and(gone) || received.as_ref().is_err_and(gone) {
                break;
            }
        }
        let words = end.channel().map()?;
        (0..words.count()).for_each(|word| words.store(word, u64::MAX, Ordering::Relaxed));
    }
    echo(&mut peer.open(4)?, b"all is well again")
}

/// The node's kernel is killed while the base receives from it: it has crashed, or is in the middle
/// of a flood.
fn node_dies(peer: &Peer, node: &TestNode, request: Request) -> Result<(), Finding> {
    let mut end = peer.open(5)?;
    echo(&mut end, b"alive")?;
    send_request(
        &mut end,
        request,
        if request == Request::Flood {
            &FLOOD
        } else {
            &[]
        },
    )?;
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            loop {
                if let Err(error) = end.receive(&mut [0; 100], TIMEOUT) {
                    return error;
                }
            }
        });
        insula(&["kill", &node.name])?;
        let seen = receiving.join();
        Finding::unless(matches!(seen, Ok(ChannelError::Disconnected)), || {
            format!("the node was killed, and the base's result was: {seen:?}")
        })
    })?;
    let refused = end.channel().ring().err().map(|error| error.errno);
    assert_equal("ringing an ended node", &refused, &Some(Errno::EPIPE))?;
    let refused = peer.node.open_channel(6).err().map(|error| error.errno);
    assert_equal("a channel to an ended node", &refused, &Some(Errno::EPIPE))
}
