//! Connections of the base to programs of the node, and what comes over them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::base::{Context, Finding};

/// Connections at a time, and bytes that each sends in a round.
const CONNECTIONS: u64 = 4;
const BYTES: usize = 300_000;
/// How long a connection may stand still.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long there is traffic in a long test.
const SOAK: Duration = Duration::from_secs(3600);

/// Bytes that differ for each seed.
pub(super) fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..))
        .take(count)
        .collect()
}

fn connect(address: &str, port: u16) -> Result<TcpStream, Finding> {
    let connection = TcpStream::connect((address, port))?;
    connection.set_read_timeout(Some(TIMEOUT))?;
    connection.set_write_timeout(Some(TIMEOUT))?;
    Ok(connection)
}

/// Has a program send back what it gets, over several connections at once, once or for an hour.
pub(super) fn echo(context: &Context, address: &str, port: u16) -> Result<(), Finding> {
    let (began, mut rounds) = (Instant::now(), 0);
    while rounds < context.count(3, u64::MAX) && began.elapsed() < SOAK {
        let seeds = (0..CONNECTIONS).map(|one| rounds * CONNECTIONS + one);
        thread::scope(|scope| {
            let all: Vec<_> = seeds
                .map(|seed| scope.spawn(move || echo_once(address, port, seed)))
                .collect();
            let ended = all.into_iter().map(|one| {
                let panicked = |_| Finding::new("a client panicked".to_owned());
                one.join().map_err(panicked)?
            });
            ended.collect::<Result<Vec<_>, _>>()
        })?;
        rounds += 1;
    }
    let (seconds, bytes) = (
        began.elapsed().as_secs_f64(),
        rounds * CONNECTIONS * BYTES as u64,
    );
    println!("{bytes} bytes there and back in {seconds:.1} s");
    Ok(())
}

fn echo_once(address: &str, port: u16, seed: u64) -> Result<(), Finding> {
    let mut connection = connect(address, port)?;
    let sent = bytes(BYTES, seed);
    let mut sender = connection.try_clone()?;
    let received = thread::scope(|scope| -> Result<Vec<u8>, Finding> {
        let sending = scope.spawn(|| {
            sender.write_all(b"e")?;
            sender.write_all(&sent)?;
            sender.shutdown(Shutdown::Write)
        });
        let mut received = Vec::new();
        connection.read_to_end(&mut received)?;
        let panicked = |_| Finding::new("a sender panicked".to_owned());
        sending.join().map_err(panicked)??;
        Ok(received)
    })?;
    Finding::unless(received == sent, || {
        let same = received
            .iter()
            .zip(&sent)
            .take_while(|(one, two)| one == two);
        format!(
            "of {BYTES} bytes {} came back, {} of them right",
            received.len(),
            same.count()
        )
    })
}

/// Waits until the other end ends a connection, in whatever way.
pub(super) fn ends(connection: &mut TcpStream) -> Result<(), Finding> {
    connection.set_read_timeout(Some(TIMEOUT))?;
    match connection.read(&mut [0]) {
        Ok(0) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(()),
        other => Err(Finding::new(format!(
            "the connection does not end: {other:?}"
        ))),
    }
}

/// Fetches a file again and again: over one connection, and over a new one each time.
pub(super) fn http(address: &str, path: &str, content: &[u8], count: usize) -> Result<(), Finding> {
    let mut staying = BufReader::new(connect(address, 80)?);
    for _ in 0..count / 2 {
        fetch(&mut staying, path, content)?;
        fetch(&mut BufReader::new(connect(address, 80)?), path, content)?;
    }
    Ok(())
}

fn fetch(connection: &mut BufReader<TcpStream>, path: &str, content: &[u8]) -> Result<(), Finding> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n");
    connection.get_mut().write_all(request.as_bytes())?;
    let mut status = String::new();
    connection.read_line(&mut status)?;
    Finding::unless(status.starts_with("HTTP/1.1 200"), || {
        format!("nginx answers {status}")
    })?;
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        connection.read_line(&mut line)?;
    }
    let mut received = vec![0; content.len()];
    connection.read_exact(&mut received)?;
    Finding::unless(received == content, || {
        "nginx serves other bytes".to_owned()
    })
}
