use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::frame::{self, Reader};

/// The frames of a packed path.
fn packed(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let copied = pack(path, &mut |message| frame::write(&mut bytes, message)).unwrap();
    frame::write(&mut bytes, &CopyMessage::End(copied)).unwrap();
    bytes
}

fn frames(messages: &[CopyMessage<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for message in messages {
        frame::write(&mut bytes, message).unwrap();
    }
    bytes
}

fn unpacked(bytes: &[u8], path: &Path, name: Option<&str>) -> Result<Copied, UnpackError> {
    let target = Target {
        path,
        name: name.map(AsRef::as_ref),
    };
    unpack(&mut Reader::new(bytes), &target)
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_tree_is_the_same_elsewhere() {
    let scratch = tempfile::tempdir().unwrap();
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    fs::create_dir_all(from.join("deep/er")).unwrap();
    let content: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(from.join("deep/er/large"), &content).unwrap();
    fs::write(from.join("empty"), "").unwrap();
    set_mode(&from.join("empty"), 0o4751);
    set_mode(&from.join("deep"), 0o2750);
    symlink("../nowhere", from.join("deep/link")).unwrap();
    let _socket = UnixListener::bind(from.join("socket")).unwrap();

    let copied = unpacked(&packed(&from), &to, Some("from")).unwrap();
    assert_eq!(copied, Copied { skipped: 1 });
    assert_eq!(names(&to), ["deep", "empty"]);
    assert_eq!(fs::read(to.join("deep/er/large")).unwrap(), content);
    let link = fs::read_link(to.join("deep/link")).unwrap();
    assert_eq!(link, Path::new("../nowhere"));
    // Set-user-ID and set-group-ID bits are dropped.
    assert_eq!(
        (mode(&to.join("empty")), mode(&to.join("deep"))),
        (0o751, 0o750)
    );
    let modified = |path: &Path| {
        fs::metadata(path.join("empty"))
            .unwrap()
            .modified()
            .unwrap()
    };
    let apart = modified(&from).duration_since(modified(&to)).unwrap();
    assert!(apart.as_secs() == 0, "{apart:?}");

    // An existing folder gets the copy, or its content, and keeps its own files.
    unpacked(&packed(&from), &to, Some("from")).unwrap();
    assert_eq!(names(&to), ["deep", "empty", "from"]);
    fs::write(to.join("from/empty"), "old").unwrap();
    fs::write(to.join("from/own"), "own").unwrap();
    unpacked(&packed(&from), &to.join("from"), None).unwrap();
    assert_eq!(names(&to.join("from")), ["deep", "empty", "own"]);
    assert_eq!(fs::read(to.join("from/empty")).unwrap(), b"");
}

#[test]
fn a_file_goes_where_cp_would_put_it() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    fs::write(at("file"), "new").unwrap();
    fs::create_dir(at("folder")).unwrap();
    fs::write(at("old"), "old").unwrap();
    symlink("old", at("link")).unwrap();
    let sent = packed(&at("file"));
    for to in ["folder", "fresh", "link"] {
        unpacked(&sent, &at(to), Some("file")).unwrap();
    }
    for written in ["folder/file", "fresh", "old"] {
        assert_eq!(fs::read(at(written)).unwrap(), b"new", "{written}");
    }
    assert!(at("link").is_symlink());
    let refused = |to: &str| unpacked(&sent, &at(to), Some("file")).unwrap_err();
    assert!(matches!(refused("none/"), UnpackError::NoFolder(_)));
    assert!(matches!(refused("none/x"), UnpackError::Write { .. }));
    let folder = packed(&at("folder"));
    let refused = unpacked(&folder, &at("old"), Some("folder")).unwrap_err();
    assert!(matches!(refused, UnpackError::NotAFolder(_)));
    let link = pack(&at("none"), &mut |_| Ok(())).unwrap_err();
    assert!(matches!(link, PackError::Read { .. }));
    assert_eq!(
        names(scratch.path()),
        ["file", "folder", "fresh", "link", "old"]
    );
}

/// Such files have size 0.
#[test]
fn files_of_the_kernel_have_content() {
    let scratch = tempfile::tempdir().unwrap();
    let to = scratch.path().join("version");
    unpacked(&packed(Path::new("/proc/version")), &to, Some("version")).unwrap();
    assert_eq!(fs::read(to).unwrap(), fs::read("/proc/version").unwrap());
}

const TOP: CopyMessage<'_> = CopyMessage::Folder {
    path: b"",
    mode: 0o755,
};
const END: CopyMessage<'_> = CopyMessage::End(Copied { skipped: 0 });

fn file(path: &[u8]) -> CopyMessage<'_> {
    CopyMessage::File {
        path,
        mode: 0o644,
        modified_unix_s: 0,
    }
}

#[test]
fn an_incomplete_file_is_dropped() {
    let scratch = tempfile::tempdir().unwrap();
    let old = scratch.path().join("old");
    fs::write(&old, "old").unwrap();
    let cut = frames(&[file(b""), CopyMessage::Bytes(b"ne")]);
    let error = unpacked(&cut, &old, Some("old")).unwrap_err();
    assert!(matches!(error, UnpackError::Truncated), "{error}");
    let given_up = frames(&[
        file(b""),
        CopyMessage::Bytes(b"ne"),
        CopyMessage::Failed("tired"),
    ]);
    let error = unpacked(&given_up, &old, Some("old")).unwrap_err();
    assert!(matches!(error, UnpackError::Failed(_)), "{error}");
    assert_eq!(fs::read(&old).unwrap(), b"old");
    assert_eq!(names(scratch.path()), ["old"]);
}

#[test]
fn no_path_leads_out() {
    let scratch = tempfile::tempdir().unwrap();
    let to = scratch.path().join("to");
    fs::create_dir(scratch.path().join("outside")).unwrap();
    let out = CopyMessage::Link {
        path: b"out",
        target: b"../outside",
    };
    for path in ["../x", "/x", "a/../../x", "..", "out/x", "out/", ""] {
        let inside = CopyMessage::Folder {
            path: b"a",
            mode: 0o755,
        };
        let sent = frames(&[TOP, inside, out.clone(), file(path.as_bytes()), END]);
        let error = unpacked(&sent, &to, Some("to")).unwrap_err();
        assert!(
            matches!(error, UnpackError::OutsideTarget(_)),
            "{path}: {error}"
        );
    }
    // A link in place of the folder itself.
    fs::create_dir(scratch.path().join("in")).unwrap();
    symlink("../outside", scratch.path().join("in/to")).unwrap();
    let sent = frames(&[TOP, file(b"x"), END]);
    unpacked(&sent, &scratch.path().join("in"), Some("to")).unwrap_err();
    assert!(names(&scratch.path().join("outside")).is_empty());
    assert_eq!(names(scratch.path()), ["in", "outside", "to"]);
}

fn any_path() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("a"),
        Just("b"),
        Just(".."),
        Just("."),
        Just(""),
        Just("out")
    ];
    proptest::collection::vec(part, 0..4).prop_map(|parts| parts.join("/"))
}

fn any_message() -> impl Strategy<Value = (u8, String, String)> {
    (0..5_u8, any_path(), any_path())
}

proptest! {
    /// No message causes a write elsewhere.
    #[test]
    fn any_messages_stay_inside(sent in proptest::collection::vec(any_message(), 0..12)) {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir(scratch.path().join("outside")).unwrap();
        let messages: Vec<_> = sent.iter().map(|(kind, path, target)| match kind {
            0 => CopyMessage::Folder { path: path.as_bytes(), mode: 0o7777 },
            1 => file(path.as_bytes()),
            2 => CopyMessage::Link { path: path.as_bytes(), target: target.as_bytes() },
            3 => CopyMessage::Link { path: path.as_bytes(), target: b"../outside" },
            _ => CopyMessage::Bytes(path.as_bytes()),
        }).collect();
        let sent = frames(&[&[TOP][..], &messages, &[END]].concat());
        let _ = unpacked(&sent, &scratch.path().join("to"), Some("to"));
        prop_assert!(names(&scratch.path().join("outside")).is_empty());
        prop_assert_eq!(names(scratch.path()), ["outside", "to"]);
    }
}

#[test]
fn parts_of_a_folder_come_together_again() {
    let scratch = tempfile::tempdir().unwrap();
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    for part in ["one", "two"] {
        fs::create_dir_all(from.join(part).join("deep")).unwrap();
        fs::write(from.join(part).join("deep/file"), part).unwrap();
    }
    symlink("../one", from.join("two/parent")).unwrap();
    fs::write(from.join("left-out"), "").unwrap();
    let mut bytes = Vec::new();
    for part in ["one", "two"] {
        let mut send = |message: &CopyMessage<'_>| frame::write(&mut bytes, message);
        pack_part(&from, part, &mut send).unwrap();
    }
    frame::write(&mut bytes, &CopyMessage::End(Copied::default())).unwrap();
    unpacked(&bytes, &to, Some("from")).unwrap();
    assert_eq!(names(&to), ["one", "two"]);
    assert_eq!(fs::read(to.join("two/parent/deep/file")).unwrap(), b"one");
    assert_eq!(fs::read(to.join("two/deep/file")).unwrap(), b"two");

    // A file is no folder to put parts in.
    let mixed = frames(&[
        CopyMessage::File {
            path: b"",
            mode: 0o600,
            modified_unix_s: 0,
        },
        CopyMessage::Folder {
            path: b"",
            mode: 0o700,
        },
    ]);
    let refused = unpacked(&mixed, &scratch.path().join("file"), None).unwrap_err();
    assert!(matches!(refused, UnpackError::InvalidOrder), "{refused}");
}
