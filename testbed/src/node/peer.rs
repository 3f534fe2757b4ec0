//! Program `insula-peer`, which a test node runs at its ends of its channels, and the requests that
//! the base sends it.

use std::fs;
use std::time::Duration;

use insula_abi::channel::{Pages, Right};
use insula_channel::{Message, Words};
use insula_driver::channel::{ChannelError, End, Side};
use insula_driver::{CallError, Driver, ImportedGrant};
use nix::errno::Errno;
use nix::sys::eventfd::EventFd;

/// Longer than any test.
const TIMEOUT: Duration = Duration::from_secs(3600);
/// Larger than any message.
const BUFFER_BYTES: usize = 1 << 16;

/// Request of a message, by its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Send it back as it is.
    Echo = 1,
    /// Send as many messages as its first word says (4 bytes, little endian), each of as many bytes
    /// as its second says: see [`numbered`].
    Flood = 2,
    /// Write random values all over the rings, then leave.
    Scribble = 3,
    /// Leave the session, and join the next.
    Leave = 4,
    /// Crash the kernel.
    Crash = 5,
    /// Import a grant: map as many bytes as the third word says (4 bytes each, little endian) from
    /// the address in the second (8 bytes) on, of the granter whose number the first is.
    Import = 7,
    /// Send back the 8 bytes at the address in the first word (8 bytes) of the imported memory; if
    /// they are not there, the error's number as 4 bytes.
    Load = 8,
    /// Store the second word at the address in the first (8 bytes each). Answered by no bytes, or
    /// as above.
    Store = 9,
    /// From now on poll the rings as often before sleeping as its first word says.
    Polls = 6,
    /// Send it back; then signal [`EVENT`] back as often as its first word says.
    Events = 10,
    /// Send it back without its first 16 bytes, but with a reference to pages that consists of
    /// these.
    Refer = 11,
}

impl Request {
    const ALL: [Self; 11] = [
        Self::Echo,
        Self::Flood,
        Self::Scribble,
        Self::Leave,
        Self::Crash,
        Self::Polls,
        Self::Import,
        Self::Load,
        Self::Store,
        Self::Events,
        Self::Refer,
    ];

    fn of(kind: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&one| one as u8 == kind)
    }
}

/// Event of the channel that is signalled both ways.
pub const EVENT: u32 = 3;

/// Content of the message with that number.
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
        match session(driver, &mut end) {
            Ok(()) | Err(ServeError::Channel(ChannelError::Disconnected)) => {}
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
    Driver(#[from] insula_driver::DriverError),
    #[error(transparent)]
    Crash(#[from] std::io::Error),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Eventfd(#[from] Errno),
}

/// Executes requests until it is to leave.
fn session(driver: &Driver, end: &mut End) -> Result<(), ServeError> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut imported = None;
    loop {
        let received = end.receive(&mut buffer, TIMEOUT)?;
        let bytes = received.bytes(&buffer);
        match Request::of(received.kind) {
            Some(Request::Echo) => end.send(&Message::bytes(received.kind, bytes), TIMEOUT)?,
            Some(Request::Flood) if bytes.len() == 8 => {
                flood(end, word(&bytes[..4]), word(&bytes[4..]))?;
            }
            Some(Request::Polls) if bytes.len() == 4 => end.set_polls(word(bytes)),
            Some(Request::Import) if bytes.len() == 16 => {
                let (size, address) = (word(&bytes[12..]) as usize, long(&bytes[4..12]));
                imported = Some(driver.import_grant(word(&bytes[..4]), address, size)?);
                end.send(&Message::bytes(received.kind, &[]), TIMEOUT)?;
            }
            Some(Request::Load | Request::Store) if bytes.len() >= 8 => {
                let answer = touch(imported.as_mut(), bytes);
                end.send(&Message::bytes(received.kind, &answer), TIMEOUT)?;
            }
            Some(Request::Events) if bytes.len() == 4 => signal_back(end, bytes)?,
            Some(Request::Refer) if bytes.len() >= size_of::<Pages>() => refer(end, bytes)?,
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

fn long(bytes: &[u8]) -> u64 {
    u64::from(word(&bytes[4..8])) << 32 | u64::from(word(&bytes[..4]))
}

/// Loads from the address in the first 8 bytes, or stores there what follows.
fn touch(imported: Option<&mut ImportedGrant>, bytes: &[u8]) -> Vec<u8> {
    let (address, value) = (long(&bytes[..8]), &bytes[8..]);
    let mut loaded = vec![0; if value.is_empty() { 8 } else { 0 }];
    let done = match imported {
        Some(imported) if value.is_empty() => imported.load(address, &mut loaded),
        Some(imported) => imported.store(address, value),
        None => Err(Errno::ENXIO),
    };
    match done {
        Ok(()) => loaded,
        Err(errno) => (errno as i32).to_le_bytes().to_vec(),
    }
}

fn flood(end: &mut End, count: u32, size: u32) -> Result<(), ServeError> {
    for number in 0..count {
        let bytes = numbered(number, size as usize);
        end.send(&Message::bytes(Request::Flood as u8, &bytes), TIMEOUT)?;
    }
    Ok(())
}

fn refer(end: &mut End, request: &[u8]) -> Result<(), ServeError> {
    let (reference, bytes) = request.split_at(size_of::<Pages>());
    let reference = Pages {
        start: long(reference),
        count: word(&reference[8..12]),
        right: Right(word(&reference[12..])),
    };
    let message = Message {
        kind: Request::Refer as u8,
        pages: &[reference],
        bytes,
    };
    Ok(end.send(&message, TIMEOUT)?)
}

fn signal_back(end: &mut End, request: &[u8]) -> Result<(), ServeError> {
    let (ioeventfd, irqfd) = (EventFd::new()?, EventFd::new()?);
    end.channel()
        .bind_eventfds(EVENT, Some((&ioeventfd, &irqfd)))?;
    end.send(&Message::bytes(Request::Events as u8, request), TIMEOUT)?;
    for _ in 0..word(request) {
        ioeventfd.read()?;
        irqfd.write(1)?;
    }
    Ok(end.channel().bind_eventfds(EVENT, None)?)
}

/// Overwrites every word, many times; half of the values are small, as positions are.
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
