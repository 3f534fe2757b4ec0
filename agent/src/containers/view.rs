//! What a container sees of its kernel: file systems, device nodes, and paths that are hidden from it.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use insula_agent::view::{DeviceNode, KernelMount, View, Volume};
use rustix::fs::{
    CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chmod, chown, makedev, mknodat, open,
    openat2, statvfs,
};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_bind,
    mount_bind_recursive, mount_change, mount_remount, move_mount, open_tree,
};

use super::inside::{HARDENED, make_devices};

const SYSCTLS: &str = "/proc/sys";
const DEV: &str = "/dev";
const SHM: &str = "/dev/shm";
/// What is in place of a file that is hidden.
const NOTHING: &str = "/dev/null";

/// Sets parameters of the kernel, in the namespaces of this process.
pub(super) fn set_sysctls(view: &View) -> io::Result<()> {
    for (name, value) in &view.sysctls {
        let path = Path::new(SYSCTLS).join(name.replace('.', "/"));
        fs::write(&path, value).map_err(|error| named(name, error))?;
    }
    Ok(())
}

/// A mount of memory that is to be read only when all is there, and its flags then.
pub(super) type Unsealed = (OwnedFd, MountFlags);

/// Mounts its file systems, in the current directory, which is to be its root. Terminals are the node's, as they are given to
/// it; so is shared memory, unless that is its `own`. Returns what [`finish`] has to know.
pub(super) fn mount_all(view: &View, own_memory: bool) -> io::Result<Vec<Unsealed>> {
    let volumes = view.volumes.iter().map(|volume| {
        let copied = copy_mount(&volume.path).map_err(|error| named(&volume.path, error))?;
        Ok((volume, copied))
    });
    let volumes: Vec<_> = volumes.collect::<io::Result<_>>()?;
    let mounted = view.mounts.iter().map(|one| {
        let mounted = mount_one(one, own_memory);
        mounted.map_err(|error| named(&one.mount_point, error))
    });
    let mounted = mounted.collect::<io::Result<Vec<_>>>()?;
    for (volume, copied) in volumes {
        mount_volume(volume, &copied).map_err(|error| named(&volume.path, error))?;
    }
    Ok(mounted.into_iter().flatten().collect())
}

/// A mount of what is at this path of the root now, which is nowhere yet.
fn copy_mount(path: &str) -> io::Result<(OwnedFd, bool)> {
    let found = open_in_root(path)?;
    let is_folder = File::from(found.try_clone()?).metadata()?.is_dir();
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    Ok((open_tree(&found, "", flags)?, is_folder))
}

/// Opens what is at a path of the current directory, which is to be the root.
fn open_in_root(path: &str) -> Result<OwnedFd, Errno> {
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(".", folder, Mode::empty())?;
    openat2(
        &root,
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        within,
    )
}

/// Mounts it there, with its flags. Where other mounts have covered it there may be no place.
fn mount_volume(volume: &Volume, (copied, is_folder): &(OwnedFd, bool)) -> io::Result<()> {
    let place = match open_in_root(&volume.path) {
        Err(Errno::NOENT) => {
            make_place(&below(&volume.path), *is_folder)?;
            open_in_root(&volume.path)
        }
        place => place,
    }?;
    let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(copied, "", &place, "", empty)?;
    let flags = MountFlags::from_bits_retain(volume.flags);
    match flags.is_empty() {
        true => Ok(()),
        false => set_flags(copied, flags),
    }
}

/// Changes the flags of a mount whose root is open.
fn set_flags(mount: &OwnedFd, flags: MountFlags) -> io::Result<()> {
    Ok(mount_remount(path_of(mount), MountFlags::BIND | flags, "")?)
}

fn make_place(place: &Path, is_folder: bool) -> io::Result<()> {
    place.parent().map_or(Ok(()), fs::create_dir_all)?;
    match is_folder {
        true => fs::create_dir_all(place),
        false => File::options()
            .create(true)
            .append(true)
            .open(place)
            .map(drop),
    }
}

/// A path to what is open, by the node's `/proc`.
fn path_of(opened: &OwnedFd) -> PathBuf {
    Path::new("/proc/self/fd").join(opened.as_raw_fd().to_string())
}

/// Mounts it.
fn mount_one(one: &KernelMount, own_memory: bool) -> io::Result<Option<Unsealed>> {
    let place = below(&one.mount_point);
    // In memory, or there since the node's start.
    let _ = fs::create_dir_all(&place);
    let flags = MountFlags::from_bits_retain(one.flags);
    let is_shared = one.kind == "devpts" || one.mount_point == SHM && !own_memory;
    if is_shared {
        mount_bind(&one.mount_point, &place)?;
        return Ok(None);
    }
    let options = CString::new(one.options.as_str())?;
    let is_unsealed = one.kind == "tmpfs" && flags.contains(MountFlags::RDONLY);
    let at_first = match is_unsealed {
        true => flags - MountFlags::RDONLY,
        false => flags,
    };
    mount(
        &one.source,
        &place,
        &one.kind,
        at_first,
        Some(options.as_c_str()),
    )?;
    if one.mount_point == DEV {
        make_devices()?;
    }
    if !is_unsealed {
        return Ok(None);
    }
    let mounted = open(&place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    Ok(Some((mounted, flags)))
}

fn below(path: &str) -> PathBuf {
    PathBuf::from(path.trim_start_matches('/'))
}

/// Does the rest, in its root.
pub(super) fn finish(view: &View, unsealed: &[Unsealed]) -> io::Result<()> {
    for device in &view.devices {
        make_device(device).map_err(|error| named(&device.path, error))?;
    }
    for (mount, flags) in unsealed {
        set_flags(mount, *flags)?;
    }
    for path in &view.read_only_paths {
        make_read_only(path).map_err(|error| named(path, error))?;
    }
    for path in &view.masked_paths {
        mask(path).map_err(|error| named(path, error))?;
    }
    match MountPropagationFlags::from_bits_retain(view.propagation) {
        none if none.is_empty() => Ok(()),
        propagation => Ok(mount_change("/", propagation)?),
    }
}

fn make_device(device: &DeviceNode) -> io::Result<()> {
    let path = Path::new(&device.path);
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let kind = FileType::from_raw_mode(device.mode);
    let mode = Mode::from_raw_mode(device.mode);
    match mknodat(CWD, path, kind, mode, makedev(device.major, device.minor)) {
        // One that every container has.
        Err(Errno::EXIST) => return Ok(()),
        made => made?,
    }
    let (uid, gid) = (Uid::from_raw(device.uid), Gid::from_raw(device.gid));
    chown(path, Some(uid), Some(gid))?;
    // Whatever the umask.
    Ok(chmod(path, mode)?)
}

fn make_read_only(path: &str) -> io::Result<()> {
    if !Path::new(path).try_exists()? {
        return Ok(());
    }
    mount_bind_recursive(path, path)?;
    // These have the same values there.
    let found = MountFlags::from_bits_retain(statvfs(path)?.f_flag.bits() as u32);
    let flags = MountFlags::BIND | MountFlags::RDONLY | found & HARDENED;
    Ok(mount_remount(path, flags, "")?)
}

fn mask(path: &str) -> io::Result<()> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if found.is_dir() => {
            let flags = HARDENED | MountFlags::RDONLY;
            Ok(mount("tmpfs", path, "tmpfs", flags, None)?)
        }
        Ok(_) => Ok(mount_bind(NOTHING, path)?),
    }
}

fn named(what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
