//! The program `tar` by which CRIU packs file systems in memory, and unpacks them.
//!
//! CRIU executes it for each of a container's, while the container stands still. This one is in memory
//! already, and compresses by itself, where GNU's starts `gzip` beside. Options and format are GNU's, as far as
//! CRIU uses them (`tmpfs_dump` and `tmpfs_restore` in `criu/filesystems.c`): what one packs the other unpacks.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata, Permissions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use rustix::fs::{
    AtFlags, CWD, Dev, FileType, Mode, Timespec, Timestamps, major, makedev, minor, mknodat,
    utimensat,
};
use tar::{Archive, Builder, Entry, EntryType, Header};

/// Its name, as which it is executed.
pub(crate) const NAME: &str = "tar";
/// Options that say what it does anyway.
const IMPLIED: [&str; 8] = [
    "--gzip",
    "--no-unquote",
    "--no-wildcards",
    "--one-file-system",
    "--check-links",
    "--preserve-permissions",
    "--sparse",
    "--numeric-owner",
];

/// Whether this program is executed under that name.
pub(crate) fn is_meant(program: &OsStr) -> bool {
    Path::new(program).file_name() == Some(NAME.as_ref())
}

/// Packs a folder to the standard output, or unpacks the standard input to it.
pub(crate) fn run(words: impl Iterator<Item = OsString>) -> ExitCode {
    let done = match Task::of(words) {
        Ok(task) => std::env::set_current_dir(&task.folder).and_then(|()| match task.action {
            Action::Pack => pack(Path::new("."), io::stdout().lock()),
            Action::Unpack => unpack(Path::new("."), io::stdin().lock()),
        }),
        Err(error) => Err(io::Error::other(error)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{NAME}: {error}");
            ExitCode::from(2)
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Action {
    Pack,
    Unpack,
}

#[derive(Debug, PartialEq, Eq)]
struct Task {
    action: Action,
    folder: PathBuf,
}

impl Task {
    fn of(mut words: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let (mut action, mut folder) = (None, None);
        while let Some(word) = words.next() {
            match word.to_str() {
                Some("--create") => action = Some(Action::Pack),
                Some("--extract") => action = Some(Action::Unpack),
                Some("--directory") => folder = words.next().map(PathBuf::from),
                // All of the folder.
                Some(".") => {}
                Some(option) if IMPLIED.contains(&option) => {}
                _ => return Err(format!("{}: unknown option", word.display())),
            }
        }
        match (action, folder) {
            (Some(action), Some(folder)) => Ok(Self { action, folder }),
            _ => Err("--create or --extract, and --directory, are needed".to_owned()),
        }
    }
}

/// Packs what is in a folder, without what is mounted there. Nothing of it may change meanwhile.
fn pack(folder: &Path, output: impl Write) -> io::Result<()> {
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

/// Unpacks to a folder. A name that leads out of it is refused.
fn unpack(folder: &Path, input: impl Read) -> io::Result<()> {
    let mut archive = Archive::new(GzDecoder::new(BufReader::new(input)));
    archive.set_preserve_permissions(true);
    archive.set_preserve_ownerships(true);
    let mut folders = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            let made = Attributes::of(&entry, folder)?;
            made.make_folder()?;
            folders.push(made);
        } else if kind.is_fifo() || kind.is_character_special() || kind.is_block_special() {
            Attributes::of(&entry, folder)?.make_node(entry.header())?;
        } else if !entry.unpack_in(folder)? {
            return Err(leads_out(&entry.path()?));
        }
    }
    // Only its end tells whether all of it is right.
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    // Not before: what comes into a folder changes its time.
    folders.iter().rev().try_for_each(Attributes::set)
}

/// Where an entry comes to lie, and what it is set to.
struct Attributes {
    path: PathBuf,
    mode: u32,
    owner: (u32, u32),
    modified_unix_s: i64,
}

impl Attributes {
    fn of(entry: &Entry<'_, impl Read>, folder: &Path) -> io::Result<Self> {
        let (name, header) = (entry.path()?, entry.header());
        let id = |id: u64| u32::try_from(id).map_err(io::Error::other);
        Ok(Self {
            path: inside(folder, &name)?,
            mode: header.mode()?,
            owner: (id(header.uid()?)?, id(header.gid()?)?),
            modified_unix_s: i64::try_from(header.mtime()?).map_err(io::Error::other)?,
        })
    }

    fn make_folder(&self) -> io::Result<()> {
        match fs::create_dir(&self.path) {
            // It may be the folder itself; a link is none.
            Err(_) if fs::symlink_metadata(&self.path).is_ok_and(|one| one.is_dir()) => Ok(()),
            made => made,
        }
    }

    fn make_node(&self, header: &Header) -> io::Result<()> {
        let device = || -> io::Result<Dev> {
            let (major, minor) = (header.device_major()?, header.device_minor()?);
            Ok(makedev(major.unwrap_or(0), minor.unwrap_or(0)))
        };
        let (kind, device) = match header.entry_type() {
            EntryType::Char => (FileType::CharacterDevice, device()?),
            EntryType::Block => (FileType::BlockDevice, device()?),
            _ => (FileType::Fifo, 0),
        };
        mknodat(CWD, &self.path, kind, Mode::RUSR | Mode::WUSR, device)?;
        self.set()
    }

    fn set(&self) -> io::Result<()> {
        let (user, group) = self.owner;
        lchown(&self.path, Some(user), Some(group))?;
        fs::set_permissions(&self.path, Permissions::from_mode(self.mode))?;
        let modified = Timespec {
            tv_sec: self.modified_unix_s,
            tv_nsec: 0,
        };
        let times = Timestamps {
            last_access: modified,
            last_modification: modified,
        };
        Ok(utimensat(CWD, &self.path, &times, AtFlags::empty())?)
    }
}

/// The path of a name in a folder, which links in it do not lead out of.
fn inside(folder: &Path, name: &Path) -> io::Result<PathBuf> {
    let mut path = folder.to_owned();
    for component in name.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(part) => {
                if fs::symlink_metadata(&path)?.is_symlink() {
                    return Err(leads_out(name));
                }
                path.push(part);
            }
            _ => return Err(leads_out(name)),
        }
    }
    Ok(path)
}

fn leads_out(name: &Path) -> io::Error {
    io::Error::other(format!("{} leads out of the folder", name.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};
    use std::time::{Duration, SystemTime};

    use rustix::process::{getegid, geteuid};

    fn is_root() -> bool {
        geteuid().is_root()
    }

    fn node(path: &Path, kind: FileType, device: Dev) {
        mknodat(CWD, path, kind, Mode::RUSR, device).unwrap();
    }

    /// All that a file system in memory can have.
    fn fill(folder: &Path) {
        fs::create_dir(folder.join("sub")).unwrap();
        fs::write(folder.join("sub/file"), "content").unwrap();
        fs::hard_link(folder.join("sub/file"), folder.join("link")).unwrap();
        symlink("sub/../no file", folder.join("symbolic")).unwrap();
        let long = "n".repeat(150);
        fs::create_dir(folder.join(&long)).unwrap();
        fs::write(folder.join(&long).join(&long), "deep").unwrap();
        symlink(&long, folder.join(&long).join("to")).unwrap();
        fs::write(folder.join("name\nwith \\ and é"), "").unwrap();
        let sparse = fs::File::create(folder.join("sparse")).unwrap();
        sparse.set_len(8 << 20).unwrap();
        rustix::io::pwrite(&sparse, b"in the middle", 4 << 20).unwrap();
        node(&folder.join("fifo"), FileType::Fifo, 0);
        if is_root() {
            node(
                &folder.join("null"),
                FileType::CharacterDevice,
                makedev(1, 3),
            );
            node(&folder.join("disk"), FileType::BlockDevice, makedev(7, 300));
            lchown(folder.join("symbolic"), Some(7), Some(8)).unwrap();
            lchown(folder.join("sub"), Some(3_000_000), Some(9)).unwrap();
        }
        for (name, mode) in [
            ("sub/file", 0o4751),
            ("sub", 0o1777),
            ("fifo", 0o602),
            (".", 0o711),
        ] {
            fs::set_permissions(folder.join(name), Permissions::from_mode(mode)).unwrap();
        }
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for name in ["sub/file", "sub", "."] {
            let file = fs::File::open(folder.join(name)).unwrap();
            file.set_modified(time).unwrap();
        }
    }

    /// A line for each file below a folder: its name, type, mode, owner, time, device, and content.
    fn lines(folder: &Path) -> Vec<String> {
        let format = "%P %y %m %U %G %Ts %n %s %l\\n";
        let found = Command::new("find")
            .arg(folder)
            .args(["-printf", format])
            .output()
            .unwrap();
        let mut lines: Vec<_> = String::from_utf8_lossy(&found.stdout)
            .lines()
            .map(str::to_owned)
            .collect();
        let seconds = |line: &str| line.split('.').next().unwrap_or_default().to_owned();
        lines.iter_mut().for_each(|line| *line = seconds(line));
        lines.sort();
        let content = Command::new("sh")
            .args(["-c", "find . -type f -exec sha256sum {} + | sort; find . -type c -o -type b | sort | xargs -r stat -c '%n %t %T'"])
            .current_dir(folder)
            .output()
            .unwrap();
        lines.push(String::from_utf8_lossy(&content.stdout).into_owned());
        lines
    }

    fn gnu_tar(words: &[&str], folder: &Path, input: &[u8]) -> Vec<u8> {
        let mut child = Command::new("tar")
            .args(words)
            .arg("--directory")
            .arg(folder)
            .args(words.contains(&"--create").then_some("."))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        output.stdout
    }

    const PACK: [&str; 6] = [
        "--create",
        "--gzip",
        "--one-file-system",
        "--check-links",
        "--sparse",
        "--numeric-owner",
    ];
    const UNPACK: [&str; 2] = ["--extract", "--gzip"];

    #[test]
    fn what_is_packed_by_either_is_unpacked_by_either() {
        let [from, ours, by_gnu, to_gnu] = [(); 4].map(|()| tempfile::tempdir().unwrap());
        fill(from.path());
        let wanted = lines(from.path());
        let mut packed = Vec::new();
        pack(from.path(), &mut packed).unwrap();
        unpack(ours.path(), &packed[..]).unwrap();
        assert_eq!(lines(ours.path()), wanted);
        unpack(by_gnu.path(), &gnu_tar(&PACK, from.path(), &[])[..]).unwrap();
        assert_eq!(lines(by_gnu.path()), wanted);
        if is_root() {
            gnu_tar(&UNPACK, to_gnu.path(), &packed);
            assert_eq!(lines(to_gnu.path()), wanted);
        }
        let sparse = fs::metadata(ours.path().join("sparse")).unwrap();
        assert!(
            sparse.blocks() * 512 < sparse.len() / 2,
            "its holes are holes"
        );
    }

    #[test]
    fn a_socket_is_left_out() {
        let [from, to] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let _socket = std::os::unix::net::UnixListener::bind(from.path().join("socket")).unwrap();
        let mut packed = Vec::new();
        pack(from.path(), &mut packed).unwrap();
        unpack(to.path(), &packed[..]).unwrap();
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0);
    }

    fn header(kind: EntryType) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(0);
        header.set_mode(0o777);
        header.set_uid(geteuid().as_raw().into());
        header.set_gid(getegid().as_raw().into());
        header.set_mtime(0);
        header
    }

    /// An archive of a link that leads out, and an entry of that name.
    fn hostile(name: &str, kind: EntryType) -> Vec<u8> {
        let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        let mut link = header(EntryType::Symlink);
        builder.append_link(&mut link, "out", "..").unwrap();
        let mut header = header(kind);
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        builder.append(&header, io::empty()).unwrap();
        builder.into_inner().unwrap().finish().unwrap()
    }

    #[test]
    fn nothing_is_unpacked_outside() {
        for kind in [EntryType::Regular, EntryType::Directory, EntryType::Fifo] {
            for name in ["../bad", "out/bad", "/bad", "a/../../bad", "out"] {
                let outer = tempfile::tempdir().unwrap();
                let folder = outer.path().join("folder");
                fs::create_dir(&folder).unwrap();
                let mode = || fs::metadata(outer.path()).unwrap().mode();
                let before = mode();
                let _ = unpack(&folder, &hostile(name, kind)[..]);
                assert!(fs::symlink_metadata(folder.join("out")).is_ok());
                assert!(!outer.path().join("bad").exists(), "{kind:?} {name}");
                assert!(!Path::new("/bad").exists());
                assert_eq!(mode(), before, "{kind:?} {name}");
            }
        }
    }

    #[test]
    fn damage_is_refused() {
        let [from, to] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        fs::write(from.path().join("file"), "content").unwrap();
        let mut packed = Vec::new();
        pack(from.path(), &mut packed).unwrap();
        for length in 0..packed.len() {
            assert!(unpack(to.path(), &packed[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn options_are_those_of_criu() {
        let task = |words: &[&str]| Task::of(words.iter().map(OsString::from));
        let packed = [&PACK[..], &["--directory", "/proc/self/fd/3", "."]].concat();
        let wanted = Task {
            action: Action::Pack,
            folder: "/proc/self/fd/3".into(),
        };
        assert_eq!(task(&packed), Ok(wanted));
        assert!(task(&["--extract"]).is_err());
        assert!(task(&["--directory", "/"]).is_err());
        assert!(task(&["--extract", "--directory", "/", "--delete"]).is_err());
        assert!(is_meant("/a/tar".as_ref()) && !is_meant("/a/insula-agent".as_ref()));
    }
}
