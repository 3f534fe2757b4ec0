use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::fs::{CWD, Dev, FileType, Mode, makedev, mknodat};
use rustix::process::{getegid, geteuid};
use tar::{Builder, EntryType, Header};

use super::*;

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
    // Long ago: a time that is not kept cannot be right by chance.
    let touch = ["-exec", "touch", "-h", "-d", "@1000000000", "{}", "+"];
    let touched = Command::new("find").arg(folder).args(touch).status();
    assert!(touched.unwrap().success());
}

/// A line for each file below a folder: its name, type, mode, owner, links, what it links to, and time; then sums of
/// their contents, and the numbers of devices.
fn lines(folder: &Path) -> Vec<String> {
    let format = "%P %y %m %U %G %n %l %Ts\\n";
    let found = Command::new("find")
        .arg(folder)
        .args(["-printf", format])
        .output()
        .unwrap();
    let mut lines: Vec<_> = String::from_utf8_lossy(&found.stdout)
        .lines()
        .map(str::to_owned)
        .collect();
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
