//! One direction of a forwarded connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;

use mio::net::TcpStream;

/// Bytes of one read.
const PIECE: usize = 64 << 10;
/// Reads before other connections get their turn.
const PIECES: usize = 16;

/// Data read but not yet written, and the state of both ends.
#[derive(Debug, Default)]
pub(super) struct Flow {
    pending: Vec<u8>,
    /// The sender has shut down.
    ended: bool,
    /// The shutdown has been passed on to the receiver.
    shut_down: bool,
}

/// Result of forwarding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// More may be available at once.
    More,
    /// One side would block.
    Blocked,
    /// The direction is shut down.
    Closed,
}

impl Flow {
    /// Forwards available data as far as the receiver takes it.
    ///
    /// # Errors
    /// The error of either side.
    pub(super) fn forward(
        &mut self,
        from: &mut TcpStream,
        to: &mut TcpStream,
    ) -> io::Result<Progress> {
        let mut piece = [0; PIECE];
        for _ in 0..PIECES {
            let pending = std::mem::take(&mut self.pending);
            self.pending = unsent(to, pending)?;
            if !self.pending.is_empty() {
                return Ok(Progress::Blocked);
            }
            if self.ended {
                if !std::mem::replace(&mut self.shut_down, true) {
                    // The receiver may be gone.
                    let _ = to.shutdown(Shutdown::Write);
                }
                return Ok(Progress::Closed);
            }
            match from.read(&mut piece) {
                Ok(0) => self.ended = true,
                Ok(count) => self.pending = piece[..count].to_vec(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(Progress::Blocked);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Progress::More)
    }
}

/// Sends as much as possible and returns the rest.
fn unsent(to: &mut TcpStream, mut bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    let mut sent = 0;
    while sent < bytes.len() {
        match to.write(&bytes[sent..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.drain(..sent);
    Ok(bytes)
}
