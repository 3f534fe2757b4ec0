//! Mounting the node's root and switching to it, and its volumes.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use insula_agent::container::CRIU_FOLDER;
use insula_agent::options::{ROOT_TAG, Root, Volume, volume_tag};
use rustix::fs::{major, minor};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_move, unmount};
use rustix::process::{chdir, chroot};

use crate::log::log;

/// The first persistent memory device, the only one of a node.
const MEMORY: &str = "/dev/pmem0";
/// The first disk.
const DISK: &str = "/dev/vda";
/// Mount point of the new root.
const NEW: &str = "/newroot";
/// Lower layer of an overlay, and the file system of its upper layer.
const LOWER: &str = "/lower";
const UPPER: &str = "/upper";
/// The image's CRIU.
const CRIU: &str = "/lib/insula/criu";
/// Mounts that move to the new root.
const MOVED: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];

/// Folder of the virtiofs driver with its devices.
const DEVICES: &str = "/sys/bus/virtio/drivers/virtiofs";
/// How much is read ahead: two of virtiofs' largest requests, of which one is served while the other one is used.
const READ_AHEAD_KIB: &str = "2048";
/// Time the base gets to provide the device.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Interval at which that is polled.
const INTERVAL: Duration = Duration::from_millis(20);

/// Mounts the root and switches this process and its children to it. The node has so many `folders`.
pub(crate) fn enter(root: Root, folders: usize) -> io::Result<()> {
    fs::create_dir_all(NEW)?;
    match root {
        Root::Files => mount_files(ROOT_TAG, NEW, MountFlags::empty(), folders)?,
        Root::Overlay => {
            mount_files(ROOT_TAG, LOWER, MountFlags::empty(), folders)?;
            mount_overlay()?;
        }
        Root::Memory => {
            mount_memory(LOWER)?;
            mount_overlay()?;
        }
        Root::Disk => mount_disk(NEW, MountFlags::empty())?,
        Root::DiskOverlay => {
            mount_disk(LOWER, MountFlags::RDONLY)?;
            mount_overlay()?;
        }
    }
    keep_criu();
    for place in MOVED {
        let target = format!("{NEW}{place}");
        // It may exist, or the folder may be read-only: then moving fails.
        let _ = fs::create_dir(&target);
        mount_move(place, &target)?;
    }
    unmount("/tmp", UnmountFlags::DETACH)?;
    chdir(NEW)?;
    mount_move(".", "/")?;
    chroot(".")?;
    Ok(chdir("/")?)
}

/// Keeps the image's CRIU where it can be reached on the new root, too. Not every image has one.
fn keep_criu() {
    if Path::new(CRIU).is_dir() {
        let kept =
            fs::create_dir_all(CRIU_FOLDER).and_then(|()| Ok(mount_bind(CRIU, CRIU_FOLDER)?));
        if let Err(error) = kept {
            log(&format!("CRIU cannot be kept: {error}"));
        }
    }
}

/// Mounts the root, which is a folder of the base, once more: without what else is mounted below it.
pub(crate) fn mount_bare(mount_point: &str) -> io::Result<()> {
    fs::create_dir_all(mount_point)?;
    Ok(mount(
        ROOT_TAG,
        mount_point,
        "virtiofs",
        MountFlags::empty(),
        None,
    )?)
}

/// Mounts those of the node's `folders` that it has beside its root.
pub(crate) fn mount_volumes(volumes: &[Volume], folders: usize) -> io::Result<()> {
    for (number, volume) in volumes.iter().enumerate() {
        let mount_point = String::from_utf8_lossy(&volume.mount_point);
        let flags = match volume.read_only {
            true => MountFlags::RDONLY,
            false => MountFlags::empty(),
        };
        let mounted = mount_files(&volume_tag(number), &mount_point, flags, folders);
        mounted.map_err(|error| io::Error::new(error.kind(), format!("{mount_point}: {error}")))?;
    }
    Ok(())
}

fn mount_files(tag: &str, mount_point: &str, flags: MountFlags, folders: usize) -> io::Result<()> {
    let mount_it = || match has_devices(folders) {
        true => mount(tag, mount_point, "virtiofs", flags, None),
        // Mounting without the device would log an error each time.
        false => Err(Errno::NODEV),
    };
    mount_with_retry(mount_it, mount_point)?;
    if let Err(error) = read_ahead(mount_point) {
        log(&format!(
            "{mount_point}: not much of a file is read ahead: {error}"
        ));
    }
    Ok(())
}

/// Has the kernel ask for more of a file at once than the 128 KiB that are usual: each request wakes its server on the base.
fn read_ahead(mount_point: &str) -> io::Result<()> {
    let device = fs::metadata(mount_point)?.dev();
    let (major, minor) = (major(device), minor(device));
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    fs::write(path, READ_AHEAD_KIB)
}

/// Mounts the image with DAX: files are read and executed in place, in memory shared with other
/// nodes.
fn mount_memory(mount_point: &str) -> io::Result<()> {
    let flags = MountFlags::RDONLY;
    mount_with_retry(
        || mount(MEMORY, mount_point, "erofs", flags, Some(c"dax=always")),
        mount_point,
    )
}

fn mount_disk(mount_point: &str, flags: MountFlags) -> io::Result<()> {
    mount_with_retry(
        || mount(DISK, mount_point, "ext4", flags, None),
        mount_point,
    )
}

/// Retries a mount while the device or its name does not exist yet.
fn mount_with_retry(mount: impl Fn() -> Result<(), Errno>, mount_point: &str) -> io::Result<()> {
    fs::create_dir_all(mount_point)?;
    let began = Instant::now();
    loop {
        match mount() {
            // The error for a missing name differs between kernels.
            Err(Errno::INVAL | Errno::NODEV | Errno::NOENT | Errno::NXIO)
                if began.elapsed() < TIMEOUT =>
            {
                thread::sleep(INTERVAL);
            }
            mounted => return Ok(mounted?),
        }
    }
}

/// Whether the virtiofs driver has so many devices, one of which it may be probing.
fn has_devices(count: usize) -> bool {
    let devices = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let names = devices.map(|entry| entry.file_name());
    let own = names.filter(|name| name.as_encoded_bytes().starts_with(b"virtio"));
    own.count() >= count
}

fn mount_overlay() -> io::Result<()> {
    fs::create_dir_all(UPPER)?;
    mount(
        "tmpfs",
        UPPER,
        "tmpfs",
        MountFlags::empty(),
        Some(c"mode=755"),
    )?;
    let [changes, work] = ["changes", "work"].map(|name| format!("{UPPER}/{name}"));
    fs::create_dir(&changes)?;
    fs::create_dir(&work)?;
    let options = format!("lowerdir={LOWER},upperdir={changes},workdir={work}");
    let options = CString::new(options)?;
    Ok(mount(
        "overlay",
        NEW,
        "overlay",
        MountFlags::empty(),
        Some(options.as_c_str()),
    )?)
}
