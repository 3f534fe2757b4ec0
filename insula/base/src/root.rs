//! The tree of files that describe the machine.

use std::io;
use std::path::{Path, PathBuf};

/// The root directory: the real one, or a folder in which a test simulates another machine.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self(PathBuf::from("/"))
    }
}

impl Root {
    /// A tree that starts at `folder`.
    #[must_use]
    pub fn at(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    /// The real path of `path`, absolute or not, in this tree.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// A file's text, without trailing white space.
    ///
    /// # Errors
    /// The file system's error.
    pub fn text(&self, path: &str) -> io::Result<String> {
        let bytes = std::fs::read(self.path(path))?;
        Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    }

    /// A file's text, parsed; `None` when it is missing or malformed.
    #[must_use]
    pub fn value<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text(path).ok()?.parse().ok()
    }

    /// Names in a folder, sorted; empty when it is missing.
    #[must_use]
    pub fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder))
            .into_iter()
            .flatten()
            .flatten();
        let mut names: Vec<_> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// Whether the file or folder exists.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Numbers `N` of the entries `<prefix>N` in a folder, ascending.
    #[must_use]
    pub(crate) fn numbered(&self, folder: &str, prefix: &str) -> Vec<u32> {
        let names = self.names(folder);
        let mut numbers: Vec<_> = names
            .iter()
            .filter_map(|name| name.strip_prefix(prefix)?.parse().ok())
            .collect();
        numbers.sort_unstable();
        numbers
    }
}

#[cfg(any(test, feature = "test-utils"))]
pub mod fake {
    //! Simulated trees for tests.

    use super::Root;

    /// A temporary folder, and the tree that starts there.
    #[derive(Debug)]
    pub struct Tree {
        folder: tempfile::TempDir,
    }

    impl Tree {
        /// A tree of files, each a path and its text.
        ///
        /// # Panics
        /// If they cannot be written.
        #[must_use]
        pub fn new(files: &[(&str, &str)]) -> Self {
            let tree = Self {
                folder: tempfile::tempdir().unwrap(),
            };
            tree.add(files);
            tree
        }

        /// Adds files.
        ///
        /// # Panics
        /// If they cannot be written.
        pub fn add(&self, files: &[(&str, &str)]) {
            for (path, text) in files {
                let path = self.root().path(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
        }

        /// The tree.
        #[must_use]
        pub fn root(&self) -> Root {
            Root::at(self.folder.path())
        }
    }
}
