//! Input of an emulated machine, a file system on a disk, and its output, a tar archive on another.

pub mod equipment;
pub mod module;
pub mod node_initrd;
pub mod programs;

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::ext4::{self, Ext4Error};

/// Content of a file to put in.
#[derive(Clone, Debug)]
pub enum Content {
    /// A file of the host.
    File(PathBuf),
    /// These bytes.
    Bytes(Vec<u8>),
}

/// Files to put in, by their path below /payload.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    /// Content and permissions by path.
    files: BTreeMap<String, (Content, u32)>,
    /// Whether to load insula.ko before the task starts.
    pub load_module: bool,
}

impl Payload {
    /// Adds a file.
    pub fn file(&mut self, path: &str, content: Content) {
        self.files.insert(path.to_owned(), (content, 0o644));
    }

    /// Adds a program; those in bin/ are in PATH.
    pub fn program(&mut self, path: &str, content: Content) {
        self.files.insert(path.to_owned(), (content, 0o755));
    }

    /// Writes the disk, a file system that the machine only mounts.
    ///
    /// # Errors
    /// When a file cannot be read or the disk cannot be written.
    pub(crate) fn write(&self, disk: &Path) -> io::Result<()> {
        let tree = tempfile::tempdir_in(disk.parent().unwrap_or(Path::new(".")))?;
        for (path, (content, mode)) in &self.files {
            let path = tree.path().join(path);
            fs::create_dir_all(path.parent().unwrap_or(tree.path()))?;
            match content {
                Content::File(source) => {
                    fs::copy(source, &path).map_err(|error| name_file(source, &error))?;
                }
                Content::Bytes(bytes) => fs::write(&path, bytes)?,
            }
            fs::set_permissions(&path, Permissions::from_mode(*mode))?;
        }
        ext4::make(tree.path(), disk).map_err(|error| match error {
            Ext4Error::Tree(error) => error,
            Ext4Error::Tool(error) => io::Error::other(error),
        })
    }
}

fn name_file(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Files that a machine stored, by their path below /result.
///
/// # Errors
/// When the disk cannot be read. One that was never written holds no file.
pub(crate) fn read_result(disk: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(File::open(disk)?).entries()? {
        let mut entry = entry?;
        if entry.header().entry_type().is_file() {
            let path = entry
                .path()?
                .to_string_lossy()
                .trim_start_matches("./")
                .to_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content)?;
            files.insert(path, content);
        }
    }
    Ok(files)
}

/// Makes an empty, sparse disk of `size` bytes.
pub(crate) fn empty_disk(path: &Path, size: u64) -> io::Result<()> {
    fs::File::create(path)?.set_len(size)
}

/// Quotes `words` for a shell.
pub(crate) fn shell_command<W: AsRef<str>>(words: &[W]) -> String {
    let quote = |word: &W| format!("'{}'", word.as_ref().replace('\'', r"'\''"));
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tool::Tool;
    use proptest::prelude::*;
    use std::process::Command;

    /// Output of debugfs about a file on `disk`.
    fn debugfs(disk: &Path, request: &str) -> String {
        let tool = Tool::new("debugfs").args(["-R", request]);
        tool.arg(disk).run().unwrap()
    }

    #[test]
    fn payload_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        fs::write(&source, "from a file").unwrap();
        let mut payload = Payload::default();
        payload.file("a/b", Content::Bytes(b"bytes".to_vec()));
        payload.program("bin/c", Content::File(source));
        let disk = folder.path().join("disk");
        payload.write(&disk).unwrap();
        assert!(debugfs(&disk, "cat /a/b").contains("bytes"));
        assert!(debugfs(&disk, "cat /bin/c").contains("from a file"));
        assert!(debugfs(&disk, "stat /a/b").contains("Mode:  0644"));
        assert!(debugfs(&disk, "stat /bin/c").contains("Mode:  0755"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn unwritten_disk_holds_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk");
        empty_disk(&disk, 1 << 20).unwrap();
        assert!(read_result(&disk).unwrap().is_empty());
    }

    #[test]
    fn missing_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut payload = Payload::default();
        payload.file("a", Content::File("/does/not/exist".into()));
        let error = payload.write(&folder.path().join("disk")).unwrap_err();
        assert!(error.to_string().contains("/does/not/exist"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn shell_gives_the_same_words(words in prop::collection::vec("[^\0]{0,12}", 1..4)) {
            let script = format!("printf '%s\\0' {}", shell_command(&words));
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            let expected: String = words.iter().map(|word| format!("{word}\0")).collect();
            prop_assert_eq!(output.stdout, expected.into_bytes());
        }
    }
}
