//! Whether there is a container's program: ordinary runtimes tell it when they create the container, or are to execute a further
//! process, and engines expect that.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use insula_base::error::Error;
use rustix::fs::{AtFlags, FileType, RawMode, fstat, statat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::config::{Mount, Process};
use super::mount_points::{folder, inside, open_existing};
use super::mounts::OF_THE_NODE;

/// Where a program without a path is looked for, unless its environment says it.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const EXECUTABLE: RawMode = 0o111;

/// What a path leads to in a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Program,
    /// A folder, or a file without the permission.
    NotExecutable,
    Nothing,
    /// What is mounted in the container covers it, or it cannot be told.
    Unknown,
}

/// A container's root, as it is on the base.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Rootfs {
    path: PathBuf,
    /// Where something is mounted in the container.
    mounts: Vec<PathBuf>,
}

impl Rootfs {
    pub(super) fn new(path: &Path, mounts: &[Mount]) -> Self {
        let mounts = mounts.iter().map(|mount| mount.destination.clone());
        Self {
            path: path.to_owned(),
            mounts: mounts.chain(OF_THE_NODE.map(PathBuf::from)).collect(),
        }
    }

    /// Checks that a process' program exists in it, as far as no mount covers its path.
    ///
    /// # Errors
    /// It does not, or nobody may execute it; in the words of runtimes, from which engines take the process' status.
    pub(super) fn check(&self, process: &Process) -> Result<(), Error> {
        match folder(&self.path) {
            Ok(root) => check(root, &self.mounts, process),
            // What is not there, or belongs to a container of an earlier version, tells nothing.
            Err(_) => Ok(()),
        }
    }
}

fn check(root: OwnedFd, mounts: &[PathBuf], process: &Process) -> Result<(), Error> {
    let Some(program) = process.args.first().filter(|word| !word.is_empty()) else {
        return Ok(());
    };
    let container = Container { root, mounts };
    let found: Vec<_> = candidates(process, program)
        .iter()
        .map(|path| container.look(path))
        .collect();
    let is_any = |wanted: &[Found]| found.iter().any(|one| wanted.contains(one));
    if is_any(&[Found::Program, Found::Unknown]) {
        return Ok(());
    }
    let reason = match is_any(&[Found::NotExecutable]) {
        true => Errno::ACCESS,
        false => Errno::NOENT,
    };
    Err(Error::new(format!(
        "`{program}` of the container cannot be executed (exec)"
    ))
    .because(io::Error::from(reason))
    .untouched())
}

/// The paths at which a program can be.
fn candidates(process: &Process, program: &str) -> Vec<PathBuf> {
    if program.contains('/') {
        return vec![process.cwd.join(program)];
    }
    let mut environment = process.env.iter().rev();
    let path = environment.find_map(|one| one.strip_prefix("PATH="));
    let folders = path.unwrap_or(PATH).split(':');
    folders
        .map(|folder| process.cwd.join(folder).join(program))
        .collect()
}

/// A container's root, and the places of its mounts.
struct Container<'a> {
    root: OwnedFd,
    mounts: &'a [PathBuf],
}

impl Container<'_> {
    fn look(&self, path: &Path) -> Found {
        match open_existing(&self.root, path) {
            Ok(file) if self.is_covered(&file, Path::new("")) => Found::Unknown,
            Ok(file) => match fstat(&file) {
                Ok(stat) if is_executable(stat.st_mode) => Found::Program,
                Ok(_) => Found::NotExecutable,
                Err(_) => Found::Unknown,
            },
            Err(Errno::NOENT | Errno::NOTDIR) => self.look_before(path),
            Err(_) => Found::Unknown,
        }
    }

    /// What is missing of a path may be below a mount, or where a link leads to one.
    fn look_before(&self, path: &Path) -> Found {
        for folder in path.ancestors().skip(1) {
            let Ok(found) = open_existing(&self.root, folder) else {
                continue;
            };
            let Ok(missing) = path.strip_prefix(folder) else {
                break;
            };
            let first = missing.iter().next().unwrap_or_default();
            let is_there = statat(&found, first, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
            return match is_there || self.is_covered(&found, missing) {
                true => Found::Unknown,
                false => Found::Nothing,
            };
        }
        Found::Unknown
    }

    /// Whether a mount covers that path below what was opened, or is below it.
    fn is_covered(&self, opened: &OwnedFd, below: &Path) -> bool {
        let Ok(inside) = inside(&self.root, opened) else {
            return true;
        };
        let path = inside.join(below);
        let mut mounts = self.mounts.iter();
        mounts.any(|mount| path.starts_with(mount))
    }
}

fn is_executable(mode: RawMode) -> bool {
    FileType::from_raw_mode(mode) == FileType::RegularFile && mode & EXECUTABLE != 0
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A root with a program, links to it, a file, and a link to where nothing is.
    fn root() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let usr = root.path().join("usr/bin");
        fs::create_dir_all(&usr).unwrap();
        fs::write(usr.join("true"), "").unwrap();
        fs::set_permissions(usr.join("true"), PermissionsExt::from_mode(0o755)).unwrap();
        fs::write(usr.join("text"), "").unwrap();
        symlink("usr/bin", root.path().join("bin")).unwrap();
        symlink("/usr/bin/true", root.path().join("usr/bin/absolute")).unwrap();
        symlink("/data/tool", root.path().join("usr/bin/tool")).unwrap();
        root
    }

    fn checked(words: &[&str], mounts: &[&str]) -> Result<(), String> {
        let root = root();
        let mount = |destination: &&str| Mount {
            destination: destination.into(),
            ..Mount::default()
        };
        let mounts: Vec<_> = mounts.iter().map(mount).collect();
        let process = Process {
            args: vec![words[0].to_owned()],
            env: words[1..].iter().map(|&one| one.to_owned()).collect(),
            cwd: "/usr".into(),
            ..Process::default()
        };
        let root = Rootfs::new(root.path(), &mounts);
        root.check(&process).map_err(|error| error.to_string())
    }

    #[test]
    fn programs_are_found_as_in_the_container() {
        let paths = [
            "/usr/bin/true",
            "/bin/true",
            "true",
            "bin/true",
            "absolute",
            "../bin/true",
        ];
        for program in paths {
            assert_eq!(checked(&[program], &[]), Ok(()), "{program}");
        }
        assert_eq!(checked(&["true", "PATH=/none:/bin"], &[]), Ok(()));
    }

    #[test]
    fn what_an_earlier_version_kept_tells_nothing() {
        let process = Process {
            args: vec!["/none".into()],
            ..Process::default()
        };
        assert!(Rootfs::default().check(&process).is_ok());
    }

    #[test]
    fn what_is_missing_is_told_in_the_words_of_runtimes() {
        for words in [
            &["/no/such"][..],
            &["none"],
            &["true", "PATH=/sbin"],
            &["/usr/bin/true/x"],
        ] {
            let error = checked(words, &["/proc", "/data"]).unwrap_err();
            assert!(
                error.contains("No such file or directory"),
                "{words:?}: {error}"
            );
        }
        for words in ["/usr", "text", "/usr/bin/text"] {
            let error = checked(&[words], &[]).unwrap_err();
            assert!(error.contains("Permission denied"), "{words}: {error}");
        }
    }

    #[test]
    fn what_mounts_cover_is_not_known() {
        for (program, mounts) in [
            ("/opt/tool", &["/opt"][..]),
            ("/opt/bin/tool", &["/opt/bin"]),
            ("/bin/none", &["/usr/bin"]),
            ("/usr/bin/text", &["/usr/bin/text"]),
            ("none", &["/usr/local"]),
            ("tool", &[]),
            ("/run/tool", &[]),
        ] {
            assert_eq!(checked(&[program], mounts), Ok(()), "{program}");
        }
    }
}
