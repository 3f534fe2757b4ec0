//! A virtual machine on a network with the base.

use std::fs;
use std::io;
use std::path::Path;

use insula_image::Initramfs;
use testbed::base::Finding;

use super::agent_node::run_lines;
use super::{Inside, PROBE};
use crate::microvm::{Executor, Microvm, Running, SHORTER_BOOT};

/// Its address.
pub const GUEST_ADDRESS: &str = "10.77.0.2";
/// Its packets leave the base's kernel by a tap device, as those of a node's card do.
const TAP_COMMANDS: [&str; 4] = [
    "modprobe -a tun vhost_net",
    "ip tuntap add tap0 mode tap",
    "ip address add 10.77.0.1/24 dev tap0",
    "ip link set tap0 up",
];
const TAP_REMOVAL: &str = "ip link delete tap0";
const NETWORK: [&str; 4] = [
    "-netdev",
    "tap,id=network,ifname=tap0,script=no,downscript=no,vhost=on",
    "-device",
    "virtio-net-device,netdev=network",
];
/// Initial file system of the test nodes, and the server after it.
const INITRD: &str = "/run/network-guest.cpio";
/// Line of its init before it serves.
const SERVES: &str = "serves at";

/// Its state, when that is saved.
const STATE: &str = "/run/network-guest.state";

/// A KVM guest with one core, whose network card vhost-net serves, with the probe as a server on
/// the network.
pub struct NetworkGuest<'a> {
    inside: &'a Inside,
    version: &'a str,
    core: usize,
    running: Option<Running>,
}

impl<'a> NetworkGuest<'a> {
    /// Starts a guest with a kernel of that version, its processor on that core, which should be
    /// otherwise idle.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(inside: &'a Inside, version: &'a str, core: usize) -> Result<Self, Finding> {
        let mut guest = Self::new(inside, version, core)?;
        guest.run(|machine| machine.start())?.wait_for(SERVES)?;
        Ok(guest)
    }

    /// The same, but the guest's state is saved once it serves, and the guest ended.
    ///
    /// # Errors
    /// When it does not start, or its state cannot be saved.
    pub fn saved(inside: &'a Inside, version: &'a str, core: usize) -> Result<Self, Finding> {
        let guest = Self::new(inside, version, core)?;
        let started = guest.with_machine(|machine| machine.start_with_monitor())?;
        let (mut running, mut monitor) = started;
        running.wait_for(SERVES)?;
        monitor.save(Path::new(STATE))?;
        Ok(guest)
    }

    /// Starts the guest from its saved state.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub fn restore(&mut self) -> Result<(), Finding> {
        // One at a time has the card.
        self.running = None;
        self.run(|machine| machine.restore(Path::new(STATE)))
            .map(drop)
    }

    fn new(inside: &'a Inside, version: &'a str, core: usize) -> Result<Self, Finding> {
        inside.load_kvm()?;
        run_lines(&TAP_COMMANDS)?;
        let guest = Self {
            inside,
            version,
            core,
            running: None,
        };
        let server = Initramfs::default().directory("bin")?;
        let server = server.program("bin/server", &fs::read(PROBE)?)?.finish()?;
        fs::write(INITRD, [fs::read(inside.initrd())?, server].concat())?;
        Ok(guest)
    }

    fn run(
        &mut self,
        start: impl FnOnce(&Microvm<'_>) -> io::Result<Running>,
    ) -> Result<&mut Running, Finding> {
        let running = self.with_machine(start)?;
        Ok(self.running.insert(running))
    }

    fn with_machine<T>(
        &self,
        start: impl FnOnce(&Microvm<'_>) -> io::Result<T>,
    ) -> Result<T, Finding> {
        let (machine, _) = self.inside.driver.machine()?;
        let microvm = Microvm {
            executor: Executor::Kvm,
            kernel: &self.inside.kernel(self.version)?,
            initrd: Path::new(INITRD),
            tsc_khz: machine.tsc_khz,
            append: &format!("{SHORTER_BOOT} do=server address={GUEST_ADDRESS}/24"),
            cores: 1,
            devices: &NETWORK,
            core: Some(self.core),
        };
        Ok(start(&microvm)?)
    }
}

impl Drop for NetworkGuest<'_> {
    fn drop(&mut self) {
        self.running = None;
        // The guest is killed with it in any case.
        let _ = run_lines(&[TAP_REMOVAL]);
    }
}
