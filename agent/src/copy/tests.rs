use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::frame::{self, Reader};

/// Packs a path as it would be sent.
fn packed(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let copied = pack(path, &mut |parcel| frame::write(&mut bytes, parcel)).unwrap();
    frame::write(&mut bytes, &Parcel::End(copied)).unwrap();
    bytes
}

fn frames(parcels: &[Parcel<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for parcel in parcels {
        frame::write(&mut bytes, parcel).unwrap();
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
    assert_eq!(copied, Copied { left_out: 1 });
    assert_eq!(names(&to), ["deep", "empty"]);
    assert_eq!(fs::read(to.join("deep/er/large")).unwrap(), content);
    let link = fs::read_link(to.join("deep/link")).unwrap();
    assert_eq!(link, Path::new("../nowhere"));
    // Nobody becomes another user by what was copied.
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

    // A folder that is there gets it, or its content, and keeps what it has.
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

/// What the kernel makes when it is read has no size.
#[test]
fn files_of_the_kernel_have_content() {
    let scratch = tempfile::tempdir().unwrap();
    let to = scratch.path().join("version");
    unpacked(&packed(Path::new("/proc/version")), &to, Some("version")).unwrap();
    assert_eq!(fs::read(to).unwrap(), fs::read("/proc/version").unwrap());
}

const TOP: Parcel<'_> = Parcel::Folder {
    path: b"",
    mode: 0o755,
};
const END: Parcel<'_> = Parcel::End(Copied { left_out: 0 });

fn file(path: &[u8]) -> Parcel<'_> {
    Parcel::File {
        path,
        mode: 0o644,
        modified_unix_s: 0,
    }
}

#[test]
fn half_a_file_is_none() {
    let scratch = tempfile::tempdir().unwrap();
    let old = scratch.path().join("old");
    fs::write(&old, "old").unwrap();
    let cut = frames(&[file(b""), Parcel::Bytes(b"ne")]);
    let error = unpacked(&cut, &old, Some("old")).unwrap_err();
    assert!(matches!(error, UnpackError::Cut), "{error}");
    let given_up = frames(&[file(b""), Parcel::Bytes(b"ne"), Parcel::Failed("tired")]);
    let error = unpacked(&given_up, &old, Some("old")).unwrap_err();
    assert!(matches!(error, UnpackError::Failed(_)), "{error}");
    assert_eq!(fs::read(&old).unwrap(), b"old");
    assert_eq!(names(scratch.path()), ["old"]);
}

#[test]
fn nothing_leads_out() {
    let scratch = tempfile::tempdir().unwrap();
    let to = scratch.path().join("to");
    fs::create_dir(scratch.path().join("outside")).unwrap();
    let out = Parcel::Link {
        path: b"out",
        target: b"../outside",
    };
    for path in ["../x", "/x", "a/../../x", "..", "out/x", "out/", ""] {
        let inside = Parcel::Folder {
            path: b"a",
            mode: 0o755,
        };
        let sent = frames(&[TOP, inside, out.clone(), file(path.as_bytes()), END]);
        let error = unpacked(&sent, &to, Some("to")).unwrap_err();
        assert!(matches!(error, UnpackError::Astray(_)), "{path}: {error}");
    }
    // A link in the place of the folder itself.
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

fn any_parcel() -> impl Strategy<Value = (u8, String, String)> {
    (0..5_u8, any_path(), any_path())
}

proptest! {
    /// Whatever is sent, nothing is written elsewhere.
    #[test]
    fn any_parcels_stay_inside(sent in proptest::collection::vec(any_parcel(), 0..12)) {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir(scratch.path().join("outside")).unwrap();
        let parcels: Vec<_> = sent.iter().map(|(kind, path, target)| match kind {
            0 => Parcel::Folder { path: path.as_bytes(), mode: 0o7777 },
            1 => file(path.as_bytes()),
            2 => Parcel::Link { path: path.as_bytes(), target: target.as_bytes() },
            3 => Parcel::Link { path: path.as_bytes(), target: b"../outside" },
            _ => Parcel::Bytes(path.as_bytes()),
        }).collect();
        let sent = frames(&[&[TOP][..], &parcels, &[END]].concat());
        let _ = unpacked(&sent, &scratch.path().join("to"), Some("to"));
        prop_assert!(names(&scratch.path().join("outside")).is_empty());
        prop_assert_eq!(names(scratch.path()), ["outside", "to"]);
    }
}
