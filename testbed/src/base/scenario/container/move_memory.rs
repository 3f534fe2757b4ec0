//! A container with much memory moves while it writes to little of it: with `--pre-copy` it stands still for
//! about as long as one with hardly any memory, and all of its memory is right.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::move_linux::{build_image, wait_for_line};
use crate::base::support::insula_command::{insula, insula_json, text, try_insula, with_cleanup};
use crate::base::support::virtio_modules::{NETWORK_MODULES, SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::machine::Emulator;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "move_memory",
    proves: "the time for which a container stands still does not grow with its memory",
    machine: Shape {
        emulator: Emulator::Backports,
        thread_per_core: true,
        memory_mib: 6144,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[],
    limit: Duration::from_secs(1500),
    soak_limit: Some(Duration::from_secs(2 * 3600)),
    play,
};

/// The nodes, by their kernels' versions.
const NODES: [&str; 2] = ["6.1", "6.12"];
/// Containers with hardly any memory, and with much of it.
const SMALL: &str = "small";
const LARGE: &str = "large";
const LARGE_MIB: u64 = 256;
/// Part of the growth with memory that pre-copy may leave.
const GROWTH_LEFT: f64 = 0.25;
const TIMEOUT: Duration = Duration::from_secs(300);
/// Has memory of random bytes, as many MiB as its argument says, and goes on writing to 64 pages of it. For each byte
/// that it is sent it checks all of it.
const PROGRAM: &str = r#"
import mmap, os, random, selectors, socket, sys, zlib
PAGE, WRITTEN = 4096, 64
size = int(sys.argv[1]) << 20
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, size, 1 << 20):
    memory[at:at + (1 << 20)] = os.urandom(1 << 20)
rest = memoryview(memory)[WRITTEN * PAGE:]
sum = zlib.crc32(rest)
turn = 0
door = socket.create_server(("", 80))
chosen = selectors.DefaultSelector()
chosen.register(door, selectors.EVENT_READ)
print("ready", flush=True)
while True:
    for page in range(WRITTEN):
        memory[page * PAGE:page * PAGE + 8] = turn.to_bytes(8, "little")
    turn += 1
    for key, _ in chosen.select(0.01):
        if key.fileobj is door:
            chosen.register(door.accept()[0], selectors.EVENT_READ)
        elif key.fileobj.recv(1):
            starts = (memory[page * PAGE:page * PAGE + 8] for page in range(WRITTEN))
            is_right = zlib.crc32(rest) == sum and all(int.from_bytes(one, "little") == turn - 1 for one in starts)
            key.fileobj.sendall(b"y" if is_right else b"n")
        else:
            chosen.unregister(key.fileobj)
            key.fileobj.close()
"#;

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    with_cleanup(|| played(context))?;
    unload(&[&NETWORK_MODULES[..], &SOCKET_MODULES].concat())
}

fn played(context: &Context) -> Result<(), Finding> {
    for version in NODES {
        run_node(version, &build_image(context, version)?)?;
    }
    let mut small = Program::start(SMALL, 1)?;
    let mut large = Program::start(LARGE, LARGE_MIB)?;
    refusals()?;
    for round in 0..context.count(1, 10) {
        println!("round {round}");
        let base_ms = small.moves(false)?.min(small.moves(true)?);
        let copied_ms = large.moves(false)?;
        let pre_copied_ms = large.moves(true)?;
        context.figure("move_memory.small", base_ms, "ms")?;
        context.figure("move_memory.large", copied_ms, "ms")?;
        context.figure("move_memory.large_pre_copy", pre_copied_ms, "ms")?;
        let (growth, left) = (copied_ms - base_ms, pre_copied_ms - base_ms);
        Finding::unless(left < growth * GROWTH_LEFT, || {
            format!("{LARGE_MIB} MiB cost {growth:.0} ms, and {left:.0} ms with --pre-copy")
        })?;
    }
    // By itself it is copied before only if there is much.
    for (program, is_copied) in [(&mut small, false), (&mut large, true)] {
        let told = program.told(&[])?;
        Finding::unless(told.contains("of images after") == is_copied, || {
            told.clone()
        })?;
    }
    [small, large].into_iter().try_for_each(Program::end)?;
    NODES
        .iter()
        .try_for_each(|node| insula(&["rm", "--force", node]).map(drop))
}

/// Starts a node with room for the program's memory and for images of it.
fn run_node(name: &str, image: &str) -> Result<(), Finding> {
    let run = ["run", "--image", image, "--name", name, "--memory", "1G"];
    insula(&[&run[..], &["--network", "--rootfs", "/", "--overlay"]].concat()).map(drop)
}

fn refusals() -> Result<(), Finding> {
    try_insula(&["move", "--pre-copy", "1", NODES[1]])?.refused(1, &["keeps its memory"])?;
    try_insula(&["move", "--pre-copy", "none", NODES[1]])?.refused(1, &["no container 'none'"])
}

/// A program, as a container, whose client asks it again and again.
struct Program {
    name: &'static str,
    at: &'static str,
    ending: Arc<AtomicBool>,
    client: JoinHandle<Result<u64, String>>,
}

impl Program {
    fn start(name: &'static str, memory_mib: u64) -> Result<Self, Finding> {
        let at = NODES[0];
        let start = ["exec", "--container", name, "-d", at, "--", "python3", "-c"];
        insula(&[&start[..], &[PROGRAM, &memory_mib.to_string()]].concat())?;
        wait_for_line(name, "ready")?;
        let address = text(&insula_json(&["inspect", name])?[0]["address"]);
        let stream = TcpStream::connect((address.as_str(), 80))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let ending = Arc::<AtomicBool>::default();
        let ended = Arc::clone(&ending);
        let client = thread::spawn(move || ask_until(&ended, stream));
        Ok(Self {
            name,
            at,
            ending,
            client,
        })
    }

    /// Moves it to the other node; the time for which it stood still, in milliseconds.
    fn moves(&mut self, pre_copy: bool) -> Result<f64, Finding> {
        let option = if pre_copy {
            "--pre-copy"
        } else {
            "--no-pre-copy"
        };
        let told = self.told(&[option])?;
        let stood = told.split_once("stood still for ");
        let stood = stood.and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        stood.ok_or_else(|| Finding::new(told))
    }

    /// Moves it; what the command says.
    fn told(&mut self, options: &[&str]) -> Result<String, Finding> {
        let to = NODES[usize::from(self.at == NODES[0])];
        let told = insula(&[&["move", self.name, to], options].concat())?;
        println!("{}", told.trim_end());
        self.at = to;
        Ok(told)
    }

    fn end(self) -> Result<(), Finding> {
        self.ending.store(true, Ordering::Relaxed);
        let ended = self.client.join();
        let ended = ended.unwrap_or_else(|_| Err("its client panicked".into()));
        let answers = ended.map_err(|error| Finding::new(format!("{}: {error}", self.name)))?;
        println!("{}: {answers} answers", self.name);
        insula(&["rm", "--force", self.name]).map(drop)
    }
}

/// Has the program check its memory until it is ended, and once more then.
fn ask_until(ending: &AtomicBool, mut stream: TcpStream) -> Result<u64, String> {
    let mut answers = 0;
    loop {
        let is_last = ending.load(Ordering::Relaxed);
        let mut answer = [0];
        let asked = stream
            .write_all(b"?")
            .and_then(|()| stream.read_exact(&mut answer));
        asked.map_err(|error| format!("after {answers} answers: {error}"))?;
        if answer != *b"y" {
            return Err(format!("its memory is wrong after {answers} answers"));
        }
        answers += 1;
        if is_last {
            return Ok(answers);
        }
        thread::sleep(Duration::from_millis(200));
    }
}
