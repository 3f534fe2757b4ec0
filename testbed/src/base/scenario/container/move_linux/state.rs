//! What a tree of processes has when it is moved: `state.py` checks it there. Its peers here have unread
//! bytes both ways, halves of connections that are closed, and many connections at once.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::wait_for_line;
use crate::base::support::insula_command::{TIMEOUT, insula, insula_json, text};
use crate::base::{Context, Finding};

pub(in super::super) const PROGRAM: &str = include_str!("state.py");
/// The container.
pub(in super::super) const NAME: &str = "state";
/// What comes unread, as in the program.
const UNREAD: [u8; 4096] = {
    let mut bytes = [0; 4096];
    let mut at = 0;
    while at < bytes.len() {
        bytes[at] = at as u8;
        at += 1;
    }
    bytes
};
/// Doors of the program.
pub(in super::super) const ECHO: u16 = 80;
const HELD: u16 = 81;
pub(in super::super) const CHECK: u16 = 82;
const HELD_CLOSED: u16 = 83;
const MORE_THAN_READ: u16 = 84;
const AT_ONCE: u16 = 85;

pub(super) fn play(source: &str, target: &str, context: &Context) -> Result<(), Finding> {
    let start = ["exec", "--container", NAME, "-d", source, "--"];
    insula(&[&start[..], &["python3", "-c", PROGRAM]].concat())?;
    wait_for_line(NAME, "ready")?;
    let address = text(&insula_json(&["inspect", NAME])?[0]["address"]);
    let mut many = Vec::new();
    for _ in 0..context.count(50, 1000) {
        many.push(connect(&address, ECHO)?);
    }
    let mut checks = connect(&address, CHECK)?;
    check(&mut checks)?;
    let short = Short::start(&address);
    for node in [target, source] {
        let peers = Peers::open(&address)?;
        let moved = insula(&["move", NAME, node])?;
        println!("{} connections: {}", many.len(), moved.trim_end());
        let when = |error: Finding| error.when(&format!("{NAME} on {node}"));
        echo(&mut many).map_err(when)?;
        check(&mut checks).map_err(when)?;
        peers.get_the_rest().map_err(when)?;
    }
    short.end()?;
    drop((many, checks));
    insula(&["rm", "--force", NAME]).map(drop)
}

pub(in super::super) fn connect(address: &str, port: u16) -> Result<TcpStream, Finding> {
    let stream = TcpStream::connect((address, port))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// Has the program check what it has.
pub(in super::super) fn check(checks: &mut TcpStream) -> Result<(), Finding> {
    checks.write_all(b"?")?;
    let (mut told, mut byte) = (Vec::new(), [0]);
    while byte != *b"\n" {
        checks.read_exact(&mut byte)?;
        told.extend(byte);
    }
    let told = String::from_utf8_lossy(&told).into_owned();
    Finding::unless(told == "ok\n", || told.clone())
}

/// Each of many connections goes on.
pub(in super::super) fn echo(many: &mut [TcpStream]) -> Result<(), Finding> {
    for (number, stream) in many.iter_mut().enumerate() {
        stream.write_all(&number.to_le_bytes())?;
    }
    for (number, stream) in many.iter_mut().enumerate() {
        let mut back = [0; size_of::<usize>()];
        stream.read_exact(&mut back)?;
        let back = usize::from_le_bytes(back);
        Finding::unless(back == number, || format!("{back} for connection {number}"))?;
    }
    Ok(())
}

/// Connections with bytes that nobody has read.
struct Peers {
    /// Ours is open, ours is closed, and the program's is closed.
    held: TcpStream,
    half: TcpStream,
    closed: TcpStream,
    /// With more bytes for us than it could send.
    full: TcpStream,
}

impl Peers {
    fn open(address: &str) -> Result<Self, Finding> {
        let mut peers = Self {
            held: connect(address, HELD)?,
            half: connect(address, HELD)?,
            closed: connect(address, HELD_CLOSED)?,
            full: connect(address, MORE_THAN_READ)?,
        };
        for one in [&mut peers.held, &mut peers.half, &mut peers.closed] {
            one.write_all(&UNREAD)?;
        }
        peers.half.shutdown(Shutdown::Write)?;
        // The program has closed its half once that is read here.
        Finding::unless(peers.closed.read(&mut [0])? == 0, || "bytes came".into())?;
        Ok(peers)
    }

    /// The program has read theirs by now, and ours are all there.
    fn get_the_rest(mut self) -> Result<(), Finding> {
        for (name, one) in [("open", &mut self.held), ("half closed", &mut self.half)] {
            let mut late = Vec::new();
            one.read_to_end(&mut late)?;
            Finding::unless(late == b"late", || format!("{late:?} on the {name} one"))?;
        }
        Finding::unless(self.closed.read(&mut [0])? == 0, || "bytes came".into())?;
        self.full.write_all(b"?")?;
        let (mut all, mut piece) = (Vec::new(), vec![0; 1 << 16]);
        while !has_its_length(&all) {
            let count = self.full.read(&mut piece)?;
            Finding::unless(count > 0, || format!("it ended after {} bytes", all.len()))?;
            all.extend_from_slice(&piece[..count]);
        }
        all.truncate(all.len() - 8);
        let wanted = UNREAD.iter().cycle();
        let is_right = all.iter().zip(wanted).all(|(one, other)| one == other);
        Finding::unless(is_right, || "other bytes than were sent".into())
    }
}

/// Whether the last eight bytes tell how many were before them.
fn has_its_length(all: &[u8]) -> bool {
    match all.split_last_chunk() {
        Some((before, last)) => u64::from_le_bytes(*last) == before.len() as u64,
        None => false,
    }
}

/// Connects again and again, to be sent bytes by a program that closes the connection at once.
struct Short {
    ending: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64, String>>,
}

impl Short {
    fn start(address: &str) -> Self {
        let ending = Arc::<AtomicBool>::default();
        let (ended, address) = (Arc::clone(&ending), address.to_owned());
        let thread = thread::spawn(move || {
            let mut count = 0;
            while !ended.load(Ordering::Relaxed) {
                let got = read_all(&address).map_err(|error| format!("after {count}: {error}"))?;
                if got != UNREAD {
                    return Err(format!("{} bytes came after {count} others", got.len()));
                }
                count += 1;
            }
            Ok(count)
        });
        Self { ending, thread }
    }

    fn end(self) -> Result<(), Finding> {
        self.ending.store(true, Ordering::Relaxed);
        let ended = self.thread.join();
        let count = ended.unwrap_or_else(|_| Err("it panicked".into()));
        let count = count.map_err(|error| Finding::new(format!("short connections: {error}")))?;
        println!("{count} short connections");
        Finding::unless(count > 0, || "no short connection was made".into())
    }
}

fn read_all(address: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect((address, AT_ONCE))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut got = Vec::new();
    match stream.read_to_end(&mut got) {
        // It can tell no more than that the bytes were not all.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        read => drop(read?),
    }
    Ok(got)
}
