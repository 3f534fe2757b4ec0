//! What is kept of a container while it exists: a folder with its record, and the bundle by which the ordinary
//! runtime runs the process that stands for it.
//!
//! In the namespaces of that process much of the base is mounted below this folder. The base does not see that;
//! all the same nothing here is removed recursively, but by its name, and folders only if they are empty.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use insula_base::error::Error;
use insula_base::state::{AtomicFile, RUN};
use insula_driver::name::Name;
use insula_node::NodeSpec;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::config::{Kernel, Process};
use super::executable::Rootfs;
use super::hooks::Hooks;
use super::mounts::{CONTAINER, Placed};
use super::node::{Network, NodeKind};
use super::pod::{Inside, Member};

/// Folder of all containers, in [`RUN`].
const FOLDER: &str = "oci";
/// Files of one.
const RECORD: &str = "container.json";
const CONFIG: &str = "config.json";
const ROOT: &str = "root";
const PID: &str = "pid";
const PAUSED: &str = "paused";

/// A container, as it was created.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Record {
    /// Its id.
    pub(super) id: String,
    /// Its bundle, absolute.
    pub(super) bundle: PathBuf,
    /// Its node's name.
    pub(super) node: Name,
    /// What its node is to be.
    pub(super) spec: NodeSpec,
    /// Its node's kernel, if that is of no image.
    pub(super) kernel: Option<Kernel>,
    /// Its network.
    pub(super) network: Network,
    /// Its first process.
    pub(super) process: Process,
    /// Its root on the base.
    #[serde(default)]
    pub(super) root: Rootfs,
    /// Its mounts.
    pub(super) mounts: Vec<Placed>,
    /// Its engine's hooks.
    pub(super) hooks: Hooks,
    /// What the process that stands for it has in its root.
    pub(super) base: Base,
    /// File in which the ordinary runtime writes that process's id.
    pub(super) pid_file: PathBuf,
    /// Its name in its node.
    pub(super) name: Name,
    /// What it is there.
    pub(super) inside: Inside,
    /// Whose node that is, if it has none of its own.
    pub(super) member: Option<Member>,
    /// What its node is.
    pub(super) kind: NodeKind,
}

impl Record {
    /// Checks that there is the program of a further process, unless the container may have mounted something over
    /// its files.
    ///
    /// # Errors
    /// As of [`Rootfs::check`].
    pub(super) fn check_program(&self, process: &Process) -> Result<(), Error> {
        match self.process.may_mount() || process.may_mount() {
            true => Ok(()),
            false => self.root.check(process),
        }
    }

    /// Whether its processes are the proxies of a lightweight kernel's: see [`delegated`](super::delegated).
    pub(super) fn is_delegated(&self) -> bool {
        self.kind == NodeKind::Lightweight
    }
}

impl Record {
    /// Id of the process that stands for it, once it is created.
    pub(super) fn pid(&self) -> Option<u32> {
        let text = fs::read_to_string(&self.pid_file).ok()?;
        text.trim().parse().ok()
    }
}

/// What is in the base's root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Base {
    /// Names of its folders.
    pub(super) folders: Vec<String>,
    /// Its links, and where they lead.
    pub(super) links: Vec<(String, PathBuf)>,
}

impl Base {
    /// Looks at the root. Names that are no text are left out.
    pub(super) fn read() -> io::Result<Self> {
        let mut base = Self::default();
        for entry in fs::read_dir("/")? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let kind = entry.file_type()?;
            if kind.is_dir() {
                base.folders.push(name);
            } else if kind.is_symlink() {
                base.links.push((name, fs::read_link(entry.path())?));
            }
        }
        base.folders.sort();
        base.links.sort();
        Ok(base)
    }
}

/// The folder of a container.
#[derive(Clone, Debug)]
pub(super) struct State(PathBuf);

impl State {
    /// That of the container with this id, which need not exist. The id is a single name.
    pub(super) fn of(id: &str) -> Self {
        Self(Path::new(RUN).join(FOLDER).join(id))
    }

    /// Those of all containers.
    pub(super) fn all() -> Vec<Self> {
        let folders = fs::read_dir(Path::new(RUN).join(FOLDER));
        let folders = folders.into_iter().flatten().flatten();
        folders.map(|folder| Self(folder.path())).collect()
    }

    /// Its path, which is that of the ordinary runtime's bundle.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Root of the process that stands for the container.
    pub(super) fn root(&self) -> PathBuf {
        self.0.join(ROOT)
    }

    /// The file for the id of the process that stands for it, if its engine wants none elsewhere.
    pub(super) fn pid_file(&self) -> PathBuf {
        self.0.join(PID)
    }

    /// Makes the folder of a new container.
    ///
    /// # Errors
    /// When there is one already, or it cannot be made; nothing is left behind.
    pub(super) fn create(&self, record: &Record, config: &Value) -> Result<(), Error> {
        let parent = self.0.parent().unwrap_or(Path::new("/"));
        let mut private = DirBuilder::new();
        private.mode(0o700);
        let made = DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(parent)
            .and_then(|()| private.create(&self.0));
        match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(exists(&record.id));
            }
            made => made.map_err(|error| not_made(&record.id, error))?,
        }
        let filled = self.fill(record, config);
        filled.map_err(|error| {
            self.remove(Some(record));
            not_made(&record.id, error)
        })
    }

    fn fill(&self, record: &Record, config: &Value) -> io::Result<()> {
        self.write(RECORD, &serde_json::to_vec(record)?)?;
        self.write(CONFIG, &serde_json::to_vec(config)?)?;
        let root = self.root();
        fs::create_dir(&root)?;
        for (name, target) in &record.base.links {
            symlink(target, root.join(name))?;
        }
        Ok(())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let file = AtomicFile::create(&self.0)?;
        file.file().write_all(bytes)?;
        file.persist(&self.0.join(name))
    }

    /// Whether its container is paused.
    pub(super) fn is_paused(&self) -> bool {
        self.0.join(PAUSED).exists()
    }

    /// Says that its container is paused, or not.
    ///
    /// # Errors
    /// It cannot be kept.
    pub(super) fn set_paused(&self, is_paused: bool) -> io::Result<()> {
        let file = self.0.join(PAUSED);
        if is_paused {
            return File::create(file).map(drop);
        }
        match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// A new file for a process that joins the container, and its path.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn new_process_file(&self) -> Result<(File, PathBuf), Error> {
        let file = tempfile::Builder::new()
            .prefix("process-")
            .suffix(".json")
            .tempfile_in(&self.0);
        let kept = file.and_then(|file| Ok(file.keep()?));
        kept.map_err(|error| {
            Error::new("the process cannot be described to the container")
                .because(error)
                .untouched()
        })
    }

    /// The container's record; `None` if there is no such container.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn record(&self) -> Result<Option<Record>, Error> {
        let path = self.0.join(RECORD);
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| unreadable(&path, error))?,
        };
        let record = serde_json::from_slice(&bytes);
        record.map(Some).map_err(|error| unreadable(&path, error))
    }

    /// Removes the folder. What cannot be removed stays: the container is gone.
    pub(super) fn remove(&self, record: Option<&Record>) {
        let root = self.root();
        let own = root.join(CONTAINER.trim_start_matches('/'));
        if let Some(record) = record {
            let waiting = record
                .mounts
                .iter()
                .filter_map(|one| one.waits_at.file_name());
            for place in waiting.map(|name| own.join(name)) {
                // The mount point of a file is one.
                let _ = fs::remove_dir(&place).or_else(|_| fs::remove_file(&place));
            }
            let links = record.base.links.iter().map(|(name, _)| name);
            links.for_each(|name| drop(fs::remove_file(root.join(name))));
            let folders = record.base.folders.iter();
            folders.for_each(|name| drop(fs::remove_dir(root.join(name))));
        }
        for folder in [&own.join("rootfs"), &own, &root] {
            let _ = fs::remove_dir(folder);
        }
        // Only files are removed so.
        for file in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let _ = fs::remove_file(file.path());
        }
        let _ = fs::remove_dir(&self.0);
        // As long as there is no other container.
        let _ = self.0.parent().map(fs::remove_dir);
    }
}

/// Checks that an id is a single name, as crun and runc do.
///
/// # Errors
/// It is none.
pub(super) fn check_id(id: &str) -> Result<(), Error> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_+-.".contains(&byte);
    if id.is_empty() || id == "." || id == ".." || !id.bytes().all(allowed) {
        let what = format!("'{id}' cannot be a container's id");
        let hint = "use letters, digits, '_', '+', '-' and '.'";
        return Err(Error::new(what).untouched().hint(hint));
    }
    Ok(())
}

fn exists(id: &str) -> Error {
    Error::new(format!("there is a container '{id}' already"))
        .untouched()
        .hint(format!("`insula-oci delete --force {id}` removes it"))
}

fn not_made(id: &str, error: io::Error) -> Error {
    Error::new(format!("the container '{id}' cannot be made"))
        .because(error)
        .nothing_kept()
}

fn unreadable(path: &Path, error: impl Into<insula_base::error::Source>) -> Error {
    Error::new(format!("{} cannot be read", path.display()))
        .because(error)
        .unchanged()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::Capabilities;

    /// A record with that id.
    pub(in super::super) fn record(id: &str) -> Record {
        Record {
            id: id.to_owned(),
            bundle: PathBuf::new(),
            node: id.parse().unwrap(),
            spec: NodeSpec::default(),
            kernel: None,
            network: Network::None,
            process: Process::default(),
            root: Rootfs::default(),
            mounts: Vec::new(),
            hooks: Hooks::new(),
            base: Base::default(),
            pid_file: PathBuf::new(),
            name: id.parse().unwrap(),
            inside: Inside::default(),
            member: None,
            kind: NodeKind::Linux,
        }
    }

    #[test]
    fn only_where_nothing_can_be_mounted_it_is_known_what_there_is() {
        let root = tempfile::tempdir().unwrap();
        let with = |names: &[&str]| Process {
            args: vec!["/none".into()],
            capabilities: Some(Capabilities {
                bounding: names.iter().map(|&name| name.into()).collect(),
                ..Capabilities::default()
            }),
            ..Process::default()
        };
        let (usual, privileged) = (with(&["CAP_CHOWN"]), with(&["CAP_SYS_ADMIN"]));
        let check = |first: &Process, further: &Process| {
            let record = Record {
                root: Rootfs::new(root.path(), &[]),
                process: first.clone(),
                ..record("web")
            };
            record.check_program(further).is_ok()
        };
        assert!(!check(&usual, &usual));
        assert!(check(&privileged, &usual) && check(&usual, &privileged));
        assert!(check(&Process::default(), &usual));
    }

    #[test]
    fn ids_of_processes_are_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let record = Record {
            pid_file: file.path().to_owned(),
            ..record("web")
        };
        for (text, pid) in [("", None), ("x", None), ("12", Some(12)), ("7\n", Some(7))] {
            fs::write(file.path(), text).unwrap();
            assert_eq!(record.pid(), pid, "{text}");
        }
    }
}
