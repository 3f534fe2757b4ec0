//! redis, which writes each change to an append-only file: counters and values that clients check, and in the
//! end all of it is read back from the file.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use super::{Client, GOES_ON_TIMEOUT, start as start_container};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, wait_for};

pub(super) const NAME: &str = "redis";
const PORT: u16 = 6379;
const PROGRAM: [&str; 13] = [
    "redis-server",
    "--bind",
    "0.0.0.0",
    "--protected-mode",
    "no",
    "--appendonly",
    "yes",
    "--dir",
    "/tmp",
    "--save",
    "",
    "--enable-debug-command",
    "yes",
];

/// Starts it on a node, and waits until it serves. Returns its address.
pub(super) fn start_server(node: &str) -> Result<String, Finding> {
    let address = start_container(NAME, node, &PROGRAM)?;
    wait_for("redis to serve", || {
        Ok(TcpStream::connect((address.as_str(), PORT)).ok())
    })?;
    Ok(address)
}

pub(super) fn start(node: &str) -> Result<Client, Finding> {
    let address = start_server(node)?;
    let mut redis = Redis::connect(&address)?;
    Ok(Client::start(NAME, move |number| {
        let count = (number + 1).to_string();
        assert_equal(
            "the counter",
            &redis.ask("INCR counter")?,
            &format!(":{count}"),
        )?;
        redis.ask(&format!("SET key:{number} {}", value(number)))?;
        // One of some time ago.
        let earlier = number / 2;
        redis.ask(&format!("GET key:{earlier}"))?;
        assert_equal("a value", &redis.line()?, &value(earlier))
    }))
}

fn value(number: u64) -> String {
    format!("{number:x}").repeat(40)
}

/// All is in the file, too.
pub(super) fn has_all(address: &str) -> Result<(), Finding> {
    let mut redis = Redis::connect(address)?;
    let before = redis.ask("DEBUG DIGEST")?;
    assert_equal(
        "reading the file",
        &redis.ask("DEBUG LOADAOF")?,
        &"+OK".to_owned(),
    )?;
    assert_equal("what the file has", &redis.ask("DEBUG DIGEST")?, &before)
}

/// A connection.
pub(super) struct Redis(BufReader<TcpStream>);

impl Redis {
    pub(super) fn connect(address: &str) -> Result<Self, Finding> {
        let stream = TcpStream::connect((address, PORT))?;
        stream.set_read_timeout(Some(GOES_ON_TIMEOUT))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// The first line of the answer.
    pub(super) fn ask(&mut self, command: &str) -> Result<String, Finding> {
        self.0
            .get_mut()
            .write_all(format!("{command}\r\n").as_bytes())?;
        let answer = self.line()?;
        Finding::unless(!answer.starts_with('-'), || format!("{command}: {answer}"))?;
        Ok(answer)
    }

    /// An answer that is a text of many lines ("bulk string").
    pub(super) fn ask_for_text(&mut self, command: &str) -> Result<String, Finding> {
        let length = self.ask(command)?;
        let length: usize = length.trim_start_matches('$').parse()?;
        let mut text = vec![0; length + b"\r\n".len()];
        self.0.read_exact(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn line(&mut self) -> Result<String, Finding> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}
