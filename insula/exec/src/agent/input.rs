//! What is typed, or read from a file, on its way to a program.

use std::io::{self, Read};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use insula_agent::Input;
use insula_agent::frame::BYTES_MAX;

use super::detach::{Scanner, Typed};
use super::session::Connection;

/// For how long what precedes the detach keys may be on its way: a node that hangs is left all the same.
const LAST_TIMEOUT: Duration = Duration::from_secs(1);

/// Starts forwarding standard input. Terminal input is scanned for the detach keys even while the
/// node takes nothing, so it is queued without limit.
pub(super) fn start(connection: &Connection, typed: Option<Scanner>) {
    let connection = connection.clone();
    match typed {
        Some(scanner) => start_typed(connection, scanner),
        None => drop(thread::spawn(move || {
            read(|bytes| forward(&connection, bytes))
        })),
    }
}

fn start_typed(connection: Connection, mut scanner: Scanner) {
    let (queue, typed) = mpsc::channel();
    let sender = connection.clone();
    thread::spawn(move || forward_typed(&sender, typed));
    thread::spawn(move || {
        read(|bytes| {
            let typed = scanner.filter(bytes);
            let is_last = matches!(typed, Typed::Last(_));
            let is_queued = queue.send(typed).is_ok();
            if is_last {
                thread::sleep(LAST_TIMEOUT);
                connection.detach();
            }
            is_queued && !is_last
        });
    });
}

/// Forwards what was typed, until its end, or until the program has taken what precedes the detach keys.
fn forward_typed(connection: &Connection, typed: mpsc::Receiver<Typed>) {
    for typed in typed {
        let (bytes, is_last) = match typed {
            Typed::Some(bytes) => (bytes, false),
            Typed::Last(bytes) => (bytes, true),
        };
        let is_forwarded = bytes.is_empty() || forward(connection, &bytes);
        if is_last {
            connection.wait_until_taken();
            connection.detach();
        }
        if is_last || !is_forwarded {
            return;
        }
    }
    forward(connection, &[]);
}

/// Reads until the end, forwarded on as an empty piece, or until `take` returns false.
fn read(mut take: impl FnMut(&[u8]) -> bool) {
    let mut buffer = vec![0; BYTES_MAX];
    loop {
        let read = match io::stdin().lock().read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.unwrap_or(0),
        };
        if !take(&buffer[..read]) || read == 0 {
            return;
        }
    }
}

/// Sends a piece, or the end if it is empty; false on failure, which the reader reports.
fn forward(connection: &Connection, bytes: &[u8]) -> bool {
    if bytes.is_empty() {
        return connection.send(&Input::StdinEnd).is_ok();
    }
    bytes.chunks(BYTES_MAX).all(|bytes| {
        connection.take_window(bytes.len());
        connection.send(&Input::Stdin(bytes)).is_ok()
    })
}
