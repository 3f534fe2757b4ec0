//! The program `insula-peer`, which a test node runs at the other ends of its channels, and what the
//! base asks it for.

use std::fs;
use std::time::Duration;

use insula::channel::{ChannelError, End, Side};
use insula::driver::Driver;
use insula_channel::{Message, Words};

/// Longer than any test.
const PATIENCE: Duration = Duration::from_secs(3600);
/// More than any message has.
const BUFFER_BYTES: usize = 1 << 16;

/// What a message asks for, by its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Send it back as it is.
    Echo = 1,
    /// Send as many messages as its first word says (4 bytes, little endian), each of as many bytes
    /// as its second says: see [`numbered`].
    Flood = 2,
    /// Write anything anywhere into the rings, then leave.
    Scribble = 3,
    /// Leave the session, and join the next.
    Leave = 4,
    /// Crash the kernel.
    Crash = 5,
    /// From now on look at the rings as often before sleeping as its first word says.
    Polls = 6,
}

impl Request {
    const ALL: [Self; 6] = [
        Self::Echo,
        Self::Flood,
        Self::Scribble,
        Self::Leave,
        Self::Crash,
        Self::Polls,
    ];

    fn of(kind: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&one| one as u8 == kind)
    }
}

/// The bytes of the message of that number.
pub fn numbered(number: u32, size: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().repeat(size.div_ceil(4));
    bytes.truncate(size);
    bytes
}

/// Serves channel `index`, session after session.
///
/// # Errors
/// When it cannot be opened or used.
pub fn serve(driver: &Driver, index: u32) -> Result<(), Box<dyn std::error::Error>> {
    loop {
        let mut end = End::attach(driver.open_channel(index)?, Side::Node)?;
        match session(&mut end) {
            Ok(()) | Err(ServeError::Channel(ChannelError::HungUp)) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("a request of kind {0} with {1} bytes")]
    Request(u8, usize),
    #[error(transparent)]
    Map(#[from] insula::driver::MapError),
    #[error(transparent)]
    Crash(#[from] std::io::Error),
}

/// Does what is asked for until it is to leave.
fn session(end: &mut End) -> Result<(), ServeError> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let received = end.receive(&mut buffer, PATIENCE)?;
        let bytes = received.bytes(&buffer);
        match Request::of(received.kind) {
            Some(Request::Echo) => end.send(&Message::bytes(received.kind, bytes), PATIENCE)?,
            Some(Request::Flood) if bytes.len() == 8 => {
                flood(end, word(&bytes[..4]), word(&bytes[4..]))?;
            }
            Some(Request::Polls) if bytes.len() == 4 => end.set_polls(word(bytes)),
            Some(Request::Scribble) => return scribble(end),
            Some(Request::Leave) => return Ok(()),
            Some(Request::Crash) => fs::write("/proc/sysrq-trigger", "c")?,
            _ => return Err(ServeError::Request(received.kind, bytes.len())),
        }
    }
}

fn word(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .rev()
        .fold(0, |word, &byte| word << 8 | u32::from(byte))
}

fn flood(end: &mut End, count: u32, size: u32) -> Result<(), ServeError> {
    for number in 0..count {
        let bytes = numbered(number, size as usize);
        end.send(&Message::bytes(Request::Flood as u8, &bytes), PATIENCE)?;
    }
    Ok(())
}

/// Every word, many times; half of the values are small, as positions are.
fn scribble(end: &End) -> Result<(), ServeError> {
    let words = end.channel().map()?;
    let mut random = fastrand::Rng::new();
    for _ in 0..8 * words.count() {
        let value = random.u64(..) >> (32 * random.u32(..2));
        words.store(
            random.usize(..words.count()),
            value,
            std::sync::atomic::Ordering::Relaxed,
        );
    }
    Ok(())
}
