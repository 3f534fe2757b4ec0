//! Bytes to a node and back, with checksums of both.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::FOLDER;
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, wait_for};

/// Serves in a node; connects from the base. Each way has random bytes of its own; at the end both
/// report the checksum of what they have sent.
const PROGRAM: &str = r#"
import hashlib, os, socket, sys

PIECE = 1 << 20

def send(peer, count):
    piece, sum = os.urandom(PIECE), hashlib.sha256()
    while count:
        some = memoryview(piece)[:min(count, PIECE)]
        peer.sendall(some)
        sum.update(some)
        count -= len(some)
        # No two pieces are alike.
        piece = piece[7919:] + piece[:7919]
    peer.sendall(sum.digest())

def receive(peer, count):
    sum = hashlib.sha256()
    while count:
        some = peer.recv(min(count, PIECE))
        if not some:
            sys.exit("it ended early")
        sum.update(some)
        count -= len(some)
    received = b""
    while len(received) < 32:
        some = peer.recv(32 - len(received))
        if not some:
            sys.exit("it ended before its sum")
        received += some
    if received != sum.digest():
        sys.exit("received bytes differ from those sent")

if sys.argv[1] == "serve":
    door = socket.create_server(("", 4000))
    while True:
        peer, _ = door.accept()
        with peer:
            count = int.from_bytes(peer.recv(8, socket.MSG_WAITALL), "little")
            receive(peer, count)
            send(peer, count)
            # The client closes once it has received everything.
            peer.recv(1)
else:
    with socket.create_connection((sys.argv[2], 4000), timeout=60) as peer:
        count = int(sys.argv[3])
        peer.sendall(count.to_bytes(8, "little"))
        print("started", flush=True)
        send(peer, count)
        receive(peer, count)
"#;
/// Command of the server.
pub(super) const SERVE: &str = "python3 /var/tmp/living/traffic.py serve";

/// Writes the program to where base and node find it.
pub(super) fn write_program() -> Result<(), Finding> {
    Ok(fs::write(format!("{FOLDER}/traffic.py"), PROGRAM)?)
}

fn ask(address: &str, bytes: u64) -> Command {
    let mut command = Command::new("python3");
    let program = format!("{FOLDER}/traffic.py");
    command.args([&program, "ask", address, &bytes.to_string()]);
    command
}

/// Sends so many bytes to the node of that address, then receives as many. Returns how many seconds
/// that took.
pub(super) fn both_ways(address: &str, bytes: u64) -> Result<f64, Finding> {
    wait_for("the node to listen", || {
        Ok(ask(address, 1).output()?.status.success().then_some(()))
    })?;
    let began = Instant::now();
    let answer = ask(address, bytes).output()?;
    Finding::unless(answer.status.success(), || {
        let error_output = String::from_utf8_lossy(&answer.stderr);
        format!("{bytes} bytes each way: {error_output}")
    })?;
    Ok(began.elapsed().as_secs_f64())
}

/// Sends to the node without end. It has started when this returns.
pub(super) fn begin_endless(address: &str) -> Result<Child, Finding> {
    let mut asking = ask(address, 1 << 40);
    let mut asking = asking
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut line = String::new();
    if let Some(output) = asking.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    assert_equal("its first line", &line.as_str(), &"started\n")?;
    Ok(asking)
}
