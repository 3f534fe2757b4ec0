//! Frames: each is its length as a 32-bit little-endian number, then a value as `postcard` has it.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// Bytes of a program's input or output that a frame may carry.
pub const BYTES_MAX: usize = 32 << 10;
/// The longest frame, its length left out: room for a whole command line, too.
pub const FRAME_MAX: usize = 256 << 10;

/// Why there is no frame.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The connection has failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What came is longer than a frame can be.
    #[error("what came is no frame: it has {0} bytes")]
    TooLong(usize),
    /// What came is nothing that is known.
    #[error("what came is no frame: {0}")]
    Nonsense(#[from] postcard::Error),
}

/// Reads frames, one after the other.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    buffer: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// Reads from there.
    pub fn new(from: R) -> Self {
        Self {
            from,
            buffer: Vec::new(),
        }
    }

    /// The next one, or `None` when the other side has ended the connection in order.
    ///
    /// # Errors
    /// [`FrameError`]; nothing more is to be read.
    pub fn read<'a, T: Deserialize<'a>>(&'a mut self) -> Result<Option<T>, FrameError> {
        let mut length = [0; 4];
        if !self.fill(&mut length)? {
            return Ok(None);
        }
        let length = u32::from_le_bytes(length) as usize;
        if length > FRAME_MAX {
            return Err(FrameError::TooLong(length));
        }
        self.buffer.resize(length, 0);
        self.from.read_exact(&mut self.buffer)?;
        let (value, rest) = postcard::take_from_bytes(&self.buffer)?;
        match rest {
            [] => Ok(Some(value)),
            _ => Err(FrameError::Nonsense(
                postcard::Error::DeserializeBadEncoding,
            )),
        }
    }

    /// Reads all of it; false if there is nothing at all.
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<bool> {
        let first = loop {
            match self.from.read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        if first > 0 {
            self.from.read_exact(&mut bytes[first..])?;
        }
        Ok(first > 0)
    }
}

/// Writes a frame, as one piece.
///
/// # Errors
/// When it is too long, or cannot be written.
pub fn write(mut to: impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut bytes = postcard::to_extend(value, vec![0; 4]).map_err(io::Error::other)?;
    let length = bytes.len() - 4;
    if length > FRAME_MAX {
        return Err(io::Error::other(format!("a frame of {length} bytes")));
    }
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    to.write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Ending, Exec, Input, Output, Request};

    #[test]
    fn frames_read_back() {
        let request = Request::Exec(Exec {
            words: vec![b"/bin/\xff".to_vec(), Vec::new()],
            stdin: true,
            ..Exec::default()
        });
        let mut bytes = Vec::new();
        write(&mut bytes, &request).unwrap();
        write(&mut bytes, &Input::Stdin(b"abc")).unwrap();
        write(&mut bytes, &Output::Ended(Ending::Killed(9))).unwrap();
        let mut reader = Reader::new(&bytes[..]);
        assert_eq!(reader.read::<Request>().unwrap(), Some(request));
        assert_eq!(reader.read().unwrap(), Some(Input::Stdin(b"abc")));
        let ended = Output::Ended(Ending::Killed(9));
        assert_eq!(reader.read().unwrap(), Some(ended));
        assert_eq!(reader.read::<Output<'_>>().unwrap(), None);
    }

    #[test]
    fn what_is_too_long_is_neither_read_nor_written() {
        let long = ((FRAME_MAX + 1) as u32).to_le_bytes();
        let read = Reader::new(&long[..]).read::<Input<'_>>().unwrap_err();
        assert!(matches!(read, FrameError::TooLong(_)));
        let request = Request::Exec(Exec {
            words: vec![vec![b'x'; FRAME_MAX]],
            ..Exec::default()
        });
        let mut bytes = Vec::new();
        assert!(write(&mut bytes, &request).is_err() && bytes.is_empty());
    }

    #[test]
    fn a_cut_frame_is_an_error() {
        let mut bytes = Vec::new();
        write(&mut bytes, &Output::Stdout(b"abc")).unwrap();
        for end in 1..bytes.len() {
            let mut reader = Reader::new(&bytes[..end]);
            assert!(reader.read::<Output<'_>>().is_err(), "{end}");
        }
    }

    proptest! {
        /// Whatever comes, it is refused or is a value that reads back.
        #[test]
        fn nothing_breaks_a_reader(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
            bytes.extend(&body);
            if let Ok(Some(request)) = Reader::new(&bytes[..]).read::<Request>() {
                let mut again = Vec::new();
                write(&mut again, &request).unwrap();
                prop_assert_eq!(Reader::new(&again[..]).read::<Request>().unwrap(), Some(request));
            }
            let _ = Reader::new(&bytes[..]).read::<Input<'_>>();
            let _ = Reader::new(&bytes[..]).read::<Output<'_>>();
        }
    }
}
