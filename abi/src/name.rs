//! Names of images and nodes.

use core::fmt;
use core::str::Utf8Error;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `INSULA_NAME_MAX`: longest name, its terminating NUL included, in bytes.
pub const NAME_MAX: usize = 64;

/// `struct insula_name`, and the `name` field of the other structures: a NUL-terminated name.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Name {
    /// The bytes, zero from the end of the name on.
    pub name: [u8; NAME_MAX],
}

impl Name {
    /// The empty name, to be filled in by the module.
    pub const EMPTY: Self = Self {
        name: [0; NAME_MAX],
    };

    /// The name made of `text`; `None` if it is empty, too long or holds a NUL.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.is_empty() || bytes.len() >= NAME_MAX || bytes.contains(&0) {
            return None;
        }
        let mut name = Self::EMPTY;
        name.name.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(name)
    }

    /// The text up to the first NUL.
    ///
    /// # Errors
    /// When the bytes are not UTF-8.
    pub fn to_str(&self) -> Result<&str, Utf8Error> {
        let end = self
            .name
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(NAME_MAX);
        core::str::from_utf8(self.name.split_at(end).0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_str() {
            Ok(text) => write!(f, "{text:?}"),
            Err(_) => write!(f, "{:?}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let longest = "abcdefghijklmnopqrstuvwxyz-abcdefghijklmnopqrstuvwxyz-abcdefghi";
        assert_eq!(longest.len(), NAME_MAX - 1);
        for text in ["a", "web-1", longest] {
            assert_eq!(Name::new(text).unwrap().to_str(), Ok(text));
        }
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let too_long = [b'x'; NAME_MAX];
        assert_eq!(Name::new(""), None);
        assert_eq!(Name::new("a\0b"), None);
        assert_eq!(Name::new(core::str::from_utf8(&too_long).unwrap()), None);
    }

    #[test]
    fn text_without_nul_is_the_whole_field() {
        let full = Name {
            name: [b'x'; NAME_MAX],
        };
        assert_eq!(full.to_str().unwrap().len(), NAME_MAX);
        assert!(
            Name {
                name: [0xff; NAME_MAX]
            }
            .to_str()
            .is_err()
        );
    }
}
