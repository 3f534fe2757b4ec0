//! Channels between the base and a Linux node.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use insula::channel::{COUNT, ChannelError, End, PROGRAMS_COUNT, Side};
use insula::driver::Driver;
use insula::name::Name;
use insula::reach::{NotTheirs, Reach};
use insula_abi::channel::{
    CHANNELS_MAX, Channels, EVENTS, Pages, Right, SLOTS_MAX, SLOTS_MIN, area_size,
};
use insula_abi::{GRANULE, NUMA_ANY};
use insula_channel::{Message, Words};
use nix::errno::Errno;
use nix::sys::eventfd::EventFd;
use zerocopy::IntoBytes;

use super::insula_command::{PATIENCE, assert_equal, attended, insula, wait_for};
use super::lent_pages::PAGE;
use super::peer_node::Peer;
use super::test_node::{TestNode, peer_image};
use super::{Context, Finding, Module, Scenario, Shape};
use crate::kernels::Flavour;
use crate::peer::{EVENT, Request, numbered};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "channels",
    proves: "base and node talk through rings; no ring is lost, and no peer does harm",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_1],
    limit: Duration::from_secs(400),
    soak_limit: Some(Duration::from_secs(1800)),
    play,
};

/// What asks for more messages of 100 bytes than anybody waits for.
const FLOOD: [u8; 8] = [0xff, 0xff, 0xff, 0, 100, 0, 0, 0];
/// The largest message that goes through a ring of a node's channels.
const LARGEST: usize = 256 * 56;

fn play(context: &Context) -> Result<(), Finding> {
    attended(|| {
        nonsense()?;
        for (version, end) in [("6.1", Request::Crash), ("6.12", Request::Flood)] {
            let told = |error: Finding| error.when(&format!("with a node of {version}"));
            with_node(context, version, end).map_err(told)?;
        }
        Ok(())
    })
}

/// Channels that cannot be are refused; those of a node that never starts hang up with it.
fn nonsense() -> Result<(), Finding> {
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
    ask(&mut channel, Request::Echo, b"to nobody")?;
    let brief = Duration::from_millis(1);
    let silence = channel.receive(&mut [0; 8], brief);
    Finding::unless(matches!(silence, Err(ChannelError::TimedOut(_))), || {
        format!("a node that does not run answered: {silence:?}")
    })?;
    drop(node);
    let gone = channel.receive(&mut [0; 8], PATIENCE);
    Finding::unless(matches!(gone, Err(ChannelError::HungUp)), || {
        format!("a node that is gone answered: {gone:?}")
    })
}

/// The node is killed when it has been asked to `end`.
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
    references(&peer)?;
    leaving(&peer)?;
    doorbell_moves(&peer, context.count(30, 3000))?;
    hostile(&peer, context.count(10, 500))?;
    node_dies(&peer, &node, end)?;
    insula(&["rm", "--force", &name]).map(drop)
}

fn ask(end: &mut End, request: Request, bytes: &[u8]) -> Result<(), ChannelError> {
    end.send(&Message::bytes(request as u8, bytes), PATIENCE)
}

/// Sends bytes that must come back.
fn echo(end: &mut End, bytes: &[u8]) -> Result<(), Finding> {
    ask(end, Request::Echo, bytes)?;
    expect(end, bytes)
}

fn expect(end: &mut End, bytes: &[u8]) -> Result<(), Finding> {
    let mut buffer = vec![0; LARGEST];
    let received = end.receive(&mut buffer, PATIENCE)?;
    Finding::unless(received.bytes(&buffer) == bytes, || {
        let came = received.bytes(&buffer);
        format!(
            "{} other bytes came than the {} expected",
            came.len(),
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
        ask(&mut end, Request::Flood, &words)?;
        (0..count).try_for_each(|number| expect(&mut end, &numbered(number, size)))?;
    }
    let refused = ask(&mut end, Request::Echo, &[0; LARGEST + 1]);
    Finding::unless(matches!(refused, Err(ChannelError::TooLong { .. })), || {
        format!("a message longer than the ring: {refused:?}")
    })
}

/// All channels at once, each by a thread of its own.
fn many_channels(peer: &Peer) -> Result<(), Finding> {
    std::thread::scope(|scope| {
        let talk = |index| {
            let mut end = peer.open(index)?;
            (0..50).try_for_each(|number| echo(&mut end, &numbered(number * 8 + index, 100)))
        };
        let talks: Vec<_> = (0..PROGRAMS_COUNT)
            .map(|index| scope.spawn(move || talk(index)))
            .collect();
        talks.into_iter().try_for_each(|talk| {
            talk.join()
                .unwrap_or_else(|_| Err(Finding::new("talking failed")))
        })
    })
}

/// There is one end on each side, and as many channels as were laid out.
fn one_at_a_time(peer: &Peer) -> Result<(), Finding> {
    let end = peer.open(0)?;
    let errno = |index| peer.node.open_channel(index).err().map(|error| error.errno);
    assert_equal("a second end", &errno(0), &Some(Errno::EBUSY))?;
    assert_equal("one channel too many", &errno(COUNT), &Some(Errno::ENOENT))?;
    drop(end);
    echo(&mut peer.open(0)?, b"again")
}

/// Signals through eventfds alone, either way. One that is lost would be a wait without end.
fn by_events(peer: &Peer) -> Result<(), Finding> {
    const ROUNDS: u32 = 50;
    let mut end = peer.open(6)?;
    let (incoming, outgoing) = (EventFd::new()?, EventFd::new()?);
    let no_eventfd = end.channel().as_fd();
    let bind = |event, incoming, outgoing| {
        let bound = end.channel().bind_event(event, Some((incoming, outgoing)));
        bound.err().map(|error| error.errno)
    };
    let refused = bind(EVENT, &no_eventfd, &outgoing);
    assert_equal("what is no eventfd", &refused, &Some(Errno::EINVAL))?;
    let refused = bind(EVENTS, &incoming, &outgoing);
    assert_equal("an event that is none", &refused, &Some(Errno::EINVAL))?;
    assert_equal("an event", &bind(EVENT, &incoming, &outgoing), &None)?;
    ask(&mut end, Request::Events, &ROUNDS.to_le_bytes())?;
    expect(&mut end, &ROUNDS.to_le_bytes())?;
    for _ in 0..ROUNDS {
        outgoing.write(1)?;
        assert_equal("signals", &incoming.read()?, &1)?;
    }
    Ok(())
}

/// An eventfd that is told and tells keeps neither itself nor the end that it is bound to.
fn by_one_eventfd(peer: &Peer) -> Result<(), Finding> {
    let end = peer.open(6)?;
    let eventfd = EventFd::new()?;
    end.channel()
        .bind_event(EVENT, Some((&eventfd, &eventfd)))?;
    drop(end);
    drop(eventfd);
    peer.open(6).map(drop)
}

/// The node names pages in its messages: its own, what the base has granted it, and what is neither.
fn references(peer: &Peer) -> Result<(), Finding> {
    let mut end = peer.open(7)?;
    let own = peer.node.memory()?.chunks()?;
    let first = own.first().map_or(0, |chunk| chunk.start);
    assert_claim(
        &mut end,
        first,
        Right::LENT,
        Some(NotTheirs::Elsewhere(1, first)),
    )?;
    *end.reach() = Reach::new(&own);
    assert_claim(&mut end, first, Right::MOVED, None)?;

    // A page of this process, of which no other part is granted with it.
    let room = vec![1_u8; 2 * PAGE];
    let address = room[room.as_ptr().align_offset(PAGE)..].as_ptr() as u64;
    let lender = peer.node.lend(PATIENCE.min(Duration::from_secs(10)))?;
    let granted = lender.grant(address, PAGE as u64, false)?;
    let page = granted.first().copied().unwrap_or_default();
    assert_claim(
        &mut end,
        page,
        Right::GRANTED,
        Some(NotTheirs::Elsewhere(1, page)),
    )?;
    end.reach().grant(&granted);
    assert_claim(&mut end, page, Right::GRANTED, None)?;
    assert_claim(
        &mut end,
        page,
        Right::MOVED,
        Some(NotTheirs::Borrowed(1, page)),
    )?;
    lender.take(address, PAGE as u64)?;
    end.reach().take_all();
    assert_claim(
        &mut end,
        page,
        Right::GRANTED,
        Some(NotTheirs::Elsewhere(1, page)),
    )
}

/// Has the node send a reference to a page, which must be received, or refused in that way; what
/// comes after it is received all the same.
fn assert_claim(
    end: &mut End,
    start: u64,
    right: Right,
    refusal: Option<NotTheirs>,
) -> Result<(), Finding> {
    let reference = Pages {
        start,
        count: 1,
        right,
    };
    ask(
        end,
        Request::Refer,
        &[reference.as_bytes(), b"its bytes"].concat(),
    )?;
    let mut buffer = [0; 64];
    let refused = match end.receive(&mut buffer, PATIENCE) {
        Ok(received) => {
            assert_equal(
                "pages",
                &received.pages(&buffer).collect::<Vec<_>>(),
                &vec![reference],
            )?;
            assert_equal("bytes", &received.bytes(&buffer), &b"its bytes".as_slice())?;
            None
        }
        Err(ChannelError::NotTheirs(refused)) => Some(refused),
        Err(error) => return Err(error.into()),
    };
    assert_equal("the refusal", &refused, &refusal)?;
    echo(end, b"and so on")
}

/// Each side sees the other leave, and both meet again.
fn leaving(peer: &Peer) -> Result<(), Finding> {
    for _ in 0..3 {
        let mut end = peer.open(2)?;
        echo(&mut end, b"here")?;
        ask(&mut end, Request::Leave, &[])?;
        let left = end.receive(&mut [0; 8], PATIENCE);
        Finding::unless(matches!(left, Err(ChannelError::HungUp)), || {
            format!("the node left, and the base saw: {left:?}")
        })?;
        drop(end);
        // Now the base leaves in the middle of a flood, at any moment of it.
        let mut end = peer.open(2)?;
        ask(&mut end, Request::Flood, &FLOOD)?;
        (0..fastrand::u32(..50)).try_for_each(|number| expect(&mut end, &numbered(number, 100)))?;
    }
    echo(&mut peer.open(2)?, b"still here")
}

/// The base's doorbell is sent from core to core, and a core is switched off under it, while both
/// sides go to sleep all the time. A lost ring would be a wait without end.
fn doorbell_moves(peer: &Peer, moves: u64) -> Result<(), Finding> {
    let mut end = peer.open(3)?;
    echo(&mut end, b"ready")?;
    let moved = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            let result = move_about(moves);
            moved.store(true, Ordering::Relaxed);
            result
        });
        let mut number = 0;
        let mut talk = || {
            while !moved.load(Ordering::Relaxed) {
                echo(&mut end, &numbered(number, 30))?;
                number += 1;
            }
            Ok(())
        };
        let talked = talk();
        let moved = mover
            .join()
            .unwrap_or_else(|_| Err(Finding::new("moving failed")));
        talked.and(moved)
    })
}

fn move_about(moves: u64) -> Result<(), Finding> {
    let switch = Path::new("/sys/devices/system/cpu/cpu1/online");
    let interrupts = doorbells()?;
    Finding::unless(!interrupts.is_empty(), || {
        "no doorbell in /proc/interrupts".into()
    })?;
    for round in 0..moves {
        let core = if round % 2 == 0 { "1" } else { "0" };
        for interrupt in &interrupts {
            // Its last move may not be over yet.
            wait_for("an interrupt to be moved", || {
                match fs::write(interrupt.join("smp_affinity_list"), core) {
                    Err(error) if error.raw_os_error() == Some(Errno::EBUSY as i32) => Ok(None),
                    result => Ok(Some(result?)),
                }
            })?;
        }
        if round % 8 == 0 {
            fs::write(switch, "0")?;
            fs::write(switch, "1")?;
        }
    }
    Ok(())
}

/// The doorbells' folders in /proc/irq.
fn doorbells() -> Result<BTreeSet<PathBuf>, Finding> {
    let interrupts = fs::read_to_string("/proc/interrupts")?;
    let ours = interrupts.lines().filter(|line| line.ends_with(" insula"));
    let numbers = ours.filter_map(|line| line.split(':').next());
    Ok(numbers
        .map(|number| Path::new("/proc/irq").join(number.trim()))
        .collect())
}

/// The node writes anything anywhere into the rings, while the base uses them; then the base does.
fn hostile(peer: &Peer, rounds: u64) -> Result<(), Finding> {
    for round in 0..rounds {
        let mut end = peer.open(4)?;
        echo(&mut end, b"all is well")?;
        ask(&mut end, Request::Scribble, &[])?;
        let mut buffer = [0; LARGEST];
        for _ in 0..200 {
            let brief = Duration::from_millis(round % 3);
            let sent = end.send(&Message::bytes(0, &buffer[..300]), brief);
            let received = end.receive(&mut buffer, brief);
            let gone = |error: &ChannelError| matches!(error, ChannelError::HungUp);
            if sent.as_ref().is_err_and(gone) || received.as_ref().is_err_and(gone) {
                break;
            }
        }
        let words = end.channel().map()?;
        (0..words.count()).for_each(|word| words.store(word, u64::MAX, Ordering::Relaxed));
    }
    echo(&mut peer.open(4)?, b"all is well again")
}

/// The node's kernel is killed while the base receives what the node sends: it has crashed, or is in
/// the middle of a flood.
fn node_dies(peer: &Peer, node: &TestNode, request: Request) -> Result<(), Finding> {
    let mut end = peer.open(5)?;
    echo(&mut end, b"alive")?;
    ask(
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
                if let Err(error) = end.receive(&mut [0; 100], PATIENCE) {
                    return error;
                }
            }
        });
        insula(&["kill", &node.name])?;
        let seen = receiving.join();
        Finding::unless(matches!(seen, Ok(ChannelError::HungUp)), || {
            format!("the node was killed, and the base saw: {seen:?}")
        })
    })?;
    let refused = end.channel().ring().err().map(|error| error.errno);
    assert_equal("ringing a dead node", &refused, &Some(Errno::EPIPE))?;
    let refused = peer.node.open_channel(6).err().map(|error| error.errno);
    assert_equal("a channel to a dead node", &refused, &Some(Errno::EPIPE))
}
