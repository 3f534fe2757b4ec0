//! A TCP server, and its clients.
//!
//! The first byte of a connection is the request: `ECHO` the rest, or receive it all and then
//! answer with one byte.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use insula_driver::tsc;

/// Port on which it listens.
pub const PORT: u16 = 7000;

const ECHO: u8 = b'e';
const SINK: u8 = b't';
/// Size of a write, in bytes.
const PIECE: usize = 64 << 10;
/// Time limit for the server to start, and for an answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Serves all connections until it is killed.
///
/// # Errors
/// When it cannot listen.
pub fn serve() -> io::Result<Infallible> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    loop {
        let (stream, _) = listener.accept()?;
        // A client that disconnects does not concern the next.
        thread::spawn(move || answer(stream));
    }
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut request = [0];
    stream.read_exact(&mut request)?;
    let mut piece = vec![0; PIECE];
    loop {
        match stream.read(&mut piece)? {
            0 if request[0] == SINK => return stream.write_all(&request),
            0 => return Ok(()),
            size if request[0] == ECHO => stream.write_all(&piece[..size])?,
            _ => {}
        }
    }
}

/// A connection to the echo server.
pub struct Echo(TcpStream);

impl Echo {
    /// Connects to the server, which may still be starting.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub fn connect(address: &str) -> io::Result<Self> {
        connect(address, ECHO).map(Self)
    }

    /// Sends bytes there and back.
    ///
    /// # Errors
    /// When the server has ended.
    pub fn trip(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.0.write_all(bytes)?;
        self.0.read_exact(bytes)
    }
}

/// Sends so many bytes to the server, and returns how many ticks of the time stamp counter it took
/// until that had received them all.
///
/// # Errors
/// When it cannot be reached.
pub fn stream(address: &str, bytes: usize) -> io::Result<u64> {
    let mut stream = connect(address, SINK)?;
    let piece = vec![7; PIECE];
    let began = tsc();
    for _ in 0..bytes / PIECE {
        stream.write_all(&piece)?;
    }
    stream.shutdown(Shutdown::Write)?;
    stream.read_exact(&mut [0])?;
    Ok(tsc() - began)
}

fn connect(address: &str, request: u8) -> io::Result<TcpStream> {
    let began = Instant::now();
    loop {
        match TcpStream::connect((address, PORT)) {
            Ok(mut stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.write_all(&[request])?;
                return Ok(stream);
            }
            Err(error) if began.elapsed() > TIMEOUT => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_echoed_or_received() {
        let server = thread::spawn(serve);
        let mut echo = Echo::connect("127.0.0.1").unwrap();
        let mut bytes = *b"there and back";
        echo.trip(&mut bytes).unwrap();
        assert_eq!(&bytes, b"there and back");
        assert!(stream("127.0.0.1", 1 << 20).unwrap() > 0);
        assert!(!server.is_finished());
    }
}
