//! A server that bytes are sent to, and its clients.
//!
//! The first byte of a connection says what is to become of the rest: [`ECHO`] it, or take it all and
//! then answer with one byte.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use insula::driver::tsc;

/// Where it listens.
pub const PORT: u16 = 7000;

const ECHO: u8 = b'e';
const TAKE: u8 = b't';
/// What is sent at once.
const PIECE: usize = 64 << 10;
/// How long the server, or an answer, is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Serves whoever comes, until it is ended.
///
/// # Errors
/// When it cannot listen.
pub fn serve() -> io::Result<Infallible> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    loop {
        let (stream, _) = listener.accept()?;
        // A client that breaks off does not concern the next.
        thread::spawn(move || answer(stream));
    }
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut wish = [0];
    stream.read_exact(&mut wish)?;
    let mut piece = vec![0; PIECE];
    loop {
        match stream.read(&mut piece)? {
            0 if wish[0] == TAKE => return stream.write_all(&wish),
            0 => return Ok(()),
            size if wish[0] == ECHO => stream.write_all(&piece[..size])?,
            _ => {}
        }
    }
}

/// A connection on which bytes come back.
pub struct Echo(TcpStream);

impl Echo {
    /// To the server there, which may still be starting.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub fn connect(address: &str) -> io::Result<Self> {
        connect(address, ECHO).map(Self)
    }

    /// Sends bytes there and back.
    ///
    /// # Errors
    /// When the server is gone.
    pub fn trip(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.0.write_all(bytes)?;
        self.0.read_exact(bytes)
    }
}

/// Sends so many bytes to the server there, and answers how many ticks of the time stamp counter it
/// took until that had them all.
///
/// # Errors
/// When it cannot be reached.
pub fn stream(address: &str, bytes: usize) -> io::Result<u64> {
    let mut stream = connect(address, TAKE)?;
    let piece = vec![7; PIECE];
    let began = tsc();
    for _ in 0..bytes / PIECE {
        stream.write_all(&piece)?;
    }
    stream.shutdown(Shutdown::Write)?;
    stream.read_exact(&mut [0])?;
    Ok(tsc() - began)
}

fn connect(address: &str, wish: u8) -> io::Result<TcpStream> {
    let began = Instant::now();
    loop {
        match TcpStream::connect((address, PORT)) {
            Ok(mut stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.write_all(&[wish])?;
                return Ok(stream);
            }
            Err(error) if began.elapsed() > PATIENCE => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_or_are_taken() {
        let server = thread::spawn(serve);
        let mut echo = Echo::connect("127.0.0.1").unwrap();
        let mut bytes = *b"there and back";
        echo.trip(&mut bytes).unwrap();
        assert_eq!(&bytes, b"there and back");
        assert!(stream("127.0.0.1", 1 << 20).unwrap() > 0);
        assert!(!server.is_finished());
    }
}
