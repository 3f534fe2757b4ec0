//! A client of a web server: requests on one connection, one after the other.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;

use insula_driver::tsc;

use crate::probe::Ticks;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
const LENGTH: &str = "content-length: ";
/// Requests in a round, and earlier ones that are not counted.
const REQUESTS: usize = 500;
const WARM: usize = 50;

/// Times requests to a server.
///
/// # Errors
/// When there is none, or its answer is no success of known length.
pub fn get(server: SocketAddr) -> io::Result<Ticks> {
    let times = requests(server, WARM + REQUESTS)?;
    Ok(Ticks::of(times[WARM..].to_vec()))
}

/// Times requests by several connections at once: all together, for each request.
///
/// # Errors
/// As of [`get`].
pub fn get_by_many(server: SocketAddr, connections: usize) -> io::Result<Ticks> {
    let each = REQUESTS.div_ceil(connections.max(1));
    let began = tsc();
    let clients: Vec<_> = (0..connections)
        .map(|_| thread::spawn(move || requests(server, each)))
        .collect();
    for client in clients {
        let made = client.join();
        made.map_err(|_| io::Error::other("a client panicked"))??;
    }
    let all = (each * connections).max(1) as u64;
    Ok(Ticks::once((tsc() - began) / all))
}

/// Makes requests on one connection, one after the other. Returns how long each took.
fn requests(server: SocketAddr, count: usize) -> io::Result<Vec<u64>> {
    let mut server = BufReader::new(TcpStream::connect(server)?);
    server.get_ref().set_nodelay(true)?;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let began = tsc();
        server.get_mut().write_all(REQUEST)?;
        answer(&mut server)?;
        times.push(tsc() - began);
    }
    Ok(times)
}

/// Reads an answer, and returns its content.
fn answer(server: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let unexpected = |line: &str| io::Error::other(format!("the server answers: {line}"));
    let mut line = String::new();
    server.read_line(&mut line)?;
    if !line.starts_with("HTTP/1.1 200 ") {
        return Err(unexpected(&line));
    }
    let mut length = None;
    while !line.trim_end().is_empty() {
        line.clear();
        server.read_line(&mut line)?;
        if let Some(text) = line.to_ascii_lowercase().strip_prefix(LENGTH) {
            length = text.trim_end().parse().ok();
        }
    }
    let mut content = vec![0; length.ok_or_else(|| unexpected("no length"))?];
    server.read_exact(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_to_their_end() {
        let text = "HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 3\r\n\r\nabcHTTP";
        let mut server = text.as_bytes();
        assert_eq!(answer(&mut server).unwrap(), b"abc");
        assert_eq!(server, b"HTTP");
    }

    #[test]
    fn other_answers_are_errors() {
        for text in [
            "",
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        ] {
            assert!(answer(&mut text.as_bytes()).is_err(), "{text}");
        }
    }
}
