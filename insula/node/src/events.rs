//! Events of nodes: a file to which supervisors and commands append a line of JSON for each.
//!
//! As podman's events in a file (`containers.conf(5)`, `events_logger`), they are kept until the base
//! reboots, at most about twice `SIZE_MAX` bytes of them: a full file gets another name, and the one
//! that had it before is removed.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::SystemTime;

use insula_base::root::Root;
use insula_base::state::{RUN, lock};
use serde::{Deserialize, Serialize};

/// The file, and the full one before it.
const FILE: &str = "events.log";
const FULL_FILE: &str = "events.log.1";
/// Held by who gives the file its other name.
const LOCK: &str = "events.lock";
/// Size from which the file is full, in bytes: podman's `events_logfile_max_size`.
const SIZE_MAX: u64 = 1_000_000;

/// What has happened to a node. The names are podman's, where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It was created, to be started later.
    Create,
    /// It was started.
    Start,
    /// It has ended; `reason` says why.
    Died,
    /// It was started again.
    Restart,
    /// It was removed.
    Remove,
    /// It was given another name than `old`.
    Rename,
    /// It was paused.
    Pause,
    /// It goes on.
    Unpause,
    /// Its first core takes no interrupts.
    Unresponsive,
    /// It takes them again.
    Responsive,
    /// Its memory was written to a file, `path`.
    Dump,
    /// Its watcher found a fault: `kind`, `subject`, `detail`.
    Found,
    /// That is no more.
    Ended,
    /// That was repaired.
    Repaired,
    /// A repair was undone.
    Undone,
}

impl Status {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Start => "start",
            Self::Died => "died",
            Self::Restart => "restart",
            Self::Remove => "remove",
            Self::Rename => "rename",
            Self::Pause => "pause",
            Self::Unpause => "unpause",
            Self::Unresponsive => "unresponsive",
            Self::Responsive => "responsive",
            Self::Dump => "dump",
            Self::Found => "found",
            Self::Ended => "ended",
            Self::Repaired => "repaired",
            Self::Undone => "undone",
        }
    }
}

/// Something that has happened to a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct NodeEvent {
    /// When, in UTC (RFC 3339).
    #[serde(with = "rfc3339")]
    #[cfg_attr(feature = "schemars", schemars(with = "String"))]
    pub time: SystemTime,
    /// The node.
    pub name: String,
    /// What.
    pub status: Status,
    /// More about it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

impl NodeEvent {
    /// An event that happens now.
    #[must_use]
    pub fn now(name: &str, status: Status) -> Self {
        Self {
            time: SystemTime::now(),
            name: name.to_owned(),
            status,
            attributes: BTreeMap::new(),
        }
    }

    /// The same with an attribute.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        self.attributes.insert(key.to_owned(), value.into());
        self
    }

    /// Appends it to the file.
    ///
    /// # Errors
    /// The file system's error: the event is lost.
    pub fn record(&self, root: &Root) -> io::Result<()> {
        let folder = root.path(RUN);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)?;
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        let path = folder.join(FILE);
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path)?;
        // One call: lines of several writers do not mix.
        file.write_all(&line)?;
        match file.metadata()?.len() > SIZE_MAX {
            true => replace(root, &file),
            false => Ok(()),
        }
    }
}

/// Gives a full file its other name, unless another process was first.
fn replace(root: &Root, full: &File) -> io::Result<()> {
    let folder = root.path(RUN);
    let _lock = lock(root, LOCK)?;
    let present = match fs::metadata(folder.join(FILE)) {
        // Another process was first, and nobody has written since.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        present => present?,
    };
    match present.ino() == full.metadata()?.ino() {
        true => fs::rename(folder.join(FILE), folder.join(FULL_FILE)),
        false => Ok(()),
    }
}

/// Reads events in their order: those that are there, then those that come.
#[derive(Debug)]
pub struct Reader {
    folder: PathBuf,
    /// The file that is read, and what was read of a line that is not complete.
    file: Option<(File, Vec<u8>)>,
}

impl Reader {
    /// Starts with the oldest event.
    #[must_use]
    pub fn new(root: &Root) -> Self {
        let folder = root.path(RUN);
        let file = File::open(folder.join(FULL_FILE)).ok();
        Self {
            file: file.map(|file| (file, Vec::new())),
            folder,
        }
    }

    /// Those since the last call. What is no event is left out.
    ///
    /// # Errors
    /// The file system's error.
    pub fn read_new(&mut self) -> io::Result<Vec<NodeEvent>> {
        let mut events = Vec::new();
        loop {
            // Before reading: a file with another name gets no more lines a moment later.
            let present = File::open(self.folder.join(FILE));
            if let Some((file, line)) = &mut self.file {
                file.read_to_end(line)?;
                let end = line.iter().rposition(|byte| *byte == b'\n');
                let lines: Vec<u8> = line.drain(..end.map_or(0, |end| end + 1)).collect();
                let lines = lines.split(|byte| *byte == b'\n');
                events.extend(lines.filter_map(|line| serde_json::from_slice(line).ok()));
            }
            let present = match present {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(events),
                present => present?,
            };
            let number = present.metadata()?.ino();
            match &self.file {
                Some((file, _)) if file.metadata()?.ino() == number => return Ok(events),
                _ => self.file = Some((present, Vec::new())),
            }
        }
    }
}

/// Times as text.
mod rfc3339 {
    use super::*;
    use serde::{Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_rfc3339_millis(*time))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
        let text = String::deserialize(from)?;
        humantime::parse_rfc3339(&text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use insula_base::root::fake::Tree;

    use super::*;

    fn event(number: u32) -> NodeEvent {
        NodeEvent {
            time: SystemTime::UNIX_EPOCH + Duration::from_secs(number.into()),
            ..NodeEvent::now("web", Status::Died).with("number", number.to_string())
        }
    }

    #[test]
    fn events_are_lines_of_json() {
        let json = serde_json::to_string(&event(7)).unwrap();
        let expected = r#"{"time":"1970-01-01T00:00:07.000Z","name":"web","status":"died","attributes":{"number":"7"}}"#;
        assert_eq!(json, expected);
        for status in [Status::Start, Status::Unresponsive, Status::Undone] {
            let name = serde_json::to_value(status).unwrap();
            assert_eq!(name, status.name());
        }
    }

    #[test]
    fn they_are_read_in_order_and_once() {
        let tree = Tree::new(&[]);
        let root = tree.root();
        let mut reader = Reader::new(&root);
        assert_eq!(reader.read_new().unwrap(), []);
        event(1).record(&root).unwrap();
        event(2).record(&root).unwrap();
        assert_eq!(reader.read_new().unwrap(), [event(1), event(2)]);
        assert_eq!(reader.read_new().unwrap(), []);
        event(3).record(&root).unwrap();
        assert_eq!(reader.read_new().unwrap(), [event(3)]);
        assert_eq!(Reader::new(&root).read_new().unwrap().len(), 3);
    }

    #[test]
    fn of_a_full_file_a_reader_misses_nothing() {
        let tree = Tree::new(&[]);
        let root = tree.root();
        let mut reader = Reader::new(&root);
        let long = event(1).with("text", "x".repeat(usize::try_from(SIZE_MAX).unwrap() / 3));
        let mut read = 0;
        for _ in 0..4 {
            long.record(&root).unwrap();
            long.record(&root).unwrap();
            read += reader.read_new().unwrap().len();
        }
        assert_eq!(read, 8);
        let kept = Reader::new(&root).read_new().unwrap().len();
        assert!((3..8).contains(&kept), "{kept}");
    }

    #[test]
    fn a_full_file_gets_its_other_name_once() {
        let tree = Tree::new(&[]);
        let root = tree.root();
        event(1).record(&root).unwrap();
        let folder = root.path(RUN);
        let full = File::open(folder.join(FILE)).unwrap();
        replace(&root, &full).unwrap();
        assert!(folder.join(FULL_FILE).exists() && !folder.join(FILE).exists());
        // As a process that found it full as well, before anybody writes again; and after that.
        replace(&root, &full).unwrap();
        event(2).record(&root).unwrap();
        replace(&root, &full).unwrap();
        assert!(folder.join(FILE).exists());
        assert_eq!(Reader::new(&root).read_new().unwrap(), [event(1), event(2)]);
    }

    #[test]
    fn what_is_no_event_is_left_out() {
        let tree = Tree::new(&[("/run/insula/events.log", "{}\nno\n")]);
        let root = tree.root();
        let mut reader = Reader::new(&root);
        assert_eq!(reader.read_new().unwrap(), []);
        event(1).record(&root).unwrap();
        assert_eq!(reader.read_new().unwrap(), [event(1)]);
    }
}
