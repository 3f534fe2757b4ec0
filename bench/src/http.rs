//! A client of a web server: requests on one connection, one after the other.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};

use insula_driver::tsc;

use crate::probe::Ticks;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
const LENGTH: &str = "content-length: ";
/// Requests in a round, and earlier ones that are not counted.
const REQUESTS: usize = 500;
const WARM: usize = 50;

/// Times requests to the server at that port of this machine.
///
/// # Errors
/// When there is none, or its answer is no success of known length.
pub fn get(port: u16) -> io::Result<Ticks> {
    let mut server = BufReader::new(TcpStream::connect((Ipv4Addr::LOCALHOST, port))?);
    server.get_ref().set_nodelay(true)?;
    let mut all = Vec::with_capacity(REQUESTS);
    for round in 0..WARM + REQUESTS {
        let began = tsc();
        server.get_mut().write_all(REQUEST)?;
        answer(&mut server)?;
        if round >= WARM {
            all.push(tsc() - began);
        }
    }
    Ok(Ticks::of(all))
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
