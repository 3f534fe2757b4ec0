//! Keys by which a user leaves a program whose terminal passes on each key.
//!
//! As podman's `--detach-keys`: a sequence of keys that is not passed on. What was begun of it and
//! not ended is.

use std::str::FromStr;

/// The keys if no others are asked for, as podman has them.
pub const DETACH_KEYS: &str = "ctrl-p,ctrl-q";

/// A sequence of keys, as the bytes that a terminal sends for them. None: there is no such sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetachKeys(Vec<u8>);

/// The text names no keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "keys are single characters or ctrl-a to ctrl-z, ctrl-@, ctrl-[, ctrl-\\, ctrl-], ctrl-^, ctrl-_, with commas between"
)]
pub struct NoKeys;

impl FromStr for DetachKeys {
    type Err = NoKeys;

    fn from_str(text: &str) -> Result<Self, NoKeys> {
        match text {
            "" => Ok(Self(Vec::new())),
            keys => keys.split(',').map(key).collect::<Result<_, _>>().map(Self),
        }
    }
}

fn key(text: &str) -> Result<u8, NoKeys> {
    let (is_control, letter) = match text.strip_prefix("ctrl-") {
        Some(letter) => (true, letter),
        None => (false, text),
    };
    match (is_control, letter.as_bytes()) {
        (false, [letter]) if letter.is_ascii_graphic() => Ok(*letter),
        // The terminal's control characters are the letters' numbers without their upper bits.
        (true, [letter @ (b'a'..=b'z' | b'@' | b'['..=b'_')]) => Ok(letter & 0x1f),
        _ => Err(NoKeys),
    }
}

/// Looks for the keys in what is typed.
pub(super) struct Scanner {
    keys: Vec<u8>,
    /// How many of them were the last that was typed.
    matched: usize,
}

impl Scanner {
    pub(super) fn new(keys: &DetachKeys) -> Self {
        Self {
            keys: keys.0.clone(),
            matched: 0,
        }
    }

    /// What is to be passed on of these bytes; none if they end the sequence.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut passed = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            self.step(byte, &mut passed);
            if self.matched > 0 && self.matched == self.keys.len() {
                return None;
            }
        }
        Some(passed)
    }

    fn step(&mut self, byte: u8, passed: &mut Vec<u8>) {
        if self.keys.get(self.matched) == Some(&byte) {
            self.matched += 1;
            return;
        }
        passed.extend_from_slice(&self.keys[..self.matched]);
        self.matched = usize::from(self.keys.first() == Some(&byte));
        if self.matched == 0 {
            passed.push(byte);
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
    fn keys_are_named_as_podman_names_them() {
        let keys = |text: &str| text.parse::<DetachKeys>().map(|keys| keys.0);
        assert_eq!(keys(DETACH_KEYS), Ok(vec![0x10, 0x11]));
        assert_eq!(keys("ctrl-],a"), Ok(vec![0x1d, b'a']));
        assert_eq!(keys(""), Ok(vec![]));
        for wrong in ["ctrl-", "ctrl-1", "ab", "a,,b", "ctrl-A", "\u{e9}"] {
            assert_eq!(keys(wrong), Err(NoKeys), "{wrong}");
        }
    }

    #[test]
    fn the_sequence_is_not_passed_on() {
        let mut scanner = scanner(DETACH_KEYS);
        assert_eq!(scanner.pass(b"ls\r"), Some(b"ls\r".to_vec()));
        assert_eq!(scanner.pass(b"\x10\x11"), None);
    }

    #[test]
    fn it_may_come_in_pieces() {
        let mut scanner = scanner(DETACH_KEYS);
        assert_eq!(scanner.pass(b"a\x10"), Some(b"a".to_vec()));
        assert_eq!(scanner.pass(b"\x11"), None);
    }

    #[test]
    fn what_only_begins_like_it_is_passed_on() {
        let mut scanner = scanner(DETACH_KEYS);
        assert_eq!(scanner.pass(b"\x10"), Some(vec![]));
        assert_eq!(scanner.pass(b"x"), Some(b"\x10x".to_vec()));
        assert_eq!(scanner.pass(b"\x10\x10\x11"), None);
    }

    #[test]
    fn without_keys_everything_is_passed_on() {
        let mut scanner = scanner("");
        assert_eq!(scanner.pass(b"\x10\x11"), Some(b"\x10\x11".to_vec()));
    }
}
