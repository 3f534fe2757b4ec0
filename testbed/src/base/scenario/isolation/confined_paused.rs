//! A confined node is paused while its disk and its network are in use: nothing is lost, and its connections
//! go on.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime, clock_settime};

use super::CONFINED;
use crate::base::support::insula_command::{
    TIMEOUT, assert_equal, insula, insula_json, text, wait_for, with_cleanup,
};
use crate::base::support::nodes::content;
use crate::base::support::nodes::in_node::{build_image, script};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::support::virtio_modules::{NETWORK_MODULES, SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "confined_paused",
    proves: "a confined node is paused while its disk and network are in use, and nothing is lost",
    machine: Shape {
        emulator: Emulator::Backports,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(900),
    soak_limit: None,
    play,
};

const NAME: &str = "paused";
const CONTENT: &str = "/tmp/content";
const DISK: &str = "/tmp/disk.img";
const DISK_BYTES: u64 = 16 << 20;
const PROGRAMS: [&str; 10] = [
    "cat", "cmp", "date", "dd", "echo", "nc", "setsid", "sh", "sleep", "test",
];
/// Port at which the node sends back what it receives.
const ECHO: u16 = 7;
/// What the node does meanwhile: it writes to its disk, reads that back, and counts. It pauses, so that an
/// emulator can run the machine's other cores.
const WORK: &str = "setsid nc -ll -p 7 -e /bin/cat > /dev/null 2>&1 < /dev/null &
setsid sh -c 'rounds=0
while true; do
    dd if=/dev/urandom of=/run/noise bs=64k count=16 2> /dev/null
    dd if=/run/noise of=/dev/vda bs=64k oflag=direct conv=notrunc 2> /dev/null || echo failed >> /run/bad
    dd if=/dev/vda bs=64k count=16 iflag=direct 2> /dev/null | cmp -s - /run/noise || echo differs >> /run/bad
    rounds=$((rounds + 1))
    echo $rounds > /run/rounds
    sleep 0.1
done' > /dev/null 2>&1 < /dev/null &";
/// Pauses, how long each takes at least, and bytes that come back between them.
const PAUSES: u32 = 3;
const PAUSE_NS: u64 = 5_000_000_000;
const BYTES_BETWEEN: u64 = 1 << 20;
/// By how much the base's clock is set.
const SET_S: i64 = 3600;
/// Bytes sent at a time.
const PIECE: usize = 16 << 10;

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    make_files()?;
    let played = with_cleanup(|| {
        build_image(context, NAME, "6.12", &["--content", CONTENT])?;
        let before = Resources::now()?;
        start()?;
        pauses_while_it_works()?;
        its_clock_is_set()?;
        insula(&["rm", "--force", NAME])?;
        assert_unchanged(&before)
    });
    fs::remove_dir_all(CONTENT)?;
    fs::remove_file(DISK)?;
    played?;
    unload(&[&NETWORK_MODULES[..], &SOCKET_MODULES].concat())
}

fn make_files() -> Result<(), Finding> {
    fs::File::create(DISK)?.set_len(DISK_BYTES)?;
    content::make(CONTENT, &PROGRAMS)
}

fn start() -> Result<(), Finding> {
    let run = [
        "run", "--image", NAME, "--name", NAME, "--memory", "384M", "--cpus", "2",
    ];
    insula(&[&run[..], &CONFINED, &["--network", "--disk", DISK]].concat())?;
    wait_for("the node's disk", || {
        let (status, _) = script(NAME, "test -b /dev/vda")?;
        Ok((status == 0).then_some(()))
    })?;
    let (status, _) = script(NAME, WORK)?;
    assert_equal("start of its work", &status, &0)
}

/// The base's clock is set while the node is paused, and back in another pause.
fn its_clock_is_set() -> Result<(), Finding> {
    for seconds in [SET_S, -SET_S] {
        insula(&["pause", NAME])?;
        let time = clock_gettime(ClockId::CLOCK_REALTIME)? + TimeSpec::new(seconds, 0);
        clock_settime(ClockId::CLOCK_REALTIME, time)?;
        insula(&["resume", NAME])?;
        let before = clock_gettime(ClockId::CLOCK_REALTIME)?.tv_sec();
        let told: i64 = script(NAME, "date +%s")?.1.trim().parse()?;
        let after = clock_gettime(ClockId::CLOCK_REALTIME)?.tv_sec();
        Finding::unless((before - 1..=after + 1).contains(&told), || {
            format!("the node's clock says {told}, between {before} and {after}")
        })?;
    }
    Ok(())
}

/// The connection is the same all the time; the base sends, and compares what comes back.
fn pauses_while_it_works() -> Result<(), Finding> {
    let address = text(&insula_json(&["inspect", NAME])?[0]["address"]);
    let stream = wait_for("the node's port", || {
        Ok(TcpStream::connect((address.as_str(), ECHO)).ok())
    })?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let traffic = Traffic::default();
    thread::scope(|scope| {
        let sending = scope.spawn(|| traffic.send(&stream));
        let receiving = scope.spawn(|| traffic.receive(&stream));
        let paused = (0..PAUSES).try_for_each(|_| pause(&traffic));
        traffic.ends.store(true, Ordering::Relaxed);
        let panicked = |_| Err(std::io::Error::other("a thread panicked"));
        let sent = sending.join().unwrap_or_else(panicked)?;
        let received = receiving.join().unwrap_or_else(panicked)?;
        paused?;
        println!("bytes there and back: {received}");
        assert_equal("bytes that came back", &received, &sent)
    })
}

/// Lets the node work, pauses it, sees that neither bytes nor rounds come while it is paused, and that both
/// come again afterwards.
fn pause(traffic: &Traffic) -> Result<(), Finding> {
    let start = traffic.received();
    wait_for("bytes from the node", || {
        Ok((traffic.received() > start + BYTES_BETWEEN).then_some(()))
    })?;
    let rounds = disk_rounds()?;
    insula(&["pause", NAME])?;
    let ran = || Ok::<_, Finding>(insula_json(&["inspect", NAME])?[0]["ran_ns"].as_u64());
    let since = ran()?;
    // What was on its way has arrived by the first look.
    let mut before = None;
    wait_for("the pause to be over", || {
        let now = traffic.received();
        before.get_or_insert(now);
        Ok((ran()? >= since.map(|ns| ns + PAUSE_NS)).then_some(()))
    })?;
    assert_equal(
        "bytes that came meanwhile",
        &Some(traffic.received()),
        &before,
    )?;
    insula(&["resume", NAME])?;
    wait_for("the node's disk to be in use again", || {
        Ok((disk_rounds()? > rounds + 1).then_some(()))
    })?;
    let (status, bad) = script(NAME, "test ! -e /run/bad || cat /run/bad")?;
    assert_equal("errors of the disk", &(status, bad.as_str()), &(0, ""))
}

fn disk_rounds() -> Result<u64, Finding> {
    let (_, rounds) = script(NAME, "cat /run/rounds")?;
    Ok(rounds.trim().parse().unwrap_or_default())
}

/// Bytes on their way to the node and back.
#[derive(Default)]
struct Traffic {
    ends: AtomicBool,
    received: AtomicU64,
}

impl Traffic {
    const SEED: u64 = 18;

    fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Sends until it is told to end. Returns the number of bytes.
    fn send(&self, mut stream: &TcpStream) -> std::io::Result<u64> {
        let mut random = fastrand::Rng::with_seed(Self::SEED);
        let (mut piece, mut sent) = (vec![0; PIECE], 0);
        while !self.ends.load(Ordering::Relaxed) {
            random.fill(&mut piece);
            stream.write_all(&piece)?;
            sent += PIECE as u64;
        }
        stream.shutdown(Shutdown::Write)?;
        Ok(sent)
    }

    /// Compares what comes back. Returns the number of bytes.
    fn receive(&self, mut stream: &TcpStream) -> std::io::Result<u64> {
        let mut random = fastrand::Rng::with_seed(Self::SEED);
        let (mut expected, mut piece) = (vec![0; PIECE], vec![0; PIECE]);
        loop {
            match stream.read_exact(&mut piece) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            }
            random.fill(&mut expected);
            if piece != expected {
                return Err(std::io::Error::other("other bytes came back"));
            }
            self.received.fetch_add(PIECE as u64, Ordering::Relaxed);
        }
        Ok(self.received())
    }
}
