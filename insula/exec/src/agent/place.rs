//! Paths on the base or in a node, as given by the user.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use insula_driver::name::Name;

/// A path on the base or in a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the base.
    Base(PathBuf),
    /// In a node, relative to its root.
    Node(Name, PathBuf),
}

/// Why a text is not such a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// It is empty.
    #[error("expected PATH or NODE:PATH")]
    Empty,
    /// The part before the colon is not a valid node name.
    #[error("'{0}' is not a valid node name; write a file of this system with a colon as ./{0}:…")]
    Name(String),
}

impl Place {
    /// Parses `NODE:PATH` or a path of the base. The latter starts with `./` or `/` if its first
    /// component has a colon.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub fn parse(text: &OsStr) -> Result<Self, PlaceError> {
        let bytes = text.as_bytes();
        let end = bytes.iter().position(|byte| b":/".contains(byte));
        let base = || Ok(Self::Base(PathBuf::from(text)));
        match end.filter(|&end| bytes[end] == b':' && bytes[0] != b'.') {
            None if bytes.is_empty() => Err(PlaceError::Empty),
            None => base(),
            Some(colon) => {
                let (name, path) = (&bytes[..colon], &bytes[colon + 1..]);
                let name = String::from_utf8_lossy(name);
                let node = name.parse().map_err(|_| PlaceError::Name(name.into()))?;
                match path {
                    [] => Err(PlaceError::Empty),
                    path => Ok(Self::Node(
                        node,
                        Path::new(OsStr::from_bytes(path)).to_owned(),
                    )),
                }
            }
        }
    }
}

/// The name under which a file or folder is copied; `None` for the content of a folder (`/.` at the
/// end) or a path without a name.
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
    fn the_node_is_before_the_colon() {
        let in_node = |node: &str, path: &str| Ok(Place::Node(node.parse().unwrap(), path.into()));
        assert_eq!(parse("web:/etc/x"), in_node("web", "/etc/x"));
        assert_eq!(parse("web:x:y"), in_node("web", "x:y"));
        for here in ["x", "./web:x", "/a:b", "a/b:c", ".", "..", ".hidden:x"] {
            assert_eq!(parse(here), Ok(Place::Base(here.into())));
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
        /// Any text is refused or round-trips.
        #[test]
        fn places_read_back(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let text = OsStr::from_bytes(&bytes);
            match Place::parse(text) {
                Ok(Place::Base(path)) => prop_assert_eq!(path.as_os_str(), text),
                Ok(Place::Node(node, path)) => {
                    let again = [node.as_str().as_bytes(), b":", path.as_os_str().as_bytes()];
                    prop_assert_eq!(again.concat(), bytes);
                }
                Err(_) => prop_assert!(bytes.is_empty() || bytes.contains(&b':')),
            }
        }
    }
}
