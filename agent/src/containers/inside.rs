//! The first process of a container, until it executes the program: what it sees of files.
//!
//! It has the node's root, or a folder of the base's, and own instances of all that lies in memory: `/proc`, `/sys`, `/dev`,
//! `/run`, `/tmp`. So all its mounts but the root can be made anew on another node.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::fs::{CWD, FileType, Mode, chmod, makedev, mknodat};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, mount_move,
    unmount,
};
use rustix::process::{chdir, chroot, pivot_root, setsid};
use rustix::stdio::dup2_stdin;
use rustix::system::sethostname;

use super::cgroup::Cgroup;

/// Role of this program: to become a container's first process. Its name, root, working directory and
/// words follow.
pub(crate) const INSIDE: &str = "--container";

/// Where the root is made.
const ROOT: &str = "/run/insula/root";
/// A mount: type, mount point and options.
type Mount = (
    &'static str,
    &'static str,
    MountFlags,
    &'static std::ffi::CStr,
);

/// In order of dependency.
const MOUNTS: [Mount; 7] = [
    ("proc", "proc", HARDENED, c""),
    ("sysfs", "sys", HARDENED.union(MountFlags::RDONLY), c""),
    ("tmpfs", "dev", MountFlags::NOSUID, c"mode=755"),
    (
        "devpts",
        "dev/pts",
        PTS,
        c"newinstance,gid=5,mode=620,ptmxmode=666",
    ),
    ("tmpfs", "dev/shm", PTS, c"mode=1777"),
    ("tmpfs", "run", MountFlags::NOSUID, c"mode=755"),
    ("tmpfs", "tmp", MountFlags::NOSUID, c"mode=1777"),
];
pub(super) const HARDENED: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);
const PTS: MountFlags = MountFlags::NOSUID.union(MountFlags::NOEXEC);
/// Devices: name and number.
const DEVICES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];
const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Executes a container's program as its first process, in namespaces that this process has
/// already. If it cannot be executed, exits with 127 or 126, as a shell does.
pub(crate) fn enter(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let mut next = || words.next().unwrap_or_default();
    let (name, root, folder, program) = (next(), next(), next(), next());
    let places = (Path::new(&root), Path::new(&folder));
    if let Err(error) = prepare(&name.to_string_lossy(), places) {
        eprintln!("insula: the container cannot be set up: {error}");
        return ExitCode::from(126);
    }
    let error = Command::new(&program).args(words).exec();
    eprintln!("insula: {}: {error}", program.to_string_lossy());
    ExitCode::from(match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    })
}

/// Gives this process a container's root and working directory, and makes it the first of its session.
pub(super) fn prepare(name: &str, (root, folder): (&Path, &Path)) -> io::Result<()> {
    Cgroup::of(name).join()?;
    sethostname(name.as_bytes())?;
    setsid()?;
    enter_root(root, mount_all)?;
    // The one that was inherited lies outside.
    dup2_stdin(File::open("/dev/null")?)?;
    chdir(folder).map_err(|error| {
        let what = format!("{}: {error}", folder.display());
        io::Error::new(io::Error::from(error).kind(), what)
    })
}

/// Makes a folder the root of this process, in its own mount namespace. `mount` mounts other file systems there: it is the
/// current directory meanwhile.
pub(super) fn enter_root<T>(root: &Path, mount: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private)?;
    fs::create_dir_all(ROOT)?;
    mount_bind(root, ROOT)
        .map_err(|error| io::Error::other(format!("{}: {error}", root.display())))?;
    chdir(ROOT)?;
    let mounted = mount()?;
    match pivot_root(".", ".") {
        Ok(()) => unmount(".", UnmountFlags::DETACH)?,
        // The initial file system can only be covered.
        Err(Errno::INVAL) => {
            mount_move(".", "/")?;
            chroot(".")?;
        }
        Err(error) => return Err(error.into()),
    }
    chdir("/")?;
    Ok(mounted)
}

fn mount_all() -> io::Result<()> {
    for (kind, place, flags, options) in MOUNTS {
        // In memory, or there since the node's start.
        let _ = fs::create_dir(place);
        mount(kind, place, kind, flags, Some(options))
            .map_err(|error| io::Error::other(format!("/{place}: {error}")))?;
        if place == "dev" {
            make_devices()?;
        }
    }
    Ok(())
}

/// Makes the device nodes that every container has, in the `dev` of the current directory.
pub(super) fn make_devices() -> io::Result<()> {
    for (name, major, minor) in DEVICES {
        let path = format!("dev/{name}");
        let mode = Mode::from_raw_mode(0o666);
        mknodat(
            CWD,
            &path,
            FileType::CharacterDevice,
            mode,
            makedev(major, minor),
        )?;
        // Whatever the umask.
        chmod(&path, mode)?;
    }
    for (name, target) in LINKS {
        symlink(target, format!("dev/{name}"))?;
    }
    Ok(())
}
