//! Records of servers that are kept running: files in the command's private folder, which is empty after a
//! boot.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::ValueEnum;
use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::state::{self, AtomicFile, Lock, RUN};
use insula_base::units::CpuList;
use insula_driver::name::Name;
use serde::{Deserialize, Serialize};

/// Folder of the records and logs, in [`RUN`].
const FOLDER: &str = "servers";
const ENDING: &str = ".json";

/// Who chooses the core of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Its user: it runs on all that are named.
    #[default]
    Fixed,
    /// What they have to do: it is put on one of them, and on another when that changes.
    Auto,
}

/// A server that is to run on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ServerSpec {
    /// The program and its arguments. In a file, a program with a slash in its name is relative to the
    /// file's folder.
    pub command: Vec<String>,
    /// Cores on which it runs, by the node's numbers; by default all.
    #[serde(default)]
    pub cpus: CpuList,
    /// `auto`: it is put on that one of these cores where it helps most, and on another when what they have to do has changed.
    #[serde(default)]
    pub place: Place,
}

/// A server that is kept running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRecord {
    /// Its node, by the id that it keeps when it gets another name.
    pub node_id: u32,
    /// Name of its endpoint.
    pub name: Name,
    /// What is to run.
    pub spec: ServerSpec,
    /// The project whose file describes it, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<Name>,
}

/// All records.
///
/// # Errors
/// When one cannot be read.
pub(crate) fn all(root: &Root) -> Result<Vec<ServerRecord>, Error> {
    let files = root.names(&format!("{RUN}/{FOLDER}")).into_iter();
    let files = files.filter(|name| name.ends_with(ENDING));
    let mut found = Vec::new();
    for file in files {
        // One that has just been removed is left out.
        found.extend(read_file(&folder(root).join(file))?);
    }
    found
        .sort_by(|one: &ServerRecord, two| (one.node_id, &one.name).cmp(&(two.node_id, &two.name)));
    Ok(found)
}

/// The record of a server; none if it is not kept running.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn read(root: &Root, node_id: u32, name: &Name) -> Result<Option<ServerRecord>, Error> {
    read_file(&path(root, node_id, name, ENDING))
}

fn read_file(path: &std::path::Path) -> Result<Option<ServerRecord>, Error> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable().because(error)),
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| unreadable().because(error)),
    }
}

/// Writes a record: a new one, or in place of the one that there is.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write(root: &Root, record: &ServerRecord) -> Result<(), Error> {
    let write = || -> io::Result<()> {
        let path = path(root, record.node_id, &record.name, ENDING);
        fs::create_dir_all(folder(root))?;
        let file = AtomicFile::create(&folder(root))?;
        file.file().write_all(&serde_json::to_vec(record)?)?;
        file.persist(&path)
    };
    write().map_err(not_kept)
}

/// Removes a record, after which its supervisor ends; and its log.
///
/// # Errors
/// When it cannot be removed.
pub(crate) fn remove(root: &Root, node_id: u32, name: &Name) -> Result<(), Error> {
    let files = [ENDING, ".log"].map(|ending| path(root, node_id, name, ending));
    for file in files {
        match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(not_kept(error)),
            _ => {}
        }
    }
    Ok(())
}

/// Where the records lie.
pub(crate) fn folder(root: &Root) -> PathBuf {
    root.path(&format!("{RUN}/{FOLDER}"))
}

/// The file of a server's output.
pub(crate) fn log(root: &Root, node_id: u32, name: &Name) -> PathBuf {
    path(root, node_id, name, ".log")
}

fn path(root: &Root, node_id: u32, name: &Name, ending: &str) -> PathBuf {
    folder(root).join(format!("{node_id}-{name}{ending}"))
}

/// The lock that a supervisor holds; none while one does.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn try_lock(root: &Root, node_id: u32, name: &Name) -> Result<Option<Lock>, Error> {
    state::try_lock(root, &format!("server-{node_id}-{name}.lock")).map_err(not_kept)
}

/// The lock of who places the servers of a node; none while another process does.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn try_lock_placement(root: &Root, node_id: u32) -> Result<Option<Lock>, Error> {
    state::try_lock(root, &format!("servers-{node_id}.lock")).map_err(not_kept)
}

/// Waits until no other command changes which servers are kept running.
///
/// # Errors
/// When the lock cannot be made.
pub(crate) fn lock_changes(root: &Root) -> Result<Lock, Error> {
    state::lock(root, "servers.lock").map_err(not_kept)
}

fn not_kept(error: io::Error) -> Error {
    Error::new("the record of the server cannot be kept")
        .because(error)
        .unchanged()
}

fn unreadable() -> Error {
    Error::new("the record of a server cannot be read")
        .untouched()
        .hint("it was started by another version of insula: use that one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        let record = |node_id, name: &str| ServerRecord {
            node_id,
            name: name.parse().unwrap(),
            spec: ServerSpec {
                command: vec!["insula-files".into(), "memory".into()],
                cpus: "1,3".parse().unwrap(),
                place: Place::Auto,
            },
            project: (node_id == 2).then(|| "shop".parse().unwrap()),
        };
        let records = [record(2, "file"), record(2, "net"), record(10, "file")];
        for record in records.iter().rev() {
            write(&root, record).unwrap();
        }
        assert_eq!(all(&root).unwrap(), records);
        remove(&root, 2, &records[1].name).unwrap();
        assert_eq!(read(&root, 2, &records[1].name).unwrap(), None);
        assert_eq!(
            read(&root, 10, &records[2].name).unwrap().as_ref(),
            Some(&records[2])
        );
    }
}
