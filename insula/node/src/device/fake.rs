//! Simulated machines for tests.

use std::os::unix::fs::symlink;

use insula_base::root::Root;
use insula_base::root::fake::Tree;

/// The port in front of both devices.
pub(super) const PORT: &str = "/sys/devices/pci0000:00/0000:00:03.0";
const RESOURCE: &str = "0x00000000fe800000 0x00000000fe803fff 0x0000000000140204\n\
                        0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                        0x000000000000c000 0x000000000000c01f 0x0000000000040101\n";

/// A machine with a disk at 0000:01:00.0 and a network card at 0000:02:00.0, each behind a port.
#[derive(Debug)]
pub struct Machine {
    tree: Tree,
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// The machine, in a temporary folder.
    ///
    /// # Panics
    /// If it cannot be written.
    #[must_use]
    pub fn new() -> Self {
        let machine = Self {
            tree: Tree::new(&[
                ("/proc/interrupts", " 24: 0 PCI-MSI 0-edge nvme\n"),
                ("/proc/self/mountinfo", ""),
                ("/proc/swaps", "Filename Type\n"),
                ("/sys/class/block/x", ""),
                ("/sys/class/net/x", ""),
            ]),
        };
        let mut mcfg = vec![0; 44];
        mcfg.extend(0xb000_0000_u64.to_le_bytes());
        mcfg.extend([0, 0, 0, 0xff, 0, 0, 0, 0]);
        machine.tree.add(&[("/sys/firmware/acpi/tables/MCFG", "")]);
        std::fs::write(machine.root().path("/sys/firmware/acpi/tables/MCFG"), mcfg).unwrap();
        machine.function(PORT, "0000:00:03.0", "0x060400");
        machine.function(&format!("{PORT}/0000:01:00.0"), "0000:01:00.0", "0x010802");
        machine.function(&format!("{PORT}/0000:02:00.0"), "0000:02:00.0", "0x020000");
        machine
    }

    /// Its tree.
    #[must_use]
    pub fn root(&self) -> Root {
        self.tree.root()
    }

    pub(super) fn add(&self, path: &str, text: &str) {
        self.tree.add(&[(path, text)]);
    }

    pub(super) fn link(&self, from: &str, to: &str) {
        let from = self.root().path(from);
        std::fs::create_dir_all(from.parent().unwrap()).unwrap();
        symlink(self.root().path(to), from).unwrap();
    }

    pub(super) fn function(&self, path: &str, address: &str, class: &str) {
        for (file, text) in [
            ("class", class),
            ("vendor", "0x1b36"),
            ("device", "0x0010"),
            ("reset", ""),
            ("resource", RESOURCE),
        ] {
            self.add(&format!("{path}/{file}"), text);
        }
        let mut config = vec![0; 256];
        (config[0x34], config[0x40]) = (0x40, 0x11);
        std::fs::write(self.root().path(&format!("{path}/config")), config).unwrap();
        self.link(&format!("/sys/bus/pci/devices/{address}"), path);
    }

    /// Binds the disk to the module's driver.
    ///
    /// # Panics
    /// If that cannot be written.
    pub fn take_disk(&self) {
        self.add("/sys/bus/pci/drivers/insula/bind", "");
        self.link(
            &format!("{PORT}/0000:01:00.0/driver"),
            "/sys/bus/pci/drivers/insula",
        );
    }
}
