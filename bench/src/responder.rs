//! The probe as a responder on pipes, or on rings in a file, until it is killed: as a node at the
//! other end of a channel.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read, Write, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use insula_channel::Message;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::rings::{RingsEnd, Side};

/// Larger than any message.
const BUFFER: usize = 1 << 16;
/// Bytes of a request for messages: their count, and the size of each.
const REQUEST: usize = 8;

/// Echoes all messages of the rings in that file.
///
/// # Errors
/// When they cannot be mapped, or are corrupt.
pub fn rings(path: &Path) -> io::Result<Infallible> {
    let mut end = RingsEnd::open(path, Side::Second)?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let received = end.receive(&mut buffer).map_err(io::Error::other)?;
        end.send(&Message::bytes(received.kind, received.bytes(&buffer)))?;
    }
}

/// Echoes standard input to standard output, both pipes, without sleeping.
///
/// # Errors
/// When the other side is closed.
pub fn polling() -> io::Result<Infallible> {
    let (mut input, mut output) = pipes()?;
    set_nonblocking(&input)?;
    set_nonblocking(&output)?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let size = retry(|| input.read(&mut buffer))?;
        if size == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut rest = &buffer[..size];
        while !rest.is_empty() {
            let written = retry(|| output.write(rest))?;
            rest = &rest[written..];
        }
    }
}

/// Writes as many messages as each request asks for to standard output.
///
/// # Errors
/// When the other side is closed.
pub fn flood() -> io::Result<Infallible> {
    let (mut input, mut output) = pipes()?;
    loop {
        let mut request = [0; REQUEST];
        input.read_exact(&mut request)?;
        let [count, size] = words(request);
        let message = vec![7; size as usize];
        for _ in 0..count {
            output.write_all(&message)?;
        }
    }
}

/// Standard input and output, unbuffered.
fn pipes() -> io::Result<(File, File)> {
    let (input, output) = (stdin(), stdout());
    let own = |descriptor: BorrowedFd<'_>| descriptor.try_clone_to_owned().map(File::from);
    Ok((own(input.as_fd())?, own(output.as_fd())?))
}

/// A request for `count` messages of `size` bytes each.
#[must_use]
pub fn request(count: u32, size: u32) -> [u8; REQUEST] {
    (u64::from(size) << 32 | u64::from(count)).to_le_bytes()
}

fn words(request: [u8; REQUEST]) -> [u32; 2] {
    let both = u64::from_le_bytes(request);
    [both as u32, (both >> 32) as u32]
}

/// Makes a descriptor non-blocking.
///
/// # Errors
/// When the kernel refuses.
pub fn set_nonblocking(descriptor: &impl AsFd) -> io::Result<()> {
    let flags = fcntl(descriptor, FcntlArg::F_GETFL)?;
    let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
    fcntl(descriptor, FcntlArg::F_SETFL(flags))?;
    Ok(())
}

/// Repeats a non-blocking call until it does not fail with `WouldBlock`.
///
/// # Errors
/// When it fails for another reason.
pub fn retry<Answer>(mut act: impl FnMut() -> io::Result<Answer>) -> io::Result<Answer> {
    loop {
        match act() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_understood() {
        assert_eq!(words(request(5000, 7168)), [5000, 7168]);
    }

    #[test]
    fn blocking_calls_are_repeated() {
        let (input, output) = nix::unistd::pipe().unwrap();
        set_nonblocking(&input).unwrap();
        let mut tries = 0;
        let mut byte = [0];
        retry(|| {
            tries += 1;
            if tries == 3 {
                nix::unistd::write(&output, &[7])?;
            }
            Ok::<_, io::Error>(nix::unistd::read(&input, &mut byte)?)
        })
        .unwrap();
        assert_eq!((tries, byte), (3, [7]));
    }
}
