//! One direction of a connection that is passed on.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;

use mio::net::TcpStream;

/// Bytes that are read at one time.
const PIECE: usize = 64 << 10;
/// Pieces that are passed on before others have their turn.
const PIECES: usize = 16;

/// What has been read and not been taken.
#[derive(Debug, Default)]
pub(super) struct Flow {
    pending: Vec<u8>,
    /// The sender has said all.
    ended: bool,
    /// The receiver has been told so.
    told: bool,
}

/// What has become of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// There may be more at once.
    More,
    /// One of both sides keeps the other waiting.
    Waits,
    /// All has been said.
    Ended,
}

impl Flow {
    /// Passes on what there is, as far as the receiver takes it.
    ///
    /// # Errors
    /// What either side has failed with.
    pub(super) fn pass_on(
        &mut self,
        from: &mut TcpStream,
        to: &mut TcpStream,
    ) -> io::Result<Moved> {
        let mut piece = [0; PIECE];
        for _ in 0..PIECES {
            let pending = std::mem::take(&mut self.pending);
            self.pending = unsent(to, pending)?;
            if !self.pending.is_empty() {
                return Ok(Moved::Waits);
            }
            if self.ended {
                if !std::mem::replace(&mut self.told, true) {
                    // It may have gone.
                    let _ = to.shutdown(Shutdown::Write);
                }
                return Ok(Moved::Ended);
            }
            match from.read(&mut piece) {
                Ok(0) => self.ended = true,
                Ok(count) => self.pending = piece[..count].to_vec(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Moved::Waits),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Moved::More)
    }
}

/// Sends as much as is taken. Answers the rest.
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
