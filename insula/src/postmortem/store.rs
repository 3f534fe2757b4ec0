//! The folder where dumps are kept, and how many of them.
//!
//! A dump gets its name when it is whole ([`state`](crate::state)). So a dump that is listed can be
//! used, and what a killed command leaves is swept up by the next.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;

use crate::root::Root;
use crate::state;
use crate::units::Size;

/// Where dumps are kept.
pub const FOLDER: &str = "/var/lib/insula/dumps";
/// Ending of a dump's file.
const ENDING: &str = ".vmcore";
/// Bytes of the blocks that the system counts a file's space in.
const BLOCK: u64 = 512;

/// How many dumps are kept; the oldest go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// At most so many.
    pub count: usize,
    /// At most so many bytes on the disk, all together.
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

/// A limit that the environment sets is none.
#[derive(Debug, thiserror::Error)]
#[error("{variable}='{value}' is no limit: {expected}; nothing was touched")]
pub struct LimitsError {
    variable: &'static str,
    value: String,
    expected: &'static str,
}

impl Limits {
    /// How many, by `INSULA_DUMPS_MAX`.
    pub const COUNT_VARIABLE: &str = "INSULA_DUMPS_MAX";
    /// How much, by `INSULA_DUMPS_SIZE_MAX`.
    pub const BYTES_VARIABLE: &str = "INSULA_DUMPS_SIZE_MAX";

    /// Those that the environment sets, for the others the usual ones.
    ///
    /// # Errors
    /// [`LimitsError`].
    pub fn from_environment() -> Result<Self, LimitsError> {
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
) -> Result<Option<T>, LimitsError> {
    let Ok(value) = std::env::var(variable) else {
        return Ok(None);
    };
    match value.parse() {
        Ok(limit) => Ok(Some(limit)),
        Err(_) => Err(LimitsError {
            variable,
            value,
            expected,
        }),
    }
}

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file in it.
    #[error("{path}: {source}; no dump was changed", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is none of that name.
    #[error(
        "there is no dump '{0}'; nothing was touched\n\
         `insula dump ls` lists those there are"
    )]
    Unknown(String),
}

/// A dump that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeptDump {
    /// Its name: that of its file.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// When it was written, in seconds since 1970.
    pub written_unix_s: u64,
    /// Bytes that it seems to have: all of the node's memory.
    pub size_bytes: u64,
    /// Bytes that it takes.
    pub disk_bytes: u64,
}

/// The folder.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// The usual one.
    #[must_use]
    pub fn new(root: &Root) -> Self {
        Self {
            folder: root.path(FOLDER),
        }
    }

    /// The dumps in it, oldest first; none when there is no folder.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn list(&self) -> Result<Vec<KeptDump>, StoreError> {
        let mut dumps: Vec<_> = self
            .files()?
            .iter()
            .filter(|path| has_ending(path, ENDING))
            // One that goes meanwhile is left out.
            .filter_map(|path| kept(path).ok())
            .collect();
        dumps.sort_by_key(|(written, _)| *written);
        Ok(dumps.into_iter().map(|(_, dump)| dump).collect())
    }

    /// Removes the dump of that name.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        let known = self.list()?.into_iter().find(|dump| dump.name == name);
        let path = known
            .ok_or_else(|| StoreError::Unknown(name.to_owned()))?
            .path;
        fs::remove_file(&path).map_err(at(&path))
    }

    /// Begins the dump of a node.
    pub(super) fn begin(&self, node: &str) -> Result<Pending, StoreError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)
            .map_err(at(&self.folder))?;
        state::Pending::sweep(&self.folder).map_err(|(path, error)| at(&path)(error))?;
        let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let time: String = time.chars().filter(|c| !"-:".contains(*c)).collect();
        let file = state::Pending::create(&self.folder).map_err(at(&self.folder))?;
        let name = Place::Free(self.folder.join(format!("{node}-{time}")));
        Ok(Pending { file, name })
    }

    /// Removes the oldest until the limits hold; never `newest`. Answers what went.
    pub(super) fn prune(&self, limits: Limits, newest: &Path) -> Result<Vec<PathBuf>, StoreError> {
        let dumps = self.list()?;
        let mut count = dumps.len();
        let mut bytes: u64 = dumps.iter().map(|dump| dump.disk_bytes).sum();
        let mut gone = Vec::new();
        for dump in dumps.into_iter().filter(|dump| dump.path != newest) {
            if count <= limits.count.max(1) && bytes <= limits.bytes {
                break;
            }
            fs::remove_file(&dump.path).map_err(at(&dump.path))?;
            count -= 1;
            bytes = bytes.saturating_sub(dump.disk_bytes);
            gone.push(dump.path);
        }
        Ok(gone)
    }

    fn files(&self) -> Result<Vec<PathBuf>, StoreError> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(at(&self.folder)(error)),
        };
        let paths = entries.map(|entry| Ok(entry?.path()));
        paths.collect::<io::Result<_>>().map_err(at(&self.folder))
    }
}

/// A dump in the making. Unless it is finished it goes with this value.
#[derive(Debug)]
pub(super) struct Pending {
    file: state::Pending,
    name: Place,
}

/// Where a dump will be.
#[derive(Debug)]
enum Place {
    /// At the first free name that begins so: there may be two in one second.
    Free(PathBuf),
    /// Here, whatever there is.
    Exactly(PathBuf),
}

impl Pending {
    /// Begins a file that will be `path`. Only its owner may read it: it holds all that the node
    /// knew.
    pub(super) fn create(path: PathBuf) -> Result<Self, StoreError> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        Ok(Self {
            file: state::Pending::create(folder).map_err(at(&path))?,
            name: Place::Exactly(path),
        })
    }

    /// To write it.
    pub(super) fn file(&self) -> &File {
        self.file.file()
    }

    /// Bytes that it may take of its file system.
    pub(super) fn room(&self) -> u64 {
        // Where the system does not tell, writing tells.
        self.file.room().unwrap_or(u64::MAX)
    }

    /// Gives it its name as soon as it is on the disk. Answers where it is.
    pub(super) fn finish(self) -> Result<PathBuf, StoreError> {
        match self.name {
            Place::Exactly(path) => {
                self.file.replace(&path).map_err(at(&path))?;
                Ok(path)
            }
            Place::Free(beginning) => keep(self.file, &beginning),
        }
    }
}

/// Keeps it under the first free name that begins so.
fn keep(mut file: state::Pending, beginning: &Path) -> Result<PathBuf, StoreError> {
    let mut number = 1_u32;
    loop {
        let mut path = beginning.as_os_str().to_owned();
        if number > 1 {
            path.push(format!("-{number}"));
        }
        path.push(ENDING);
        let path = PathBuf::from(path);
        file = match file.keep(&path) {
            Ok(()) => return Ok(path),
            Err((error, file)) if error.kind() == io::ErrorKind::AlreadyExists => file,
            Err((error, _)) => return Err(at(&path)(error)),
        };
        number += 1;
    }
}

/// A dump, and when it was written.
fn kept(path: &Path) -> io::Result<(SystemTime, KeptDump)> {
    let metadata = fs::metadata(path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let dump = KeptDump {
        name: name.into_owned(),
        path: path.to_owned(),
        written_unix_s: u64::try_from(metadata.mtime()).unwrap_or_default(),
        size_bytes: metadata.len(),
        disk_bytes: metadata.blocks() * BLOCK,
    };
    Ok((metadata.modified()?, dump))
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.to_string_lossy().ends_with(ending)
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> StoreError + use<> {
    let path = path.to_owned();
    |source| StoreError::File { path, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::time::Duration;

    use super::*;
    use crate::root::fake::Tree;

    /// A dump that takes so many KiB and is so many seconds old.
    fn add(store: &Store, node: &str, size_kib: usize, age_s: u64) -> PathBuf {
        let pending = store.begin(node).unwrap();
        let bytes = vec![1; size_kib << 10];
        pending.file().write_all_at(&bytes, 0).unwrap();
        let time = SystemTime::now() - Duration::from_secs(age_s);
        pending.file().set_modified(time).unwrap();
        pending.finish().unwrap()
    }

    fn names(store: &Store) -> Vec<String> {
        let nodes = store.list().unwrap().into_iter();
        nodes
            .map(|dump| dump.name.split('-').next().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn the_oldest_go_first() {
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
    fn names_tell_node_and_time_and_are_never_the_same() {
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
        assert!(matches!(store.remove(name), Err(StoreError::Unknown(_))));
        assert!(matches!(store.remove("../x"), Err(StoreError::Unknown(_))));
    }

    #[test]
    fn what_was_not_finished_is_swept_up_unless_it_is_being_written() {
        let tree = Tree::new(&[("/var/lib/insula/dumps/a.vmcore.partial", "left")]);
        let store = Store::new(&tree.root());
        let writing = store.begin("b").unwrap();
        assert_eq!(store.files().unwrap().len(), 1);
        let other = store.begin("c").unwrap();
        assert_eq!(store.files().unwrap().len(), 2);
        drop((writing, other));
        assert_eq!(store.files().unwrap(), Vec::<PathBuf>::new());
    }
}
