//! Files on one disk, of which the base, a Linux node, and the servers of a node take turns; and programs that use them.

use std::fs;
use std::process::Command;
use std::time::Duration;

use testbed::base::{Finding, Shape};
use testbed::host::machine::SpareDevices;

use super::placement::{ALL, ONE_CORE};
use super::servers::{MOUNT, Served, Servers, Way};
use crate::blocks::BLOCK;
use crate::inside::{
    Inside, LwkNode, PROBE, Place, Round, SPARE_DISK, measured, program, run, spare_disk,
};

/// The machine: the node has four cores at most.
pub(super) const MACHINE: Shape = Shape {
    cpus: 5,
    spare_devices: SpareDevices::Plain,
    ..Shape::USUAL
};
/// The core that the base keeps, and the one that a node's program is on while the base has the disk.
const BASE_CORE: usize = 0;
const NODE_CORE: usize = 1;
/// Where the base has mounted the disk.
const ON_BASE: &str = "/var/tmp/ant";
/// The Linux node, its kernel, and its image.
const LINUX: &str = "linux";
const KERNEL: &str = "6.12";
/// Has the Linux node mount the disk, at `$0`.
const MOUNT_IN_NODE: &str = "modprobe nvme && mkdir -p $0 && \
                             until [ -b /dev/nvme0n1 ]; do sleep 0.1; done && mount /dev/nvme0n1 $0";
/// The file that is read, with more blocks than the file server's small cache has, and as the paper's.
pub(super) const LARGE: &str = "large";
pub(super) const SMALL: &str = "small";
const SIZES: [(&str, usize); 2] = [(LARGE, 512), (SMALL, 32)];

/// Files by who has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Files {
    /// The base, and its ext4.
    Base,
    /// A Linux node, and its ext4.
    LinuxNode,
    /// The base's, for a program of the node of the lightweight kernel.
    Delegated,
    /// That node's servers.
    Served(Served),
    /// The same, with servers that choose their cores by their load.
    Auto,
}

/// Files that the servers have, by the number of the placement less one.
pub(super) const fn served(placement: usize, way: Way) -> Files {
    Files::Served(Served {
        placement: ALL[placement],
        way,
        shards: 0,
    })
}

/// Program and servers on a core, with blocks that the kernel reads by itself.
pub(super) const ONE: Files = served(ONE_CORE, Way::Shared);

/// The disk, and who has it.
pub(super) struct Site<'a> {
    inside: &'a Inside,
    /// None while it changes.
    owner: Option<Owner<'a>>,
}

enum Owner<'a> {
    /// The base, with a node beside it.
    Base(LwkNode<'a>),
    /// The Linux node.
    LinuxNode,
    /// The servers of a node.
    Servers(Servers<'a>),
}

impl<'a> Site<'a> {
    /// Makes the file system and its files.
    pub(super) fn new(inside: &'a Inside) -> Result<Self, Finding> {
        inside.build_image(KERNEL, KERNEL)?;
        let disk = spare_disk()?;
        run(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-b", "4096", &disk]))?;
        let mut site = Self {
            inside,
            owner: None,
        };
        site.begin(Files::Base)?;
        for (name, blocks) in SIZES {
            fs::write(format!("{ON_BASE}/{name}"), vec![7; blocks * BLOCK])?;
        }
        Ok(site)
    }

    /// Gives the disk to who has these files, unless it has it already.
    fn give(&mut self, files: Files) -> Result<(), Finding> {
        let has_it = matches!(
            (&self.owner, files),
            (Some(Owner::Base(_)), Files::Base | Files::Delegated)
                | (Some(Owner::LinuxNode), Files::LinuxNode)
                | (Some(Owner::Servers(_)), Files::Served(_) | Files::Auto)
        );
        if has_it {
            return Ok(());
        }
        self.take_back()?;
        self.begin(files)
    }

    /// Has the owner give it back to the base.
    fn take_back(&mut self) -> Result<(), Finding> {
        match self.owner.take() {
            None => Ok(()),
            Some(Owner::Base(node)) => {
                node.remove()?;
                run(Command::new("umount").arg(ON_BASE)).map(drop)
            }
            Some(Owner::LinuxNode) => {
                let command = &self.inside.command;
                command.run(&["exec", LINUX, "--", "umount", MOUNT])?;
                command.run(&["rm", "--force", LINUX]).map(drop)
            }
            Some(Owner::Servers(servers)) => servers.end(),
        }
    }

    fn begin(&mut self, files: Files) -> Result<(), Finding> {
        self.owner = Some(match files {
            Files::Base | Files::Delegated => {
                fs::create_dir_all(ON_BASE)?;
                run(Command::new("mount").args([&*spare_disk()?, ON_BASE]))?;
                Owner::Base(LwkNode::start(self.inside, NODE_CORE)?)
            }
            Files::LinuxNode => {
                self.start_linux_node()?;
                Owner::LinuxNode
            }
            Files::Served(_) | Files::Auto => Owner::Servers(Servers::start(self.inside)?),
        });
        Ok(())
    }

    fn start_linux_node(&self) -> Result<(), Finding> {
        let core = NODE_CORE.to_string();
        let size = ["--cpu-list", &core, "--memory", "512M"];
        let root = ["--rootfs", "/", "--overlay", "--name", LINUX];
        let device = ["--device", SPARE_DISK];
        let words = [&["run", "--image", KERNEL], &size[..], &root, &device].concat();
        self.inside.command.run(&words)?;
        let mount = ["exec", LINUX, "--", "sh", "-c", MOUNT_IN_NODE, MOUNT];
        self.inside.command.run(&mount).map(drop)
    }

    /// A program that is to use these files, with the servers where they are to be.
    fn command(&mut self, files: Files, words: &[&str]) -> Result<Command, Finding> {
        self.give(files)?;
        Ok(match (files, &mut self.owner) {
            (Files::Served(served), Some(Owner::Servers(servers))) => {
                servers.place(served)?;
                servers.program(served.placement.program, words)
            }
            (_, Some(Owner::Servers(servers))) => {
                servers.set_auto(true)?;
                servers.program(ALL[ONE_CORE].program, words)
            }
            (Files::LinuxNode, _) => {
                let mut command = self.inside.command.prepare();
                command.args(["exec", LINUX, "--"]).args(words);
                command
            }
            (Files::Delegated, _) => program(self.inside, Place::Lwk, words),
            _ => program(self.inside, Place::Base(BASE_CORE), words),
        })
    }

    /// Runs a shell script, whose words follow it; the first is the folder. Returns how long that took.
    pub(super) fn script(
        &mut self,
        files: Files,
        script: &str,
        words: &[&str],
    ) -> Result<Duration, Finding> {
        let words = [&["sh", "-c", script, folder(files)], words].concat();
        run(&mut self.command(files, &words)?)
    }

    /// Has the probe access a file; `words` surround its path.
    pub(super) fn probe(
        &mut self,
        files: Files,
        (before, file, after): (&[&str], &str, &[&str]),
    ) -> Result<Round, Finding> {
        let path = format!("{}/{file}", folder(files));
        self.alone(files, &[before, &[&path], after].concat())
    }

    /// Has the probe measure what concerns no file.
    pub(super) fn alone(&mut self, files: Files, words: &[&str]) -> Result<Round, Finding> {
        let command = self.command(files, &[&[PROBE], words].concat())?;
        measured(self.inside, command)
    }

    /// The base has its disk again.
    pub(super) fn end(mut self) -> Result<(), Finding> {
        self.take_back()
    }
}

/// Where a program finds the files.
const fn folder(files: Files) -> &'static str {
    match files {
        Files::Base | Files::Delegated => ON_BASE,
        Files::LinuxNode | Files::Served(_) | Files::Auto => MOUNT,
    }
}
