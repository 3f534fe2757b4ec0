//! Packing.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::fs::{major, minor};
use tar::{Builder, EntryType, Header};

/// Packs what is in a folder, without what is mounted there. Nothing of it may change meanwhile.
pub(super) fn pack(folder: &Path, output: impl Write) -> io::Result<()> {
    let compressed = GzEncoder::new(BufWriter::new(output), Compression::fast());
    let mut builder = Builder::new(compressed);
    builder.follow_symlinks(false);
    let mut packer = Packer {
        builder,
        device: fs::symlink_metadata(folder)?.dev(),
        links: BTreeMap::new(),
    };
    packer.add(folder, Path::new("."))?;
    packer.builder.into_inner()?.finish()?.flush()
}

struct Packer<W: Write> {
    builder: Builder<W>,
    /// That of the folder's file system.
    device: u64,
    /// The first name of files that have several, by their inodes.
    links: BTreeMap<u64, PathBuf>,
}

impl<W: Write> Packer<W> {
    /// Adds a file by this name, and what is in it if it is a folder.
    fn add(&mut self, path: &Path, name: &Path) -> io::Result<()> {
        let metadata = fs::symlink_metadata(path)?;
        let kind = metadata.file_type();
        // CRIU makes sockets itself.
        if kind.is_socket() {
            return Ok(());
        }
        if let Some(first) = self.other_name(&metadata, name) {
            return self.add_link(&metadata, name, &first);
        }
        let added = match node_type(&metadata) {
            Some(node) => self.add_node(&metadata, name, node),
            None => self.builder.append_path_with_name(path, name),
        };
        added.map_err(|error| io::Error::other(format!("{}: {error}", name.display())))?;
        if kind.is_dir() && metadata.dev() == self.device {
            for entry in fs::read_dir(path)? {
                let entry = entry?;
                self.add(&entry.path(), &name.join(entry.file_name()))?;
            }
        }
        Ok(())
    }

    /// The name by which a file was added already.
    fn other_name(&mut self, metadata: &Metadata, name: &Path) -> Option<PathBuf> {
        if metadata.is_dir() || metadata.nlink() < 2 {
            return None;
        }
        let first = self.links.get(&metadata.ino()).cloned();
        if first.is_none() {
            self.links.insert(metadata.ino(), name.to_owned());
        }
        first
    }

    /// The crate gives such a file another name (tar 0.4.46).
    fn add_node(&mut self, metadata: &Metadata, name: &Path, node: EntryType) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_metadata(metadata);
        header.set_entry_type(node);
        header.set_size(0);
        header.set_device_major(major(metadata.rdev()))?;
        header.set_device_minor(minor(metadata.rdev()))?;
        self.builder.append_data(&mut header, name, io::empty())
    }

    fn add_link(&mut self, metadata: &Metadata, name: &Path, first: &Path) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_metadata(metadata);
        header.set_entry_type(EntryType::Link);
        header.set_size(0);
        self.builder.append_link(&mut header, name, first)
    }
}

/// The type of a device or pipe; none of other files.
fn node_type(metadata: &Metadata) -> Option<EntryType> {
    let kind = metadata.file_type();
    let nodes = [
        (kind.is_fifo(), EntryType::Fifo),
        (kind.is_char_device(), EntryType::Char),
        (kind.is_block_device(), EntryType::Block),
    ];
    let node = nodes.into_iter().find(|(is_it, _)| *is_it);
    node.map(|(_, node)| node)
}
