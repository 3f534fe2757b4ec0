//! Where files are, as a user says it: here, or in a node.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::name::Name;

/// Where files are, or are to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this system.
    Here(PathBuf),
    /// In a node, seen from its root.
    In(Name, PathBuf),
}

/// Why words name no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// Nothing is named.
    #[error("a place is PATH, or NODE:PATH")]
    Empty,
    /// What is before the colon is no name of a node.
    #[error("'{0}' is no name of a node; a file of this system with a colon is ./{0}:…")]
    Name(String),
}

impl Place {
    /// Reads `NODE:PATH`, or the path of a file of this system. If that has a colon in its first
    /// part, it begins with `./` or `/`.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub fn parse(text: &OsStr) -> Result<Self, PlaceError> {
        let bytes = text.as_bytes();
        let end = bytes.iter().position(|byte| b":/".contains(byte));
        let here = || Ok(Self::Here(PathBuf::from(text)));
        match end.filter(|&end| bytes[end] == b':' && bytes[0] != b'.') {
            None if bytes.is_empty() => Err(PlaceError::Empty),
            None => here(),
            Some(colon) => {
                let (name, path) = (&bytes[..colon], &bytes[colon + 1..]);
                let name = String::from_utf8_lossy(name);
                let node = name.parse().map_err(|_| PlaceError::Name(name.into()))?;
                match path {
                    [] => Err(PlaceError::Empty),
                    path => Ok(Self::In(
                        node,
                        Path::new(OsStr::from_bytes(path)).to_owned(),
                    )),
                }
            }
        }
    }
}

/// What a file or folder is called in another folder; none if only its content is meant, by `/.` at
/// the end, or if it has no name.
pub(super) fn name_of(path: &Path) -> Option<OsString> {
    let bytes = path.as_os_str().as_bytes();
    let is_content = bytes == b"." || bytes.ends_with(b"/.");
    path.file_name()
        .filter(|_| !is_content)
        .map(OsStr::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Place, PlaceError> {
        Place::parse(OsStr::new(text))
    }

    #[test]
    fn nodes_are_before_a_colon() {
        let within = |node: &str, path: &str| Ok(Place::In(node.parse().unwrap(), path.into()));
        assert_eq!(parse("web:/etc/x"), within("web", "/etc/x"));
        assert_eq!(parse("web:x:y"), within("web", "x:y"));
        for here in ["x", "./web:x", "/a:b", "a/b:c", ".", "..", ".hidden:x"] {
            assert_eq!(parse(here), Ok(Place::Here(here.into())));
        }
        for (none, error) in [
            ("", PlaceError::Empty),
            ("web:", PlaceError::Empty),
            (":x", PlaceError::Name(String::new())),
            ("we b:x", PlaceError::Name("we b".into())),
        ] {
            assert_eq!(parse(none), Err(error), "{none}");
        }
    }

    #[test]
    fn content_has_no_name() {
        let name = |path: &str| name_of(Path::new(path));
        assert_eq!(name("/a/b"), Some("b".into()));
        assert_eq!(name("a/"), Some("a".into()));
        for path in ["a/.", ".", "..", "/", "a/.."] {
            assert_eq!(name(path), None, "{path}");
        }
    }

    proptest! {
        /// Whatever is typed, it is refused or says what was typed.
        #[test]
        fn places_read_back(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let text = OsStr::from_bytes(&bytes);
            match Place::parse(text) {
                Ok(Place::Here(path)) => prop_assert_eq!(path.as_os_str(), text),
                Ok(Place::In(node, path)) => {
                    let again = [node.as_str().as_bytes(), b":", path.as_os_str().as_bytes()];
                    prop_assert_eq!(again.concat(), bytes);
                }
                Err(_) => prop_assert!(bytes.is_empty() || bytes.contains(&b':')),
            }
        }
    }
}
