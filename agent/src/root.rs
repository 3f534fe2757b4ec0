//! The node's root, where it is not the initial file system.

use std::ffi::CString;
use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use insula_agent::options::{ROOT_TAG, Root};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_move, unmount};
use rustix::process::{chdir, chroot};

/// The first persistent memory: there is no other but what the node is told of.
const MEMORY: &str = "/dev/pmem0";
/// The first disk.
const DISK: &str = "/dev/vda";
/// Where it is put together.
const NEW: &str = "/newroot";
/// The files below an overlay, and what lies over them.
const LOWER: &str = "/lower";
const UPPER: &str = "/upper";
/// What goes along; what else is mounted stays behind.
const MOVED: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];

/// Where the driver of file systems lists the devices that it has, and what else it has.
const DEVICES: &str = "/sys/bus/virtio/drivers/virtiofs";
/// How long the base may take to bring the device.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked for.
const INTERVAL: Duration = Duration::from_millis(20);

/// Makes it the root of this process and all that follow.
pub(crate) fn enter(root: Root) -> io::Result<()> {
    fs::create_dir_all(NEW)?;
    match root {
        Root::Files => mount_files(NEW)?,
        Root::Overlay => {
            mount_files(LOWER)?;
            mount_over()?;
        }
        Root::Memory => {
            mount_memory(LOWER)?;
            mount_over()?;
        }
        Root::Disk => mount_disk(NEW, MountFlags::empty())?,
        Root::DiskOverlay => {
            mount_disk(LOWER, MountFlags::RDONLY)?;
            mount_over()?;
        }
    }
    for place in MOVED {
        let target = format!("{NEW}{place}");
        // A folder of the base may have it already, or not allow it: then moving tells.
        let _ = fs::create_dir(&target);
        mount_move(place, &target)?;
    }
    unmount("/tmp", UnmountFlags::DETACH)?;
    chdir(NEW)?;
    mount_move(".", "/")?;
    chroot(".")?;
    Ok(chdir("/")?)
}

fn mount_files(place: &str) -> io::Result<()> {
    let mount_it = || match has_device() {
        true => mount(ROOT_TAG, place, "virtiofs", MountFlags::empty(), None),
        // To ask for it would make the kernel complain each time.
        false => Err(Errno::NODEV),
    };
    mount_patiently(mount_it, place)
}

/// Files are read, and programs run, where they lie: the memory is other nodes', too.
fn mount_memory(place: &str) -> io::Result<()> {
    let flags = MountFlags::RDONLY;
    mount_patiently(
        || mount(MEMORY, place, "erofs", flags, Some(c"dax=always")),
        place,
    )
}

fn mount_disk(place: &str, flags: MountFlags) -> io::Result<()> {
    mount_patiently(|| mount(DISK, place, "ext4", flags, None), place)
}

/// The device may be there only a moment after its driver, and its name a moment after the device.
fn mount_patiently(mount: impl Fn() -> Result<(), Errno>, place: &str) -> io::Result<()> {
    fs::create_dir_all(place)?;
    let began = Instant::now();
    loop {
        match mount() {
            // What it is answered for a name that there is not (yet) differs between kernels.
            Err(Errno::INVAL | Errno::NODEV | Errno::NOENT | Errno::NXIO)
                if began.elapsed() < PATIENCE =>
            {
                thread::sleep(INTERVAL);
            }
            mounted => return Ok(mounted?),
        }
    }
}

/// Whether the driver of file systems has a device, or is about to.
fn has_device() -> bool {
    let devices = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let mut names = devices.map(|entry| entry.file_name());
    names.any(|name| name.as_encoded_bytes().starts_with(b"virtio"))
}

fn mount_over() -> io::Result<()> {
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
