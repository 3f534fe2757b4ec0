//! Spare devices of a machine, used by the base and by nodes.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::insula_command::wait_for;
use crate::base::Finding;
use crate::base::support::nodes::test_node::TestNode;
use crate::host::machine::{SERVED_FILE, served_content};

/// The NVMe controller.
pub(crate) const DISK: &str = "0000:01:00.0";
/// The network card.
pub(crate) const NETWORK: &str = "0000:02:00.0";
/// Two network cards, each the only peer of the other.
pub(crate) const PAIR: [&str; 2] = ["0000:05:00.0", "0000:06:00.0"];
/// A function that shares its bus.
pub(crate) const SHARED: &str = "0000:03:00.0";
/// A function without MSI.
pub(crate) const WITHOUT_MSI: &str = "0000:04:00.0";
/// The base's drivers for both.
const DRIVERS: [(&str, &str); 2] = [(DISK, "nvme"), (NETWORK, "virtio-pci")];
/// Serial number of the controller, unlike that of the testbed's disks.
const SERIAL: &str = "spare";
/// Bytes at the start of the disk that the base fills, and range that a node writes, in units: see
/// testbed/src/node/devices.
const BASE_PART: usize = 1 << 20;
const NODE_PART: (u64, u64) = (64, 64);
/// Unit of these ranges.
const UNIT: &str = "64k";
/// Address of the base in QEMU's network, and QEMU's own.
const ADDRESS: &str = "10.0.2.15/24";
const PEER: &str = "10.0.2.2";
/// Kernel modules for the network card, each before those that it depends on.
const NETWORK_MODULES: [&str; 3] = ["virtio_net", "net_failover", "failover"];

/// Driver that a function is bound to.
pub(crate) fn driver(address: &str) -> Option<String> {
    let link = fs::read_link(format!("/sys/bus/pci/devices/{address}/driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

/// Fails unless the base has both, in working order.
pub(crate) fn assert_base_has_both() -> Result<(), Finding> {
    for (address, usual) in DRIVERS {
        let found = driver(address);
        Finding::unless(found.as_deref() == Some(usual), || {
            format!("{address} is bound to {found:?} instead of {usual}")
        })?;
        let path = format!("/sys/bus/pci/devices/{address}/driver_override");
        let forced = fs::read_to_string(path)?;
        Finding::unless(forced.trim() == "(null)", || {
            format!("{address} has the driver_override {forced}")
        })?;
    }
    Ok(())
}

/// Block device of the spare disk, once the base's driver has found it.
pub(crate) fn disk() -> Result<String, Finding> {
    wait_for("the spare disk in the base", || {
        for entry in fs::read_dir("/sys/block")? {
            let path = entry?.path();
            let serial = fs::read_to_string(path.join("device/serial")).unwrap_or_default();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let node = format!("/dev/{name}");
            if serial.trim() == SERIAL && Path::new(&node).exists() {
                return Ok(Some(node));
            }
        }
        Ok(None)
    })
}

/// Fills the base's part of the disk. Returns its checksum.
pub(crate) fn fill_disk() -> Result<String, Finding> {
    let content = &served_content().repeat(BASE_PART / served_content().len());
    fs::write("/tmp/content", content)?;
    let disk = disk()?;
    shell(&format!(
        "dd if=/tmp/content of={disk} bs={UNIT} oflag=direct conv=notrunc 2>/dev/null"
    ))?;
    checksum("/tmp/content")
}

/// Checksums of the base's part and of the node's, read by the base past its caches.
pub(crate) fn disk_sums() -> Result<(String, String), Finding> {
    let (disk, (skip, count)) = (disk()?, NODE_PART);
    let sum = |skip: u64, count: u64| {
        let read =
            format!("dd if={disk} bs={UNIT} skip={skip} count={count} iflag=direct 2>/dev/null");
        shell(&format!("{read} | sha256sum | cut -d ' ' -f 1"))
    };
    Ok((sum(0, BASE_PART as u64 >> 16)?, sum(skip, count)?))
}

/// Checksum of the file that the network card's other end serves.
pub(crate) fn served_sum() -> Result<String, Finding> {
    fs::write("/tmp/served", served_content())?;
    checksum("/tmp/served")
}

/// The base's driver for the network card, which the testbed does not load by itself.
pub(crate) struct NetworkDriver(());

impl NetworkDriver {
    pub(crate) fn load() -> Result<Self, Finding> {
        shell(&format!("modprobe {}", NETWORK_MODULES[0]))?;
        Ok(Self(()))
    }

    pub(crate) fn unload(self) -> Result<(), Finding> {
        // modprobe leaves behind some modules that it has loaded itself.
        shell(&format!("modprobe -r {}", NETWORK_MODULES.join(" "))).map(drop)
    }

    /// Network interface of the spare card.
    pub(crate) fn interface(&self) -> Result<String, Finding> {
        self.interface_of(NETWORK)
    }

    /// Network interface of a card.
    pub(crate) fn interface_of(&self, card: &str) -> Result<String, Finding> {
        wait_for("a spare network interface in the base", || {
            for entry in fs::read_dir("/sys/class/net")? {
                let path = entry?.path();
                let name = path
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned();
                if fs::canonicalize(&path)?.to_string_lossy().contains(card) {
                    return Ok(Some(name));
                }
            }
            Ok(None)
        })
    }

    /// Switches the interface on, has the base fetch the file, and switches it off again.
    pub(crate) fn fetch(&self) -> Result<String, Finding> {
        let interface = self.interface()?;
        shell(&format!(
            "ip address replace {ADDRESS} dev {interface} && ip link set {interface} up"
        ))?;
        let fetched = shell(&format!(
            "cd /tmp && busybox tftp -g -r {SERVED_FILE} -l fetched {PEER} && sha256sum fetched | cut -d ' ' -f 1"
        ));
        shell(&format!("ip link set {interface} down"))?;
        fetched
    }
}

/// Report of a node about its disk.
#[derive(Debug)]
pub(crate) struct DiskReport {
    /// Checksum of what it found in the base's part.
    pub(crate) found: String,
    /// Checksum of what it wrote.
    pub(crate) written: String,
    /// Checksum of what it then read.
    pub(crate) read: String,
    /// Interrupts that its kernel had counted.
    pub(crate) interrupts: u64,
}

/// Waits until the node has used its disk.
pub(crate) fn disk_report(node: &TestNode) -> Result<DiskReport, Finding> {
    let line = node.wait_for_line("disk found=")?;
    let option = |name: &str| {
        let mut values = line.split(' ').filter_map(|word| word.strip_prefix(name));
        values.next().unwrap_or_default().to_owned()
    };
    Ok(DiskReport {
        found: option("found="),
        written: option("written="),
        read: option("read="),
        interrupts: option("interrupts=").parse()?,
    })
}

/// Waits until the node has fetched the file. Returns its checksum.
pub(crate) fn fetch_report(node: &TestNode) -> Result<String, Finding> {
    let line = node.wait_for_line("network fetched=")?;
    Ok(line.rsplit('=').next().unwrap_or_default().to_owned())
}

fn checksum(path: &str) -> Result<String, Finding> {
    shell(&format!("sha256sum {path} | cut -d ' ' -f 1"))
}

/// Runs a command line, which must succeed. Returns its output, without the end of the line.
pub(crate) fn shell(line: &str) -> Result<String, Finding> {
    let output = Command::new("sh")
        .args(["-c", line])
        .stdin(Stdio::null())
        .output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    Finding::unless(output.status.success(), || {
        format!("`{line}` failed: {}", text(&output.stderr))
    })?;
    Ok(text(&output.stdout))
}
