//! Frames: a length as a 32-bit little-endian number, then a value in the `postcard` format.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// Maximum bytes of a program's input or output in a frame.
pub const BYTES_MAX: usize = 32 << 10;
/// Maximum length of a frame, without the length itself: enough for a command line.
pub const FRAME_MAX: usize = 256 << 10;

/// Why a frame could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The frame is too long.
    #[error("invalid frame: {0} bytes long")]
    TooLong(usize),
    /// The frame has no valid value.
    #[error("invalid frame: {0}")]
    Invalid(#[from] postcard::Error),
}

/// Reads frames.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    buffer: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// A reader of `from`.
    pub fn new(from: R) -> Self {
        Self {
            from,
            buffer: Vec::new(),
        }
    }

    /// The next frame, or `None` if the peer has closed the connection in order.
    ///
    /// # Errors
    /// [`FrameError`]; no more frames can be read.
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
            _ => Err(FrameError::Invalid(postcard::Error::DeserializeBadEncoding)),
        }
    }

    /// Fills `bytes`; false at the end of the stream.
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

/// Writes a frame in one call.
///
/// # Errors
/// The frame is too long or cannot be written.
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
    use crate::{Exec, ExitStatus, Input, Output, Request};

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
        write(&mut bytes, &Output::Ended(ExitStatus::Killed(9))).unwrap();
        let mut reader = Reader::new(&bytes[..]);
        assert_eq!(reader.read::<Request>().unwrap(), Some(request));
        assert_eq!(reader.read().unwrap(), Some(Input::Stdin(b"abc")));
        let ended = Output::Ended(ExitStatus::Killed(9));
        assert_eq!(reader.read().unwrap(), Some(ended));
        assert_eq!(reader.read::<Output<'_>>().unwrap(), None);
    }

    #[test]
    fn long_frames_are_neither_read_nor_written() {
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
        /// Any bytes are refused or are a value that round-trips.
        #[test]
        fn any_bytes_are_survived(body in proptest::collection::vec(any::<u8>(), 0..200)) {
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
