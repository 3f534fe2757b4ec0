//! PCI functions that cannot be a node's.

use insula::device::PciAddress;
use insula::driver::Driver;
use insula::name::Name;
use insula_abi::{Device, GRANULE, NUMA_ANY, Request};
use nix::errno::Errno;

use super::Finding;
use super::holdings::{Holdings, assert_unchanged};
use super::insula_command::{ask, assert_equal, wait_for};
use super::spare::{self, DISK, MUTE, NETWORK, NetworkDriver, SHARED};

/// Of the bus that the machine begins with: the bridge to what is older than PCI.
const BRIDGE: &str = "0000:00:1f.0";
/// There is none.
const NOWHERE: &str = "0000:77:00.0";
/// The firmware's table of where configuration space lies in memory.
const MCFG: &str = "/sys/firmware/acpi/tables/MCFG";

/// Whatever cannot be had is refused by the command, and by the module, and nothing has happened.
pub(super) fn refusals(network: &NetworkDriver, before: &Holdings) -> Result<(), Finding> {
    let refusals = Refusals { before };
    let disks =
        spare::shell("basename $(readlink -f /sys/class/nvme/nvme*/device | grep -v 01:00.0)")?;
    refusals.unfit(&disks)?;
    refusals.needed(network)?;
    module_refuses(&disks)?;
    spare::assert_the_bases()?;
    assert_unchanged(before)
}

struct Refusals<'a> {
    before: &'a Holdings,
}

impl Refusals<'_> {
    /// Who asks for the devices is told all these parts, and nothing has happened.
    fn refused(&self, devices: &[&str], parts: &[&str]) -> Result<(), Finding> {
        let mut words = vec!["run", "--image", "old", "--memory", "256M"];
        for device in devices {
            words.extend(["--device", device]);
        }
        ask(&words)?.refused(1, &[parts, &["nothing was touched"]].concat())?;
        spare::assert_the_bases()?;
        assert_unchanged(self.before)
    }

    fn unfit(&self, disks: &str) -> Result<(), Finding> {
        self.refused(&[disks], &["root bus", "slot of its own"])?;
        self.refused(&[BRIDGE], &["is a bridge"])?;
        self.refused(&[NOWHERE], &["no PCI function", "machine info"])?;
        self.refused(&[DISK, DISK], &["named twice"])?;
        self.refused(
            &[SHARED],
            &["not alone on its bus: 0000:03:00.1", "slot of its own"],
        )?;
        self.refused(&[MUTE], &["cannot interrupt by messages"])?;
        without_reset(|| self.refused(&[DISK], &["cannot be reset", "a reset of its own"]))?;
        without_ecam(|| self.refused(&[DISK], &["no configuration space in memory", "firmware"]))
    }

    fn needed(&self, network: &NetworkDriver) -> Result<(), Finding> {
        let disk = spare::disk()?;
        spare::shell(&format!(
            "mke2fs -q -F {disk} && mkdir -p /tmp/mnt && mount {disk} /tmp/mnt"
        ))?;
        self.refused(&[DISK], &["is mounted at /tmp/mnt", "--force-device"])?;
        spare::shell("umount /tmp/mnt")?;

        let interface = network.interface()?;
        spare::shell(&format!("ip link set {interface} up"))?;
        wait_for("the link to be up", || {
            let state = std::fs::read_to_string(format!("/sys/class/net/{interface}/operstate"))?;
            Ok((state.trim() == "up").then_some(()))
        })?;
        self.refused(&[NETWORK], &["only way to the network", "--force-device"])
    }
}

/// The base's administrator has forbidden every reset of the disk.
fn without_reset(deed: impl FnOnce() -> Result<(), Finding>) -> Result<(), Finding> {
    let methods = format!("/sys/bus/pci/devices/{DISK}/reset_method");
    std::fs::write(&methods, "\n")?;
    let done = deed();
    std::fs::write(&methods, "default")?;
    done
}

/// The firmware says nothing of configuration space in memory.
fn without_ecam(deed: impl FnOnce() -> Result<(), Finding>) -> Result<(), Finding> {
    spare::shell(&format!("mount --bind /dev/null {MCFG}"))?;
    let done = deed();
    spare::shell(&format!("umount {MCFG}"))?;
    done
}

/// The module looks for itself, whatever was asked before it was called.
fn module_refuses(disks: &str) -> Result<(), Finding> {
    let driver = Driver::open()?;
    let memory = driver.create_memory()?;
    memory.grow(&Request {
        size: GRANULE,
        min_phys: 0,
        max_phys: 0,
        chunk_max: 0,
        numa_node: NUMA_ANY,
        flags: 0,
    })?;
    let node = driver.create_node(&"nobody".parse::<Name>()?.to_abi(), &[], &[1], &memory)?;
    let answer = |text: &str| -> Result<Option<Errno>, Finding> {
        let added = node.add_device(address(text)?);
        Ok(added.err().map(|error| error.errno))
    };
    for (device, expected) in [
        (NOWHERE, Errno::ENODEV),
        (BRIDGE, Errno::EOPNOTSUPP),
        (MUTE, Errno::EOPNOTSUPP),
        (disks, Errno::EXDEV),
        (SHARED, Errno::EXDEV),
    ] {
        assert_equal(device, &answer(device)?, &Some(expected))?;
    }
    without_reset(|| {
        let refused = answer(DISK)?;
        assert_equal(
            "a disk that cannot be reset",
            &refused,
            &Some(Errno::EOPNOTSUPP),
        )?;
        spare::assert_the_bases()
    })?;
    assert_equal("the disk", &answer(DISK)?, &None)?;
    assert_equal("the disk again", &answer(DISK)?, &Some(Errno::EBUSY))
}

/// As the module wants it.
fn address(text: &str) -> Result<Device, Finding> {
    Ok(text.parse::<PciAddress>()?.to_abi())
}
