//! What a node has used since its start, as its kernel tells in files of `proc(5)`.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Duration of a tick in those files (`USER_HZ`), in ns.
const TICK_NS: u64 = 10_000_000;
/// Size of a sector there, in bytes, whatever the disk's is.
const SECTOR: u64 = 512;
/// Columns of `/proc/stat` that are no work: idle, and idle while something is read from a disk.
const IDLE: [usize; 2] = [3, 4];
/// Columns there that are counted in others, too: of guests.
const COUNTED: usize = 8;

/// What a node has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Usage {
    /// Time for which its cores worked, all together, in ns.
    pub cpu_ns: u64,
    /// Memory that its kernel manages, in bytes.
    pub memory_bytes: u64,
    /// That of it which programs can still have, in bytes: also what only caches files.
    pub memory_available_bytes: u64,
    /// Bytes that its network cards have received and sent.
    pub network: Traffic,
    /// Bytes that it has read from its disks and written to them.
    pub disks: Traffic,
}

/// Bytes both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Traffic {
    /// Those that came.
    pub in_bytes: u64,
    /// Those that went.
    pub out_bytes: u64,
}

impl Traffic {
    fn sum(all: impl Iterator<Item = (u64, u64)>) -> Self {
        all.fold(Self::default(), |sum, (came, went)| Self {
            in_bytes: sum.in_bytes.saturating_add(came),
            out_bytes: sum.out_bytes.saturating_add(went),
        })
    }
}

impl Usage {
    /// Reads it, of the kernel whose `/proc` and `/sys` are in this folder.
    ///
    /// # Errors
    /// When one of the files cannot be read, or is no such file.
    pub fn read(root: &Path) -> io::Result<Self> {
        let text = |path: &str| fs::read_to_string(root.join(path));
        let (memory_bytes, memory_available_bytes) =
            memory(&text("proc/meminfo")?).ok_or_else(invalid)?;
        // A kernel may have neither disks nor a network.
        let disks = text("proc/diskstats").unwrap_or_default();
        let network = text("proc/net/dev").unwrap_or_default();
        // What has a device is no partition, no bridge, and nothing that lies on others or in memory.
        let has_device = |class: &str, name: &str| {
            root.join("sys")
                .join(class)
                .join(name)
                .join("device")
                .exists()
        };
        Ok(Self {
            cpu_ns: cpu_ns(&text("proc/stat")?).ok_or_else(invalid)?,
            memory_bytes,
            memory_available_bytes,
            network: Traffic::sum(
                network
                    .lines()
                    .filter_map(|line| interface(line, |name| has_device("class/net", name))),
            ),
            disks: Traffic::sum(
                disks
                    .lines()
                    .filter_map(|line| disk(line, |name| has_device("block", name))),
            ),
        })
    }
}

fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// The time of all cores, by the first line of `/proc/stat`.
fn cpu_ns(stat: &str) -> Option<u64> {
    let columns = stat.lines().next()?.strip_prefix("cpu ")?;
    let columns = columns.split_whitespace().take(COUNTED).enumerate();
    let worked = columns.filter(|(column, _)| !IDLE.contains(column));
    let ticks = worked.map(|(_, ticks)| ticks.parse::<u64>().ok());
    let ticks = ticks.sum::<Option<u64>>()?;
    ticks.checked_mul(TICK_NS)
}

/// All memory, and that which is available.
fn memory(meminfo: &str) -> Option<(u64, u64)> {
    let bytes = |name: &str| {
        let mut values = meminfo.lines().filter_map(|line| line.strip_prefix(name));
        let kib: u64 = values.next()?.split_whitespace().next()?.parse().ok()?;
        kib.checked_mul(1024)
    };
    Some((bytes("MemTotal:")?, bytes("MemAvailable:")?))
}

/// Bytes received and sent by a network card, of a line of `/proc/net/dev`.
fn interface(line: &str, is_card: impl Fn(&str) -> bool) -> Option<(u64, u64)> {
    let (name, columns) = line.split_once(':')?;
    let mut columns = columns.split_whitespace();
    let received = columns.next()?.parse().ok()?;
    let sent = columns.nth(7)?.parse().ok()?;
    is_card(name.trim()).then_some((received, sent))
}

/// Bytes read and written by a disk, of a line of `/proc/diskstats`.
fn disk(line: &str, is_disk: impl Fn(&str) -> bool) -> Option<(u64, u64)> {
    let mut columns = line.split_whitespace().skip(2);
    let name = columns.next()?;
    let bytes = |sectors: &str| sectors.parse::<u64>().ok()?.checked_mul(SECTOR);
    let read = bytes(columns.nth(2)?)?;
    let written = bytes(columns.nth(3)?)?;
    is_disk(name).then_some((read, written))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STAT: &str =
        "cpu  100 2 30 4000 50 6 7 8 90 10\ncpu0 100 2 30 4000 50 6 7 8 90 10\nintr 1\n";
    const MEMINFO: &str =
        "MemTotal:         500000 kB\nMemFree:          100000 kB\nMemAvailable:     300000 kB\n";
    const DEV: &str = "Inter-|   Receive                            |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:    1000      10    0    0    0     0          0         0     1000      10    0    0    0     0       0          0
docker0:    9000      10    0    0    0     0          0         0     9000      10    0    0    0     0       0          0
  eth0: 7000000    5000    0    0    0     0          0         0   300000    2000    0    0    0     0       0          0
";
    const DISKSTATS: &str = "\
 254       0 vda 100 0 2000 50 10 0 400 30 0 60 80 0 0 0 0 0 0
 254       1 vda1 90 0 1900 50 10 0 400 30 0 60 80 0 0 0 0 0 0
   7       0 loop0 5 0 10 0 0 0 0 0 0 0 0 0 0 0 0 0 0
";

    #[test]
    fn what_the_kernel_tells_is_summed() {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("proc/stat", STAT),
            ("proc/meminfo", MEMINFO),
            ("proc/net/dev", DEV),
            ("proc/diskstats", DISKSTATS),
            ("sys/block/vda/device/vendor", ""),
            ("sys/class/net/eth0/device/vendor", ""),
            ("sys/class/net/docker0/mtu", ""),
            ("sys/block/loop0/size", ""),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let traffic = |in_bytes, out_bytes| Traffic {
            in_bytes,
            out_bytes,
        };
        let expected = Usage {
            cpu_ns: (100 + 2 + 30 + 6 + 7 + 8) * TICK_NS,
            memory_bytes: 500_000 << 10,
            memory_available_bytes: 300_000 << 10,
            network: traffic(7_000_000, 300_000),
            disks: traffic(2000 * SECTOR, 400 * SECTOR),
        };
        assert_eq!(Usage::read(root.path()).unwrap(), expected);
    }

    #[test]
    fn this_kernel_tells_what_is_used() {
        let usage = Usage::read(Path::new("/")).unwrap();
        assert!(usage.cpu_ns > 0 && usage.memory_available_bytes <= usage.memory_bytes);
    }

    proptest! {
        /// Any text is refused or read.
        #[test]
        fn any_text_is_survived(text in "(cpu |MemTotal:|eth0:|[0-9 ]|\\PC|\n){0,60}") {
            let _ = (cpu_ns(&text), memory(&text));
            text.lines().for_each(|line| {
                let _ = (interface(line, |_| true), disk(line, |_| true));
            });
        }
    }
}
