//! A virtual machine on a network with the base.

use std::fs;
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

/// A KVM guest with one core, whose network card vhost-net serves, with the probe as a server on
/// the network.
pub struct NetworkGuest(#[expect(dead_code, reason = "it runs as long as this lives")] Running);

impl NetworkGuest {
    /// Starts a guest with a kernel of that version, its processor on that core, which should be
    /// otherwise idle.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(inside: &Inside, version: &str, core: usize) -> Result<Self, Finding> {
        inside.load_kvm()?;
        run_lines(&TAP_COMMANDS)?;
        let server = Initramfs::default().directory("bin")?;
        let server = server.program("bin/server", &fs::read(PROBE)?)?.finish()?;
        fs::write(INITRD, [fs::read(inside.initrd())?, server].concat())?;
        let (machine, _) = inside.driver.machine()?;
        let mut machine = Microvm {
            executor: Executor::Kvm,
            kernel: &inside.kernel(version)?,
            initrd: Path::new(INITRD),
            tsc_khz: machine.tsc_khz,
            append: &format!("{SHORTER_BOOT} do=server address={GUEST_ADDRESS}/24"),
            cores: 1,
            devices: &NETWORK,
            core: Some(core),
        }
        .start()?;
        machine.wait_for(SERVES)?;
        Ok(Self(machine))
    }
}

impl Drop for NetworkGuest {
    fn drop(&mut self) {
        // The guest is killed with it in any case.
        let _ = run_lines(&[TAP_REMOVAL]);
    }
}
