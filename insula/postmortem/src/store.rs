//! The folder of stored dumps, and its limits.
//!
//! Dumps are atomic files ([`state`]): a dump that is listed is complete, and the
//! next command removes what a killed one has left.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::state;
use insula_base::units::Size;
use serde::Serialize;

/// The folder.
const FOLDER: &str = "/var/lib/insula/dumps";
/// Extension of a dump's file.
const EXTENSION: &str = ".vmcore";
/// Unit of the system's block counts in bytes.
const BLOCK: u64 = 512;

/// Limits for stored dumps; the oldest are removed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest number of dumps.
    pub count: usize,
    /// Largest number of bytes on disk, all dumps together.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            count: 8,
            bytes: 16 << 30,
        }
    }
}

impl Limits {
    /// Variable that sets the number.
    const COUNT_VARIABLE: &str = "INSULA_DUMPS_MAX";
    /// Variable that sets the size.
    pub(crate) const BYTES_VARIABLE: &str = "INSULA_DUMPS_SIZE_MAX";

    /// The limits that the environment sets, or the defaults.
    ///
    /// # Errors
    /// When a variable has another value.
    pub fn from_environment() -> Result<Self, Error> {
        let usual = Self::default();
        Ok(Self {
            count: variable(Self::COUNT_VARIABLE, "write a number")?.unwrap_or(usual.count),
            bytes: variable(Self::BYTES_VARIABLE, "write a size such as 4G")?
                .map_or(usual.bytes, |Size(bytes)| bytes),
        })
    }
}

fn variable<T: std::str::FromStr>(
    variable: &'static str,
    expected: &'static str,
) -> Result<Option<T>, Error> {
    let Ok(value) = std::env::var(variable) else {
        return Ok(None);
    };
    match value.parse() {
        Ok(limit) => Ok(Some(limit)),
        Err(_) => {
            let what = format!("{variable}='{value}' is not a valid limit: {expected}");
            Err(Error::new(what).untouched())
        }
    }
}

/// A stored dump.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct StoredDump {
    /// Its name: that of the file.
    pub name: String,
    /// Path of the file.
    pub path: PathBuf,
    /// When it was written, in seconds since 1970.
    pub written_unix_s: u64,
    /// Apparent size in bytes: that of the node's memory.
    pub size_bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
}

/// The folder of stored dumps.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// The default folder.
    #[must_use]
    pub fn new(root: &Root) -> Self {
        Self {
            folder: root.path(FOLDER),
        }
    }

    /// The dumps, oldest first; none when the folder does not exist.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn list(&self) -> Result<Vec<StoredDump>, Error> {
        let mut dumps: Vec<_> = self
            .files()?
            .iter()
            .filter(|path| has_extension(path, EXTENSION))
            // A dump that is removed meanwhile is left out.
            .filter_map(|path| stored(path).ok())
            .collect();
        dumps.sort_by_key(|(written, _)| *written);
        Ok(dumps.into_iter().map(|(_, dump)| dump).collect())
    }

    /// Removes the dump of that name.
    ///
    /// # Errors
    /// When there is none, or it cannot be removed.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        let known = self.list()?.into_iter().find(|dump| dump.name == name);
        let path = known.ok_or_else(|| unknown(name))?.path;
        fs::remove_file(&path).map_err(at(&path))
    }

    /// Creates the file for the dump of a node.
    pub(super) fn create(&self, node: &str) -> Result<DumpFile, Error> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)
            .map_err(at(&self.folder))?;
        state::AtomicFile::remove_stale(&self.folder).map_err(|(path, error)| at(&path)(error))?;
        let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let time: String = time.chars().filter(|c| !"-:".contains(*c)).collect();
        let file = state::AtomicFile::create(&self.folder).map_err(at(&self.folder))?;
        let name = FinalPath::Free(self.folder.join(format!("{node}-{time}")));
        Ok(DumpFile { file, name })
    }

    /// Removes the oldest dumps until the limits are met; never `newest`. Returns the removed
    /// files.
    pub(super) fn prune(&self, limits: Limits, newest: &Path) -> Result<Vec<PathBuf>, Error> {
        let dumps = self.list()?;
        let mut count = dumps.len();
        let mut bytes: u64 = dumps.iter().map(|dump| dump.disk_bytes).sum();
        let mut removed = Vec::new();
        for dump in dumps.into_iter().filter(|dump| dump.path != newest) {
            if count <= limits.count.max(1) && bytes <= limits.bytes {
                break;
            }
            fs::remove_file(&dump.path).map_err(at(&dump.path))?;
            count -= 1;
            bytes = bytes.saturating_sub(dump.disk_bytes);
            removed.push(dump.path);
        }
        Ok(removed)
    }

    fn files(&self) -> Result<Vec<PathBuf>, Error> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(at(&self.folder)(error)),
        };
        let paths = entries.map(|entry| Ok(entry?.path()));
        paths.collect::<io::Result<_>>().map_err(at(&self.folder))
    }
}

/// A dump that is being written. Unless it is finished, dropping it removes the file.
#[derive(Debug)]
pub(super) struct DumpFile {
    file: state::AtomicFile,
    name: FinalPath,
}

/// Final path of a dump.
#[derive(Debug)]
enum FinalPath {
    /// The first free name with this prefix: there may be two dumps in one second.
    Free(PathBuf),
    /// This path; an existing file is replaced.
    Exactly(PathBuf),
}

impl DumpFile {
    /// Creates a file that will be `path`. Only its owner may read it: it contains the node's
    /// memory.
    pub(super) fn create(path: PathBuf) -> Result<Self, Error> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        Ok(Self {
            file: state::AtomicFile::create(folder).map_err(at(&path))?,
            name: FinalPath::Exactly(path),
        })
    }

    /// The file to write to.
    pub(super) fn file(&self) -> &File {
        self.file.file()
    }

    /// Bytes that it may take of its file system.
    pub(super) fn available_bytes(&self) -> u64 {
        // If the system does not say, writing fails in time.
        self.file.available_bytes().unwrap_or(u64::MAX)
    }

    /// Gives the file its name once it is on the disk. Returns its path.
    pub(super) fn finish(self) -> Result<PathBuf, Error> {
        match self.name {
            FinalPath::Exactly(path) => {
                self.file.persist(&path).map_err(at(&path))?;
                Ok(path)
            }
            FinalPath::Free(prefix) => persist(self.file, &prefix),
        }
    }
}

/// Gives the file the first free name with this prefix.
fn persist(mut file: state::AtomicFile, prefix: &Path) -> Result<PathBuf, Error> {
    let mut number = 1_u32;
    loop {
        let mut path = prefix.as_os_str().to_owned();
        if number > 1 {
            path.push(format!("-{number}"));
        }
        path.push(EXTENSION);
        let path = PathBuf::from(path);
        file = match file.persist_new(&path) {
            Ok(()) => return Ok(path),
            Err((error, file)) if error.kind() == io::ErrorKind::AlreadyExists => file,
            Err((error, _)) => return Err(at(&path)(error)),
        };
        number += 1;
    }
}

/// A dump, with its time of modification.
fn stored(path: &Path) -> io::Result<(SystemTime, StoredDump)> {
    let metadata = fs::metadata(path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let dump = StoredDump {
        name: name.into_owned(),
        path: path.to_owned(),
        written_unix_s: u64::try_from(metadata.mtime()).unwrap_or_default(),
        size_bytes: metadata.len(),
        disk_bytes: metadata.blocks() * BLOCK,
    };
    Ok((metadata.modified()?, dump))
}

fn has_extension(path: &Path, ending: &str) -> bool {
    path.to_string_lossy().ends_with(ending)
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    |source| {
        Error::new(path.display().to_string())
            .because(source)
            .leaving("no dump was changed")
    }
}

fn unknown(name: &str) -> Error {
    Error::new(format!("there is no dump '{name}'"))
        .untouched()
        .hint("`insula dump ls` lists the dumps")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::time::Duration;

    use insula_base::root::fake::Tree;

    use super::*;

    /// Stores a dump of that size and age.
    fn add(store: &Store, node: &str, size_kib: usize, age_s: u64) -> PathBuf {
        let dump = store.create(node).unwrap();
        let bytes = vec![1; size_kib << 10];
        dump.file().write_all_at(&bytes, 0).unwrap();
        let time = SystemTime::now() - Duration::from_secs(age_s);
        dump.file().set_modified(time).unwrap();
        dump.finish().unwrap()
    }

    fn names(store: &Store) -> Vec<String> {
        let nodes = store.list().unwrap().into_iter();
        nodes
            .map(|dump| dump.name.split('-').next().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn the_oldest_are_removed_first() {
        let tree = Tree::new(&[]);
        let store = Store::new(&tree.root());
        assert_eq!(store.list().unwrap(), []);
        for (age, node) in ["d", "c", "b", "a"].into_iter().enumerate() {
            add(&store, node, 64, age as u64 * 10);
        }
        let newest = store.list().unwrap().pop().unwrap().path;
        let limits = |count, kib: u64| Limits {
            count,
            bytes: kib << 10,
        };
        assert!(store.prune(limits(4, 4096), &newest).unwrap().is_empty());
        assert_eq!(names(&store), ["a", "b", "c", "d"]);
        store.prune(limits(3, 4096), &newest).unwrap();
        assert_eq!(names(&store), ["b", "c", "d"]);
        store.prune(limits(3, 130), &newest).unwrap();
        assert_eq!(names(&store), ["c", "d"]);
        store.prune(limits(0, 0), &newest).unwrap();
        assert_eq!(names(&store), ["d"]);
    }

    #[test]
    fn names_have_node_and_time_and_are_unique() {
        let tree = Tree::new(&[]);
        let store = Store::new(&tree.root());
        let (first, second) = (add(&store, "web", 1, 0), add(&store, "web", 1, 0));
        assert_ne!(first, second);
        let name = first.file_name().unwrap().to_str().unwrap();
        let time = name.strip_prefix("web-").unwrap();
        assert!(
            time.starts_with("20") && time[8..].starts_with('T'),
            "{name}"
        );
        store.remove(name).unwrap();
        assert!(
            store
                .remove(name)
                .unwrap_err()
                .what
                .starts_with("there is no dump")
        );
        assert!(
            store
                .remove("../x")
                .unwrap_err()
                .what
                .starts_with("there is no dump")
        );
    }

    #[test]
    fn unfinished_files_are_removed_unless_being_written() {
        let tree = Tree::new(&[("/var/lib/insula/dumps/a.vmcore.partial", "left")]);
        let store = Store::new(&tree.root());
        let writing = store.create("b").unwrap();
        assert_eq!(store.files().unwrap().len(), 1);
        let other = store.create("c").unwrap();
        assert_eq!(store.files().unwrap().len(), 2);
        drop((writing, other));
        assert_eq!(store.files().unwrap(), Vec::<PathBuf>::new());
    }
}
