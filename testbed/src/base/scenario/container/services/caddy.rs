//! Caddy, a server written in Go: its runtime has threads, timers and a poller of its own.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use super::{Client, GOES_ON_TIMEOUT, start as start_container};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, wait_for};

const NAME: &str = "caddy";
const PORT: u16 = 8080;
const BODY: &str = "served by a program of Go";
const PROGRAM: [&str; 8] = [
    "env",
    "HOME=/tmp",
    "caddy",
    "respond",
    "--listen",
    ":8080",
    "--body",
    BODY,
];
const LENGTH: &str = "content-length: ";

pub(super) fn start(node: &str) -> Result<Client, Finding> {
    let address = start_container(NAME, node, &PROGRAM)?;
    wait_for("caddy to serve", || {
        Ok(TcpStream::connect((address.as_str(), PORT)).ok())
    })?;
    let stream = TcpStream::connect((address.as_str(), PORT))?;
    stream.set_read_timeout(Some(GOES_ON_TIMEOUT))?;
    let mut stream = BufReader::new(stream);
    Ok(Client::start(NAME, move |number| {
        let request = format!("GET /{number} HTTP/1.1\r\nHost: caddy\r\n\r\n");
        stream.get_mut().write_all(request.as_bytes())?;
        assert_equal("the answer", &body(&mut stream)?.as_str(), &BODY)
    }))
}

/// Content of an answer.
fn body(stream: &mut impl BufRead) -> Result<String, Finding> {
    let (mut line, mut length) = (String::new(), None);
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        let header = line.trim_end().to_ascii_lowercase();
        match header.strip_prefix(LENGTH) {
            Some(text) => length = Some(text.parse()?),
            None if header.is_empty() => break,
            None => {}
        }
    }
    let length: usize = length.ok_or_else(|| Finding::new("an answer of no known length"))?;
    let mut content = vec![0; length];
    stream.read_exact(&mut content)?;
    Ok(String::from_utf8(content)?)
}
