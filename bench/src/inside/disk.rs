//! The emulated disks.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use testbed::base::Finding;

/// Bytes read to measure a disk's rate: more than a kernel, but not too slow.
const RATE_BYTES: usize = 64 << 20;
/// Bytes per call: more than the kernel's read-ahead, to have few calls.
const PIECE_BYTES: usize = 1 << 20;

/// The controller of a disk that the base can give away.
pub const SPARE_DISK: &str = "0000:01:00.0";
/// Its serial number, by which it is found: its own folder may only have a path to it.
const SPARE_SERIAL: &str = "spare";
/// Time limit for the base's driver to find it.
const SPARE_TIMEOUT: Duration = Duration::from_secs(60);

/// Block device of the disk that the base can give away, once the base's driver has found it.
///
/// # Errors
/// When it does not.
pub fn spare_disk() -> Result<String, Finding> {
    let began = Instant::now();
    while began.elapsed() < SPARE_TIMEOUT {
        for entry in fs::read_dir("/sys/block")? {
            let entry = entry?;
            let serial = fs::read_to_string(entry.path().join("device/serial")).unwrap_or_default();
            let device = Path::new("/dev").join(entry.file_name());
            if serial.trim() == SPARE_SERIAL && device.exists() {
                return Ok(device.to_string_lossy().into_owned());
            }
        }
        thread::sleep(Duration::from_millis(100));
    }
    Err(Finding::new("the base has not found its spare disk"))
}

/// Drops the page cache and the caches of names and inodes, so that the next reads come from the
/// disk.
///
/// # Errors
/// When the kernel refuses.
pub fn drop_caches() -> Result<(), Finding> {
    // Dirty pages would not be dropped.
    let status = std::process::Command::new("sync").status()?;
    Finding::unless(status.success(), || "sync failed".to_owned())?;
    Ok(fs::write("/proc/sys/vm/drop_caches", "3")?)
}

/// Reads from the disk that the file at `path` is on, from its start and with empty caches. Returns
/// the rate in MB/s (10^6 bytes).
///
/// # Errors
/// When the disk is not found or cannot be read.
pub fn read_rate(path: &Path) -> Result<f64, Finding> {
    let path = fs::canonicalize(path)?;
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let device = device_of(&mounts, &path)
        .ok_or_else(|| Finding::new(format!("{} is on no disk", path.display())))?;
    let mut disk = File::open(device)?;
    let mut piece = vec![0; PIECE_BYTES];
    drop_caches()?;
    let began = Instant::now();
    for _ in 0..RATE_BYTES / PIECE_BYTES {
        match disk.read_exact(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(Finding::new(format!("{device} is smaller than 64 MiB")));
            }
            other => other?,
        }
    }
    Ok(RATE_BYTES as f64 / 1e6 / began.elapsed().as_secs_f64())
}

/// Device of the innermost mount that the file lies in.
fn device_of<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let parts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some((words.next()?, words.next()?))
    });
    parts
        .filter(|(device, point)| device.starts_with("/dev/") && path.starts_with(point))
        .max_by_key(|(_, point)| point.len())
        .map(|(device, _)| device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn innermost_mount_counts() {
        let mounts =
            "/dev/a / ext4 rw 0 0\nproc /proc proc rw 0 0\n/dev/b /kernels/4 ext4 ro 0 0\n";
        let device = |path: &str| device_of(mounts, Path::new(path));
        assert_eq!(device("/kernels/4/boot/vmlinuz"), Some("/dev/b"));
        assert_eq!(device("/payload/node.cpio"), Some("/dev/a"));
        assert_eq!(device_of("proc /proc proc\n", Path::new("/proc/x")), None);
    }
}
