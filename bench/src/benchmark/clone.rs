//! Copies of a confined node that has booted, compared with its boot.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::base::{Finding, Shape};
use testbed::host::machine::Emulator;
use testbed::host::root::Root;

use super::{Benchmark, Row, Unit};
use crate::inside::{GUEST_ADDRESS, Inside, NetworkGuest};

const KERNEL: &str = "6.12";
const IMAGE: &str = "booted";
const SNAPSHOT: &str = "ready";
const ORIGINAL: &str = "original";
/// Numbers of copies whose memory is measured.
const COUNTS: [usize; 3] = [1, 4, 8];
const SIZE: [&str; 4] = ["--memory", "256M", "--isolation", "vmm"];
/// Addresses of nodes whose packets are waited for, and a port that nobody listens to.
const ADDRESS: &str = "10.78.0.77";
const LATER_ADDRESS: &str = "10.78.0.78";
const PORT: u16 = 9;
/// Interval of packets, and of the base's questions for the address: usually a second.
const PACKET_INTERVAL: Duration = Duration::from_millis(4);
const PACKET_TIMEOUT: Duration = Duration::from_secs(120);
/// Core of the restored guest, and how often it is restored until it answers.
const GUEST_CORE: usize = 1;
const RESTORES_MAX: u32 = 3;
/// A guest that has not answered by then hangs.
const RESTORED_TIMEOUT: Duration = Duration::from_secs(30);
/// Memory that a copy has of its own once its agent has answered.
const fn own(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "insula inspect").unit(Unit::Kibibytes)
}

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "clone",
    title: "A copy of a node that has booted, beside its boot",
    how: "A confined node of one core and 256 MiB, with an agent and a network card. *Answer* is from Enter to \
          the answer of its agent: of the copy, which takes a name and random numbers of its own then, and \
          of the node that boots. A *later* copy is the second of a snapshot: it gets pages before its start that the \
          first one has written in its. *Packet* is from Enter to the first answer to a packet, of which one is sent every \
          4 ms. *Snapshot* is `insula snapshot`, for the most part the copying of the node's memory, while the node \
          stands still. \
          Memory is what a copy does not share with the snapshot once its agent has answered. That of \
          its monitor, 2 MiB for each confined node, is not in it. A fault that makes a page its own is an exit \
          and an interrupt to the base, which cost more in emulation than on hardware.",
    machine: Shape {
        emulator: Emulator::Backports,
        cpus: 10,
        ..Shape::USUAL
    },
    root: Root::Bench,
    rounds: 2,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        Row::time(
            "clone.answer.copy",
            "a copy's agent answers",
            "insula run --image SNAPSHOT",
        )
        .beside("clone.answer.boot")
        .drawn(),
        Row::time(
            "clone.answer.later",
            "a later copy's agent answers",
            "the same once more",
        )
        .beside("clone.answer.boot")
        .drawn(),
        Row::time(
            "clone.answer.boot",
            "a booting node's agent answers",
            "insula run --image …; insula exec … -- true",
        )
        .drawn(),
        Row::time(
            "clone.packet.copy",
            "a copy's first packet",
            "insula run --image SNAPSHOT; ping …",
        )
        .beside("clone.packet.boot"),
        Row::time(
            "clone.packet.later",
            "a later copy's first packet",
            "the same once more",
        )
        .beside("clone.packet.boot"),
        Row::time(
            "clone.packet.boot",
            "a booting node's first packet",
            "insula run --image …; ping …",
        ),
        Row::time(
            "clone.packet.restored",
            "a restored microvm's first packet",
            "qemu-system-x86_64 -M microvm -incoming …; ping …",
        )
        .beside("clone.packet.boot"),
        Row::time(
            "clone.snapshot",
            "taking a snapshot",
            "insula snapshot NODE SNAPSHOT",
        ),
        own("clone.own.1", "memory of its own: the only copy").goal(293.0),
        own("clone.own.4", "memory of its own: each of 4 copies"),
        own("clone.own.8", "memory of its own: each of 8 copies"),
    ],
};

fn inside(inside: &Inside) -> Result<(), Finding> {
    inside.build_image(IMAGE, KERNEL)?;
    ask_often()?;
    for _ in 0..inside.count {
        let boot = [&["--image", IMAGE, "--network"], &SIZE[..]].concat();
        started(inside, (ORIGINAL, ADDRESS), &boot, "boot")?;
        let enter = Instant::now();
        inside.command.run(&["snapshot", ORIGINAL, SNAPSHOT])?;
        inside.record("clone.snapshot", enter.elapsed())?;
        inside.command.run(&["rm", "--force", ORIGINAL])?;
        copies(inside)?;
        inside.command.run(&["image", "rm", SNAPSHOT])?;
    }
    let mut guest = NetworkGuest::saved(inside, KERNEL, GUEST_CORE)?;
    (0..inside.count).try_for_each(|_| restored(inside, &mut guest))
}

/// Restores a virtual machine. With KVM inside the emulated machine about one in three hangs.
fn restored(inside: &Inside, guest: &mut NetworkGuest<'_>) -> Result<(), Finding> {
    for _ in 0..RESTORES_MAX {
        let enter = Instant::now();
        guest.restore()?;
        let answered = joined(first_answer(GUEST_ADDRESS, RESTORED_TIMEOUT))?;
        match answered {
            Ok(answered) => return inside.record("clone.packet.restored", answered - enter),
            Err(error) => println!("clone: a restored machine: {error}"),
        }
    }
    Err(Finding::new("no restored machine answers"))
}

fn joined<T>(thread: JoinHandle<T>) -> Result<T, Finding> {
    thread.join().map_err(|_| Finding::new("the prober failed"))
}

/// Starts a node, and records the times to its agent's answer and to its first packet.
fn started(
    inside: &Inside,
    (name, address): (&str, &'static str),
    words: &[&str],
    how: &str,
) -> Result<(), Finding> {
    let packet = first_answer(address, PACKET_TIMEOUT);
    let enter = Instant::now();
    let run = [&["run", "--name", name, "--ip", address], words].concat();
    inside.command.run(&run)?;
    if how == "boot" {
        let answers = ["exec", name, "--", "/bin/busybox", "true"];
        inside.command.run(&answers)?;
    }
    inside.record(&format!("clone.answer.{how}"), enter.elapsed())?;
    let answered = joined(packet)??;
    inside.record(&format!("clone.packet.{how}"), answered - enter)
}

/// Has the base ask for addresses in its network as often as packets are sent.
fn ask_often() -> io::Result<()> {
    let interval = PACKET_INTERVAL.as_millis().to_string();
    fs::write("/proc/sys/net/ipv4/neigh/default/retrans_time_ms", interval)
}

/// Sends packets from now on, and finds when the first one was answered: by a message that nobody listens.
fn first_answer(address: &'static str, limit: Duration) -> JoinHandle<io::Result<Instant>> {
    thread::spawn(move || {
        let socket = UdpSocket::bind(("0.0.0.0", 0))?;
        socket.set_read_timeout(Some(PACKET_INTERVAL))?;
        let began = Instant::now();
        while began.elapsed() < limit {
            let tried = socket.connect((address, PORT));
            let tried = tried.and_then(|()| socket.send(&[0]));
            match tried.and_then(|_| socket.recv(&mut [0])) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    return Ok(Instant::now());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => thread::sleep(PACKET_INTERVAL),
            }
        }
        Err(io::Error::other(format!("{address} answers no packet")))
    })
}

/// Starts copies one after the other, and records how much memory each has of its own.
fn copies(inside: &Inside) -> Result<(), Finding> {
    let most = COUNTS.into_iter().max().unwrap_or_default();
    let names: Vec<_> = (1..=most).map(|number| format!("copy-{number}")).collect();
    let mut own_kib = 0.0;
    for (name, count) in names.iter().zip(1..) {
        match count {
            1 => started(inside, (name, ADDRESS), &["--image", SNAPSHOT], "copy")?,
            2 => started(
                inside,
                (name, LATER_ADDRESS),
                &["--image", SNAPSHOT],
                "later",
            )?,
            _ => drop(
                inside
                    .command
                    .run(&["run", "--image", SNAPSHOT, "--name", name])?,
            ),
        }
        let bytes = inspect(inside, name)?["own_memory_bytes"].as_f64();
        own_kib += bytes.unwrap_or_default() / 1024.0;
        if COUNTS.contains(&count) {
            inside.record(&format!("clone.own.{count}"), own_kib / count as f64)?;
        }
    }
    let names = names.iter().map(String::as_str);
    let remove: Vec<_> = ["rm", "--force"].into_iter().chain(names).collect();
    inside.command.run(&remove).map(drop)
}

fn inspect(inside: &Inside, name: &str) -> Result<Value, Finding> {
    let text = inside.command.run(&["inspect", name])?;
    Ok(serde_json::from_str::<Value>(&text)?[0].clone())
}
