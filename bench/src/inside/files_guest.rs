//! A virtual machine with a folder of the base's, by the daemon that serves nodes theirs.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use insula_image::{Initramfs, modules_with_dependencies};
use testbed::base::Finding;

use super::{Inside, PROBE};
use crate::microvm::{Executor, Microvm, Running, SHORTER_BOOT};

/// Debian's virtiofsd, and where QEMU finds it.
const VIRTIOFSD: &str = "/payload/bin/virtiofsd";
const SOCKET: &str = "/run/files-guest.socket";
/// The daemon maps the guest's memory, and takes no devices of before the specification, as QEMU's are here by default.
const DEVICES: [&str; 10] = [
    "-global",
    "virtio-mmio.force-legacy=false",
    "-object",
    "memory-backend-memfd,id=memory,size=256M,share=on",
    "-machine",
    "memory-backend=memory",
    "-chardev",
    "socket,id=files,path=/run/files-guest.socket",
    "-device",
    "vhost-user-fs-device,chardev=files,tag=files",
];
/// Initial file system of the test nodes, and what reads the file after it.
const INITRD: &str = "/run/files-guest.cpio";
/// Begins what its init says of each round.
const ROUND: &str = "insula-node: read ";

/// A KVM guest with one core that reads the file `data` of a folder again and again.
pub struct FilesGuest {
    running: Running,
    daemon: Child,
}

impl FilesGuest {
    /// Starts a guest with a kernel of that version, its processor on that core, which should be
    /// otherwise idle.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(
        inside: &Inside,
        version: &str,
        core: usize,
        folder: &Path,
    ) -> Result<Self, Finding> {
        inside.load_kvm()?;
        fs::write(
            INITRD,
            [fs::read(inside.initrd())?, added(inside, version)?].concat(),
        )?;
        let listener = OwnedFd::from(UnixListener::bind(SOCKET)?);
        let daemon = Command::new(VIRTIOFSD)
            .args(["--fd=0", "-o", &format!("source={}", folder.display())])
            .args(["-o", "cache=auto"])
            .stdin(Stdio::from(listener))
            .spawn()?;
        let (machine, _) = inside.driver.machine()?;
        let microvm = Microvm {
            executor: Executor::Kvm,
            kernel: &inside.kernel(version)?,
            initrd: Path::new(INITRD),
            tsc_khz: machine.tsc_khz,
            append: &format!("{SHORTER_BOOT} do=files"),
            cores: 1,
            devices: &DEVICES,
            core: Some(core),
        };
        Ok(Self {
            running: microvm.start()?,
            daemon,
        })
    }

    /// The next round of reads: the durations without anything cached, and when the file is opened again, in ticks.
    ///
    /// # Errors
    /// When the guest ends, or says something else.
    pub fn next_round(&mut self) -> Result<[f64; 2], Finding> {
        let (_, line) = self.running.next_with(ROUND)?;
        let said = line.split_once(ROUND).map_or("", |(_, said)| said);
        let words: Vec<_> = said.split_whitespace().collect();
        match words[..] {
            [first, _, "again", again, _] => Ok([first.parse()?, again.parse()?]),
            _ => Err(Finding::new(format!("the guest says `{line}`"))),
        }
    }
}

/// The program, and the modules of virtiofs.
fn added(inside: &Inside, version: &str) -> Result<Vec<u8>, Finding> {
    let release = inside.machine.release(version)?;
    let folder = format!("lib/modules/{release}");
    let mut archive = Initramfs::default();
    let mut list = String::new();
    for module in modules_with_dependencies(&Path::new("/").join(&folder), &["virtiofs"])? {
        archive = archive.file(&format!("{folder}/{}", module.file), &module.content)?;
        list.push_str(&format!("{}\n", module.file));
    }
    let archive = archive.file(&format!("{folder}/files"), list.as_bytes())?;
    Ok(archive.program("bin/reader", &fs::read(PROBE)?)?.finish()?)
}

impl Drop for FilesGuest {
    fn drop(&mut self) {
        // It ends by itself when the guest does, unless that has never connected.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = fs::remove_file(SOCKET);
    }
}
