//! A server moves to another kernel while clients use it.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use testbed::base::{Finding, Shape};
use testbed::host::payload::equipment::{CRIU_PATH, MODULES_PATH};
use testbed::host::root::Root;

use super::{Benchmark, Row};
use crate::inside::{Inside, run};

/// Kernels of the nodes, which are named by them.
const SOURCE: &str = "6.1";
const TARGET: &str = "6.12";
/// Node of the lightweight kernel.
const QUIET: &str = "quiet";
/// The container.
const NAME: &str = "moved";
/// Address of the server that plain CRIU moves, and its port.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 78, 200, 7);
const PORT: u16 = 80;
/// Its process id, which must be free in both nodes.
const PID: &str = "7000";
/// Loads: connections, MB of memory, and both as in ids.
const LOADS: [(usize, usize, &str); 4] = [
    (1, 10, "1-10"),
    (100, 10, "100-10"),
    (1, 100, "1-100"),
    (100, 100, "100-100"),
];
/// Bytes of a request and its answer.
const REQUEST: [u8; 64] = [7; 64];
/// Time that an answer may take.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Requests of each connection before a move, and after it.
const REQUESTS: u64 = 5;

/// Has so many MB of memory, and echoes. Its only argument is their number.
const SERVER: &str = r#"
import os, selectors, socket, sys
memory = bytearray(os.urandom(1 << 20) * int(sys.argv[1]))
door = socket.create_server(("", int(sys.argv[2])), backlog=256)
chosen = selectors.DefaultSelector()
chosen.register(door, selectors.EVENT_READ)
while True:
    for key, _ in chosen.select():
        if key.fileobj is door:
            chosen.register(door.accept()[0], selectors.EVENT_READ)
        elif some := key.fileobj.recv(65536):
            key.fileobj.sendall(some)
        else:
            chosen.unregister(key.fileobj)
            key.fileobj.close()
"#;

/// Rows of one way of moving a server, by its part of the ids.
macro_rules! rows {
    ($($way:literal $what:literal $command:literal;)+) => { &[
        $(
            row(concat!("move.", $way, ".gap-1-10"), concat!($what, ": gap, 1 connection, 10 MB"), $command).drawn(),
            row(concat!("move.", $way, ".gap-100-10"), concat!($what, ": gap, 100 connections, 10 MB"), ""),
            row(concat!("move.", $way, ".gap-1-100"), concat!($what, ": gap, 1 connection, 100 MB"), "").drawn(),
            row(concat!("move.", $way, ".gap-100-100"), concat!($what, ": gap, 100 connections, 100 MB"), ""),
            row(concat!("move.", $way, ".frozen-1-10"), concat!($what, ": frozen, 1 connection, 10 MB"), ""),
            row(concat!("move.", $way, ".frozen-100-10"), concat!($what, ": frozen, 100 connections, 10 MB"), ""),
            row(concat!("move.", $way, ".frozen-1-100"), concat!($what, ": frozen, 1 connection, 100 MB"), ""),
            row(concat!("move.", $way, ".frozen-100-100"), concat!($what, ": frozen, 100 connections, 100 MB"), ""),
        )+
        Row::time("move.share-1-10", "gap by insula / by CRIU, 1 connection, 10 MB", "").unit(super::Unit::Share).goal(0.2),
        Row::time("move.share-100-100", "the same, 100 connections, 100 MB", "").unit(super::Unit::Share).goal(0.2),
        Row::time("move.share-to-lwk-1-10", "gap to the lightweight kernel / by CRIU, 1 connection, 10 MB", "").unit(super::Unit::Share).goal(0.05),
        Row::time("move.share-to-lwk-100-100", "the same, 100 connections, 100 MB", "").unit(super::Unit::Share).goal(0.05),
    ] };
}

const fn row(id: &'static str, what: &'static str, command: &'static str) -> Row {
    Row::time(id, what, command)
}

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "move",
    title: "Moving a server",
    how: "A Python server with 1 or 100 connections and 10 or 100 MB of memory. Its clients, on the base, \
          make one request of 64 bytes after the other; the *gap* is the longest one of all. *Insula*: a container \
          from a node with 6.1 to one with 6.12 (`insula move`), *frozen* is what the command tells. *CRIU*: the same CRIU, \
          by itself, between the same nodes: dumped with its own lock of the network (by nftables, since the nodes \
          have no iptables), the files copied by `insula cp`, the address moved to the other node, restored; *frozen* is from the start of the \
          dump to the end of the restore. *To* and *from* the lightweight kernel: a process of the base \
          (`insula move PID NODE`, `insula move PID base`).",
    machine: Shape {
        memory_mib: 6144,
        ..Shape::USUAL
    },
    root: Root::Test,
    rounds: 1,
    inside,
    outside: None,
    counted: None,
    rows: rows! {
        "insula" "by insula" "insula move CONTAINER NODE";
        "criu" "by plain CRIU" "criu dump; insula cp; criu restore";
        "to-lwk" "to the lightweight kernel" "insula move PID NODE";
        "from-lwk" "back from the lightweight kernel" "insula move PID base";
    },
};

fn inside(inside: &Inside) -> Result<(), Finding> {
    run(Command::new("modprobe").arg("vhost_vsock"))?;
    let lwk = [
        "run", "--image", "lwk", "--cpus", "1", "--memory", "512M", "--name", QUIET,
    ];
    for version in [SOURCE, TARGET] {
        start_node(inside, version)?;
    }
    for _ in 0..inside.count {
        for (connections, mb, load) in LOADS {
            let by_insula = container(inside, connections, mb)?;
            record(inside, "insula", load, by_insula)?;
            let by_criu = criu(inside, connections, mb)?;
            record(inside, "criu", load, by_criu)?;
            inside.command.run(&lwk)?;
            let (to, from) = process(inside, connections, mb)?;
            inside.command.run(&["rm", "--force", QUIET])?;
            record(inside, "to-lwk", load, to)?;
            record(inside, "from-lwk", load, from)?;
            if load == "1-10" || load == "100-100" {
                let share = |one: Moved| one.gap.as_secs_f64() / by_criu.gap.as_secs_f64();
                inside.record(&format!("move.share-{load}"), share(by_insula))?;
                inside.record(&format!("move.share-to-lwk-{load}"), share(to))?;
            }
        }
    }
    inside
        .command
        .run(&["rm", "--force", SOURCE, TARGET])
        .map(drop)
}

/// What a move cost.
#[derive(Clone, Copy)]
struct Moved {
    gap: Duration,
    frozen: Duration,
}

fn record(inside: &Inside, way: &str, load: &str, moved: Moved) -> Result<(), Finding> {
    inside.record(&format!("move.{way}.gap-{load}"), moved.gap)?;
    inside.record(&format!("move.{way}.frozen-{load}"), moved.frozen)
}

fn start_node(inside: &Inside, version: &str) -> Result<(), Finding> {
    let kernel = inside.kernel(version)?;
    let release = kernel.to_string_lossy();
    let release = release.split_once('-').map_or("", |(_, release)| release);
    let (modules, criu) = (
        format!("{MODULES_PATH}/{release}"),
        format!("--criu={CRIU_PATH}"),
    );
    let build = ["image", "build", version, "--installed", release];
    inside
        .command
        .run(&[&build[..], &["--module-folder", &modules, &criu]].concat())?;
    let run = [
        "run", "--image", version, "--name", version, "--memory", "1G",
    ];
    let root = ["--network", "--rootfs", "/", "--overlay"];
    inside.command.run(&[&run[..], &root].concat()).map(drop)
}

/// By `insula move`, of a container.
fn container(inside: &Inside, connections: usize, mb: usize) -> Result<Moved, Finding> {
    let (mb, port) = (mb.to_string(), PORT.to_string());
    let start = ["exec", "--container", NAME, "-d", SOURCE, "--"];
    let server = ["python3", "-c", SERVER, &mb, &port];
    inside.command.run(&[&start[..], &server].concat())?;
    let found: serde_json::Value = serde_json::from_str(&inside.command.run(&["inspect", NAME])?)?;
    let address = found[0]["address"].as_str().unwrap_or_default().to_owned();
    let clients = Clients::start(&address, PORT, connections)?;
    let told = inside.command.run(&["move", NAME, TARGET])?;
    let gap = clients.end()?;
    inside.command.run(&["rm", "--force", NAME])?;
    Ok(Moved {
        gap,
        frozen: told_ms(&told, "stood still for ")?,
    })
}

/// The time in milliseconds that a command has told after these words.
fn told_ms(told: &str, after: &str) -> Result<Duration, Finding> {
    let ms = told.split_once(after).and_then(|(_, rest)| {
        let ms: f64 = rest.split_whitespace().next()?.parse().ok()?;
        Some(Duration::from_secs_f64(ms / 1e3))
    });
    ms.ok_or_else(|| Finding::new(format!("no time in `{told}`")))
}

/// By CRIU itself, of a process of the nodes' roots.
fn criu(inside: &Inside, connections: usize, mb: usize) -> Result<Moved, Finding> {
    for node in [SOURCE, TARGET] {
        on(
            inside,
            node,
            "rm -rf /run/dumped; mkdir /run/dumped; modprobe nf_tables",
        )?;
    }
    let card = format!(
        "ip addr add {ADDRESS}/16 dev \"$(ip -o route get 10.78.0.1 | sed 's/.* dev \\([^ ]*\\).*/\\1/')\""
    );
    on(inside, SOURCE, &card)?;
    fs::write("/run/server.py", SERVER)?;
    inside
        .command
        .run(&["cp", "/run/server.py", &format!("{SOURCE}:/run/server.py")])?;
    inside
        .command
        .run(&["cp", "/run/server.py", &format!("{TARGET}:/run/server.py")])?;
    let before = PID.parse::<u32>().unwrap_or_default() - 1;
    let start = format!(
        "echo {before} > /proc/sys/kernel/ns_last_pid; \
         setsid sh -c 'exec python3 /run/server.py {mb} {PORT}' < /dev/null > /dev/null 2>&1 & \
         echo $!; test $! = {PID}"
    );
    on(inside, SOURCE, &start)?;
    points_to(inside, SOURCE)?;
    let clients = Clients::start(&ADDRESS.to_string(), PORT, connections)?;
    let began = Instant::now();
    let options = "--tcp-established --network-lock nftables --manage-cgroups=ignore --images-dir /run/dumped --log-file log";
    let criu = "/run/insula/criu/ld.so --library-path /run/insula/criu /run/insula/criu/criu";
    on(
        inside,
        SOURCE,
        &format!(
            "{criu} dump --tree {PID} {options} || {{ grep Error /run/dumped/log >&2; exit 1; }}"
        ),
    )?;
    on(inside, SOURCE, &card.replace("addr add", "addr del"))?;
    let [from, to] = [
        format!("{SOURCE}:/run/dumped/."),
        format!("{TARGET}:/run/dumped"),
    ];
    inside.command.run(&["cp", &from, &to])?;
    on(inside, TARGET, &card)?;
    points_to(inside, TARGET)?;
    on(
        inside,
        TARGET,
        &format!(
            "{criu} restore --restore-detached {options} || {{ grep Error /run/dumped/log >&2; exit 1; }}"
        ),
    )?;
    let frozen = began.elapsed();
    let gap = clients.end()?;
    on(inside, TARGET, &format!("kill -9 {PID}"))?;
    on(inside, TARGET, &card.replace("addr add", "addr del"))?;
    Ok(Moved { gap, frozen })
}

fn on(inside: &Inside, node: &str, script: &str) -> Result<(), Finding> {
    inside
        .command
        .run(&["exec", node, "--", "sh", "-c", script])
        .map(drop)
}

/// Has the base send packets for the address to that node.
fn points_to(inside: &Inside, node: &str) -> Result<(), Finding> {
    let card = inside.command.run(&[
        "exec", node, "--", "sh", "-c",
        "cat \"/sys/class/net/$(ip -o route get 10.78.0.1 | sed 's/.* dev \\([^ ]*\\).*/\\1/')/address\"",
    ])?;
    let address = ADDRESS.to_string();
    let replace = [
        "neigh",
        "replace",
        &address,
        "lladdr",
        card.trim(),
        "dev",
        "insula0",
    ];
    run(Command::new("ip").args(replace)).map(drop)
}

/// To the lightweight kernel and back, of a process of the base.
fn process(inside: &Inside, connections: usize, mb: usize) -> Result<(Moved, Moved), Finding> {
    let port = PORT + 8000;
    let mut server = Server(
        Command::new("python3")
            .args(["-c", SERVER, &mb.to_string(), &port.to_string()])
            .stdin(Stdio::null())
            .spawn()?,
    );
    let pid = server.0.id().to_string();
    let mut moves = Vec::new();
    for node in [QUIET, "base"] {
        let clients = Clients::start("127.0.0.1", port, connections)?;
        let told = inside.command.run(&["move", &pid, node])?;
        let gap = clients.end()?;
        let frozen = told_ms(&told, "stopped for ")?;
        moves.push(Moved { gap, frozen });
    }
    Finding::unless(server.0.try_wait()?.is_none(), || {
        "the server has ended".into()
    })?;
    Ok((moves[0], moves[1]))
}

/// A server on the base, until this is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Clients that make one request after the other, each on the next connection.
struct Clients {
    made: Arc<AtomicU64>,
    ending: Arc<AtomicBool>,
    connections: u64,
    thread: JoinHandle<Result<Duration, String>>,
}

impl Clients {
    /// Connects once the server listens, and returns when each connection has been used.
    fn start(address: &str, port: u16, connections: usize) -> Result<Self, Finding> {
        let mut all = Vec::new();
        for _ in 0..connections {
            all.push(connect(address, port)?);
        }
        let (made, ending) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (counted, ended) = (Arc::clone(&made), Arc::clone(&ending));
        let thread = thread::spawn(move || {
            let mut longest = Duration::ZERO;
            for number in (0..all.len()).cycle() {
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                let began = Instant::now();
                request(&mut all[number]).map_err(|error| error.to_string())?;
                longest = longest.max(began.elapsed());
                counted.fetch_add(1, Ordering::Relaxed);
            }
            Ok(longest)
        });
        let clients = Self {
            made,
            ending,
            connections: connections as u64,
            thread,
        };
        clients.go_on()?;
        Ok(clients)
    }

    /// Waits until each connection has been used some times more.
    fn go_on(&self) -> Result<(), Finding> {
        let wanted = self.made.load(Ordering::Relaxed) + REQUESTS * self.connections;
        let began = Instant::now();
        while self.made.load(Ordering::Relaxed) < wanted {
            let fails = self.thread.is_finished() || began.elapsed() > TIMEOUT;
            Finding::unless(!fails, || "the server does not answer".into())?;
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Ends them once each connection has been used again: the longest request.
    fn end(self) -> Result<Duration, Finding> {
        self.go_on()?;
        self.ending.store(true, Ordering::Relaxed);
        let ended = self.thread.join();
        let ended = ended.unwrap_or_else(|_| Err("it panicked".into()));
        ended.map_err(|error| Finding::new(format!("a request: {error}")))
    }
}

fn connect(address: &str, port: u16) -> Result<TcpStream, Finding> {
    let began = Instant::now();
    loop {
        match TcpStream::connect((address, port)) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                return Ok(stream);
            }
            // It has to fill its memory first.
            Err(error) if began.elapsed() > TIMEOUT => return Err(error.into()),
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn request(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(&REQUEST)?;
    let mut answer = [0; REQUEST.len()];
    stream.read_exact(&mut answer)
}
