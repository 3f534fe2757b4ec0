//! Images as files: saving a resident one, and making a saved one resident again.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use insula_base::error::Error;
use insula_base::state::AtomicFile;
use insula_driver::name::Name;
use insula_driver::{Driver, DriverError};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::add::{allocate, check_name, driver_failed, encode};
use super::image_file::{self, FileError, Reader};
use super::{Description, Opened, Snapshot, snapshot};

/// What a file says of its image.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    name: Name,
    content: Content,
}

/// An image of either kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// A kernel.
    Kernel(Box<Description>),
    /// A node that has booted.
    Snapshot(Box<Snapshot>),
}

impl Content {
    /// Bytes of its memory, whole pages, if all that it says can be.
    fn size(&self) -> Option<u64> {
        match self {
            Self::Kernel(image) => image.is_valid().then_some(image.layout.size),
            Self::Snapshot(snapshot) => {
                let is_whole = snapshot.is_valid() && snapshot.disks.is_empty();
                is_whole.then(|| snapshot.size())
            }
        }
    }

    /// As the module keeps it, added now.
    fn encode(&mut self, name: &Name) -> Result<Vec<u8>, Error> {
        match self {
            Self::Kernel(image) => {
                image.added_unix_s = now_unix_s();
                encode(name, image)
            }
            Self::Snapshot(snapshot) => {
                snapshot.added_unix_s = now_unix_s();
                snapshot::encode(name, snapshot)
            }
        }
    }
}

/// Writes an image to a new file, which only its owner may read: it holds all that the image's
/// initrd does.
///
/// # Errors
/// When there is a file of that name, or it cannot be written, or the image is not all in memory;
/// nothing is left of it.
pub fn save(image: Opened, path: &Path) -> Result<(), Error> {
    let (name, content, memory) = match image {
        Opened::Kernel(image) => {
            // A project is of this boot.
            let description = Description {
                project: None,
                ..image.description
            };
            let content = Content::Kernel(Box::new(description));
            (image.name, content, image.memory)
        }
        Opened::Snapshot(image) if !image.description.disks.is_empty() => {
            return Err(has_disks(&image.name));
        }
        Opened::Snapshot(image) => {
            let content = Content::Snapshot(Box::new(image.description));
            (image.name, content, image.memory)
        }
    };
    let unread = |error: DriverError| unsaved(&name, path, io::Error::other(error));
    let mapping = memory.map_for_reading().map_err(unread)?;
    let working_set = memory.working_set();
    let working_set = working_set.map_err(|error| unread(error.into()))?;
    let size = content.size().unwrap_or_default();
    let saved = Saved {
        name: name.clone(),
        content,
    };
    // Serialising to memory fails only for maps with non-string keys: there are none.
    let text = serde_json::to_vec(&saved).unwrap_or_default();
    let write = || {
        if path.try_exists()? {
            return Err(Errno::EEXIST.into());
        }
        let file = AtomicFile::create(folder(path))?;
        let mut to = BufWriter::new(file.file());
        let image = image_file::Saved {
            description: &text,
            content: &mapping,
            size,
            working_set: &working_set,
        };
        image_file::write(&mut to, &image)?;
        to.flush()?;
        drop(to);
        file.persist_new(path).map_err(|(error, _)| error)
    };
    write().map_err(|error| unsaved(&name, path, error))
}

/// The folder that a path is in.
fn folder(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    parent.unwrap_or(Path::new("."))
}

/// Makes the image in a file resident, under that name or its own. Returns its name.
///
/// # Errors
/// When the file cannot be read or is damaged, its name is in use, or memory is short; nothing is
/// left behind.
pub fn load(driver: &Driver, path: &Path, name: Option<&Name>) -> Result<(Name, Content), Error> {
    let (reader, saved) = open(path).map_err(|error| unloaded(path, error))?;
    let name = name.unwrap_or(&saved.name);
    let mut content = saved.content;
    check_name(driver, name)?;
    let text = content.encode(name)?;
    let memory = allocate(driver, name, reader.size)?;
    let mut mapping = memory.map().map_err(|error| driver_failed(name, error))?;
    let working_set = reader.working_set.clone();
    let read = reader.read_content(|offset, bytes| mapping.write(offset, bytes));
    read.map_err(|error| unloaded(path, error))?;
    drop(mapping);
    if !working_set.is_empty() {
        let given = memory.give_working_set(&working_set);
        given.map_err(|error| driver_failed(name, error.into()))?;
    }
    let added = driver.add_image(&name.to_abi(), &text, &memory);
    added.map_err(|error| driver_failed(name, error.into()))?;
    Ok((name.clone(), content))
}

/// Reads a file up to its content.
fn open(path: &Path) -> Result<(Reader<BufReader<File>>, Saved), FileError> {
    let file = File::open(path)?;
    let facts = file.metadata()?;
    if facts.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory).into());
    }
    let reader = Reader::open(BufReader::new(file), facts.len())?;
    let saved = parse(&reader.description, reader.size)?;
    Ok((reader, saved))
}

/// Reads a description of an image of `size` bytes. A checksum tells damage, not intention: what the
/// description says is checked as if it came from a stranger.
fn parse(text: &[u8], size: u64) -> Result<Saved, FileError> {
    let saved: Saved = serde_json::from_slice(text).map_err(|_| FileError::Description)?;
    match saved.content.size() {
        Some(said) if said == size => Ok(saved),
        _ => Err(FileError::Description),
    }
}

fn now_unix_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

fn has_disks(name: &Name) -> Error {
    Error::new(format!(
        "the snapshot '{name}' cannot be saved: its node has disks, whose contents are not in it"
    ))
    .untouched()
    .hint("save the snapshot of a node without disks")
}

fn unsaved(name: &Name, path: &Path, source: io::Error) -> Error {
    let what = format!(
        "the image '{name}' could not be saved as {}",
        path.display()
    );
    let hint = match source.kind() {
        io::ErrorKind::AlreadyExists => "remove the file, or give another name with --output",
        _ => "",
    };
    Error::new(what)
        .because(source)
        .leaving("no file was made")
        .hint(hint)
}

fn unloaded(path: &Path, source: FileError) -> Error {
    let hint = match source {
        FileError::NoImage => "give a file that `insula image save` has written",
        FileError::Version(_) => "save the image again with this version of the command",
        FileError::Size | FileError::Checksum | FileError::Description => {
            "save the image again, or copy the file again"
        }
        FileError::Read(_) | FileError::Memory(_) => "",
    };
    Error::new(format!("no image could be loaded from {}", path.display()))
        .because(source)
        .nothing_kept()
        .hint(hint)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use insula_abi::monitor::MONITOR_STATE_SIZE;

    use super::*;
    use crate::SnapshotDisk;
    use crate::description::tests::description;
    use crate::snapshot::tests::snapshot;

    fn text(content: Content) -> Vec<u8> {
        let name = "web".parse().unwrap();
        serde_json::to_vec(&Saved { name, content }).unwrap()
    }

    #[test]
    fn a_description_must_fit_its_memory() {
        let image = description(&[5000, 3], 100);
        let size = image.layout.size;
        let image = Content::Kernel(Box::new(image));
        assert_eq!(
            parse(&text(image.clone()), size).unwrap().name.as_str(),
            "web"
        );
        assert!(parse(&text(image), size + 4096).is_err());
    }

    #[test]
    fn a_snapshot_has_its_states_behind_its_memory() {
        let content = Content::Snapshot(Box::new(snapshot(&[(0, 0x20_0000)], 2)));
        let size = 0x20_0000 + 2 * MONITOR_STATE_SIZE;
        assert!(parse(&text(content.clone()), size).is_ok());
        assert!(parse(&text(content), size - 4096).is_err());
    }

    #[test]
    fn a_file_names_no_files_of_the_base() {
        let mut with_disk = snapshot(&[(0, 0x20_0000)], 1);
        let size = with_disk.size();
        assert!(parse(&text(Content::Snapshot(Box::new(with_disk.clone()))), size).is_ok());
        with_disk.disks.push(SnapshotDisk {
            path: "/etc/shadow".into(),
            read_only: false,
        });
        assert!(parse(&text(Content::Snapshot(Box::new(with_disk))), size).is_err());
    }

    #[test]
    fn a_damaged_file_is_refused_with_a_hint() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let refused = || {
            let error = open(file.path()).unwrap_err();
            unloaded(Path::new("/f"), error).to_string()
        };
        let head =
            "no image could be loaded from /f: it is not an image of Insula; nothing was kept";
        assert!(refused().starts_with(head), "{}", refused());
        std::fs::write(file.path(), b"INSULAIM\x09\0\0\0").unwrap();
        assert!(
            refused().contains("it is not an image"),
            "shorter than a header"
        );
        let error = open(Path::new("/")).unwrap_err();
        assert!(matches!(error, FileError::Read(_)));
    }

    #[test]
    fn folders_of_paths() {
        assert_eq!(folder(Path::new("a")), Path::new("."));
        assert_eq!(folder(Path::new("/a")), Path::new("/"));
        assert_eq!(folder(Path::new("b/a")), Path::new("b"));
    }

    proptest! {
        #[test]
        fn wild_descriptions_never_panic(text in ".{0,200}", size in any::<u64>()) {
            prop_assert!(parse(text.as_bytes(), size).is_err());
        }
    }
}
