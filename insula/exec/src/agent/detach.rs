//! Keys that detach from a program with a raw terminal.
//!
//! As podman's `--detach-keys`: the sequence itself is not forwarded; an incomplete one is.

use std::str::FromStr;

/// The default keys, podman's.
pub const DETACH_KEYS: &str = "ctrl-p,ctrl-q";

/// A key sequence, as the bytes that a terminal sends; empty disables detaching.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetachKeys(Vec<u8>);

/// The text is not a key sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected keys separated by commas: single characters or ctrl-a to ctrl-z, ctrl-@, ctrl-[, \
     ctrl-\\, ctrl-], ctrl-^, ctrl-_"
)]
pub struct DetachKeysError;

impl DetachKeys {
    /// None: who uses the terminal is detached by others.
    #[must_use]
    pub fn none() -> Self {
        Self(Vec::new())
    }
}

impl FromStr for DetachKeys {
    type Err = DetachKeysError;

    fn from_str(text: &str) -> Result<Self, DetachKeysError> {
        match text {
            "" => Ok(Self::none()),
            keys => keys.split(',').map(key).collect::<Result<_, _>>().map(Self),
        }
    }
}

fn key(text: &str) -> Result<u8, DetachKeysError> {
    let (is_control, letter) = match text.strip_prefix("ctrl-") {
        Some(letter) => (true, letter),
        None => (false, text),
    };
    match (is_control, letter.as_bytes()) {
        (false, [letter]) if letter.is_ascii_graphic() => Ok(*letter),
        // Control characters are the low five bits of the letter.
        (true, [letter @ (b'a'..=b'z' | b'@' | b'['..=b'_')]) => Ok(letter & 0x1f),
        _ => Err(DetachKeysError),
    }
}

/// Scans input for the key sequence.
pub(super) struct Scanner {
    keys: Vec<u8>,
    /// Length of the matched prefix of the sequence.
    matched: usize,
}

/// Bytes to forward.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typed {
    Some(Vec<u8>),
    /// The sequence was complete after them.
    Last(Vec<u8>),
}

impl Scanner {
    pub(super) fn new(keys: &DetachKeys) -> Self {
        Self {
            keys: keys.0.clone(),
            matched: 0,
        }
    }

    /// What of these bytes is to be forwarded.
    pub(super) fn filter(&mut self, bytes: &[u8]) -> Typed {
        let mut forwarded = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            self.step(byte, &mut forwarded);
            if self.matched > 0 && self.matched == self.keys.len() {
                return Typed::Last(forwarded);
            }
        }
        Typed::Some(forwarded)
    }

    fn step(&mut self, byte: u8, forwarded: &mut Vec<u8>) {
        if self.keys.get(self.matched) == Some(&byte) {
            self.matched += 1;
            return;
        }
        forwarded.extend_from_slice(&self.keys[..self.matched]);
        self.matched = usize::from(self.keys.first() == Some(&byte));
        if self.matched == 0 {
            forwarded.push(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scanner(keys: &str) -> Scanner {
        Scanner::new(&keys.parse().unwrap())
    }

    #[test]
    fn keys_have_podmans_names() {
        let keys = |text: &str| text.parse::<DetachKeys>().map(|keys| keys.0);
        assert_eq!(keys(DETACH_KEYS), Ok(vec![0x10, 0x11]));
        assert_eq!(keys("ctrl-],a"), Ok(vec![0x1d, b'a']));
        assert_eq!(keys(""), Ok(vec![]));
        for wrong in ["ctrl-", "ctrl-1", "ab", "a,,b", "ctrl-A", "\u{e9}"] {
            assert_eq!(keys(wrong), Err(DetachKeysError), "{wrong}");
        }
    }

    fn some(bytes: &[u8]) -> Typed {
        Typed::Some(bytes.to_vec())
    }

    fn last(bytes: &[u8]) -> Typed {
        Typed::Last(bytes.to_vec())
    }

    #[test]
    fn the_sequence_is_not_forwarded() {
        let mut scanner = scanner(DETACH_KEYS);
        assert_eq!(scanner.filter(b"ls\r"), some(b"ls\r"));
        assert_eq!(scanner.filter(b"\x10\x11"), last(b""));
    }

    #[test]
    fn what_precedes_the_sequence_is_forwarded() {
        let mut scanner = scanner(DETACH_KEYS);
        assert_eq!(scanner.filter(b"ls\r\x10\x11ls\r"), last(b"ls\r"));
    }

    #[test]
    fn the_sequence_may_come_in_pieces() {
        let mut scanner = scanner(DETACH_KEYS);
        assert_eq!(scanner.filter(b"a\x10"), some(b"a"));
        assert_eq!(scanner.filter(b"\x11"), last(b""));
    }

    #[test]
    fn a_mere_prefix_is_forwarded() {
        let mut scanner = scanner(DETACH_KEYS);
        assert_eq!(scanner.filter(b"\x10"), some(b""));
        assert_eq!(scanner.filter(b"x"), some(b"\x10x"));
        assert_eq!(scanner.filter(b"\x10\x10\x11"), last(b"\x10"));
    }

    #[test]
    fn without_keys_everything_is_forwarded() {
        let mut scanner = scanner("");
        assert_eq!(scanner.filter(b"\x10\x11"), some(b"\x10\x11"));
    }
}
