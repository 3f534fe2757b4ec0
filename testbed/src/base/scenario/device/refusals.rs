//! PCI functions that cannot be given to a node.

use insula_abi::{Device, GRANULE, NUMA_ANY, Request};
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node::device::PciAddress;
use nix::errno::Errno;

use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, try_insula, wait_for};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::support::spare::{self, DISK, NETWORK, NetworkDriver, SHARED, WITHOUT_MSI};

/// A function on the root bus: the bridge to the ISA bus.
const BRIDGE: &str = "0000:00:1f.0";
/// Address without a function.
const NOWHERE: &str = "0000:77:00.0";
/// The firmware's table of memory-mapped configuration space.
const MCFG: &str = "/sys/firmware/acpi/tables/MCFG";

/// Functions that cannot be given are refused by the command and by the module, without side
/// effects.
pub(super) fn refusals(network: &NetworkDriver, before: &Resources) -> Result<(), Finding> {
    let refusals = Refusals { before };
    let disks =
        spare::shell("basename $(readlink -f /sys/class/nvme/nvme*/device | grep -v 01:00.0)")?;
    refusals.unfit(&disks)?;
    refusals.needed(network)?;
    module_refuses(&disks)?;
    spare::assert_base_has_both()?;
    assert_unchanged(before)
}

struct Refusals<'a> {
    before: &'a Resources,
}

impl Refusals<'_> {
    /// The request is refused with a message that has all these parts, without side effects.
    fn refused(&self, devices: &[&str], parts: &[&str]) -> Result<(), Finding> {
        let mut words = vec!["run", "--image", "old", "--memory", "256M"];
        for device in devices {
            words.extend(["--device", device]);
        }
        try_insula(&words)?.refused(1, &[parts, &["nothing was touched"]].concat())?;
        spare::assert_base_has_both()?;
        assert_unchanged(self.before)
    }

    fn unfit(&self, disks: &str) -> Result<(), Finding> {
        self.refused(&[disks], &["root bus", "slot of its own"])?;
        self.refused(&[BRIDGE], &["is a bridge"])?;
        self.refused(&[NOWHERE], &["no PCI function", "machine info"])?;
        self.refused(&[DISK, DISK], &["given twice"])?;
        self.refused(
            &[SHARED],
            &["not alone on its bus: 0000:03:00.1", "slot of its own"],
        )?;
        self.refused(&[WITHOUT_MSI], &["neither MSI nor MSI-X"])?;
        without_reset(|| self.refused(&[DISK], &["cannot be reset", "a reset of its own"]))?;
        without_ecam(|| self.refused(&[DISK], &["no configuration space in memory", "firmware"]))
    }

    fn needed(&self, network: &NetworkDriver) -> Result<(), Finding> {
        let disk = spare::disk()?;
        spare::shell(&format!(
            "mke2fs -q -F -t ext4 {disk} && mkdir -p /tmp/mnt && mount {disk} /tmp/mnt"
        ))?;
        self.refused(&[DISK], &["is mounted at /tmp/mnt", "--force-device"])?;
        spare::shell("umount /tmp/mnt")?;

        let interface = network.interface()?;
        spare::shell(&format!("ip link set {interface} up"))?;
        wait_for("the link to be up", || {
            let state = std::fs::read_to_string(format!("/sys/class/net/{interface}/operstate"))?;
            Ok((state.trim() == "up").then_some(()))
        })?;
        self.refused(
            &[NETWORK],
            &["only connection to the network", "--force-device"],
        )
    }
}

/// Runs `action` while every reset method of the disk is disabled.
fn without_reset(action: impl FnOnce() -> Result<(), Finding>) -> Result<(), Finding> {
    let methods = format!("/sys/bus/pci/devices/{DISK}/reset_method");
    std::fs::write(&methods, "\n")?;
    let done = action();
    std::fs::write(&methods, "default")?;
    done
}

/// Runs `action` while the firmware's table of configuration space is hidden.
fn without_ecam(action: impl FnOnce() -> Result<(), Finding>) -> Result<(), Finding> {
    spare::shell(&format!("mount --bind /dev/null {MCFG}"))?;
    let done = action();
    spare::shell(&format!("umount {MCFG}"))?;
    done
}

/// The module does its own checks, whatever the command would have checked.
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
        (WITHOUT_MSI, Errno::EOPNOTSUPP),
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
        spare::assert_base_has_both()
    })?;
    assert_equal("the disk", &answer(DISK)?, &None)?;
    assert_equal("the disk again", &answer(DISK)?, &Some(Errno::EBUSY))
}

/// Address in the module's format.
fn address(text: &str) -> Result<Device, Finding> {
    Ok(text.parse::<PciAddress>()?.to_abi())
}
