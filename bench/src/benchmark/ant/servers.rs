//! A node with a file server, a block server and a disk driver.

use std::process::Command;

use testbed::base::Finding;

use super::placement::{ALL, ONE_CORE, Placement};
use crate::inside::{Inside, LwkNode, NODE, SPARE_DISK};

/// Cores of the node: the base keeps one.
const CORES: &str = "1-4";
/// The same, by the node's own numbers.
const OWN_CORES: &str = "0-3";
/// Where programs find the files.
pub(super) const MOUNT: &str = "/mnt/ant";
/// Names of the servers.
const FILE: &str = "file";
const BLOCK: &str = "block";
const DISK: &str = "disk";

/// How a block comes to the program that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The kernel reads it by itself, from the cache that the file server shares with it.
    Shared,
    /// By a message to the file server, which copies from its cache.
    Copied,
    /// The same, but its cache is too small for a large file: it asks the block server, which has the block in its own.
    FromBlocks,
}

/// Files of the servers: where these are, and how a block comes from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Served {
    /// Who has which core.
    pub(super) placement: Placement,
    /// How a block comes.
    pub(super) way: Way,
    /// Shards of the file server, if it has some: they and it are put on its cores in turn.
    pub(super) shards: u32,
}

/// A node with its servers.
pub(super) struct Servers<'a> {
    inside: &'a Inside,
    node: LwkNode<'a>,
    /// How the file server was started.
    way: Way,
    shards: u32,
    /// Whether all choose their cores.
    is_auto: bool,
}

impl<'a> Servers<'a> {
    /// Starts a node that has the spare disk, and its servers, all on one core.
    pub(super) fn start(inside: &'a Inside) -> Result<Self, Finding> {
        let node = LwkNode::start_with(inside, CORES, &["--device", SPARE_DISK])?;
        let servers = Self {
            inside,
            node,
            way: Way::Shared,
            shards: 0,
            is_auto: false,
        };
        servers.start_all()?;
        servers.put(ALL[ONE_CORE])?;
        Ok(servers)
    }

    fn start_all(&self) -> Result<(), Finding> {
        const PROGRAM: &str = "/payload/bin/insula-blocks";
        let device = format!("nvme:{SPARE_DISK}");
        self.start_server(DISK, &[PROGRAM, "--name", DISK, "--device", &device])?;
        let cache = ["--device", "server:disk", "--cache", "32M"];
        self.start_server(BLOCK, &[&[PROGRAM, "--name", BLOCK], &cache[..]].concat())?;
        self.start_files()
    }

    fn start_files(&self) -> Result<(), Finding> {
        const PROGRAM: &str = "/payload/bin/insula-files";
        let cache = match self.way {
            Way::Shared | Way::Copied => "16M",
            Way::FromBlocks => "256K",
        };
        let shards = self.shards.to_string();
        let device = ["--device", "server:block", "--cache", cache];
        let shards = ["--shards", &shards];
        let share: &[&str] = match self.way {
            Way::Shared => &[],
            Way::Copied | Way::FromBlocks => &["--no-share"],
        };
        self.start_server(
            FILE,
            &[&[PROGRAM, "ext4"], &device[..], &shards, share].concat(),
        )
    }

    /// Starts a server, which chooses its core if all do.
    fn start_server(&self, name: &str, words: &[&str]) -> Result<(), Finding> {
        let place: &[&str] = match self.is_auto {
            true => &["--cpus", OWN_CORES, "--place", "auto"],
            false => &[],
        };
        let start = [&["servers", "start", NODE, name], place, &["--"], words].concat();
        self.inside.command.run(&start).map(drop)
    }

    fn stop(&self, name: &str) -> Result<(), Finding> {
        let words = ["servers", "stop", NODE, name];
        self.inside.command.run(&words).map(drop)
    }

    fn stop_all(&self) -> Result<(), Finding> {
        [FILE, BLOCK, DISK]
            .into_iter()
            .try_for_each(|name| self.stop(name))
    }

    /// Has all choose their cores, or none: they are started anew, so that blocks are shared.
    pub(super) fn set_auto(&mut self, is_auto: bool) -> Result<(), Finding> {
        if self.is_auto == is_auto {
            return Ok(());
        }
        self.stop_all()?;
        (self.is_auto, self.way, self.shards) = (is_auto, Way::Shared, 0);
        self.start_all()
    }

    /// Puts all where they are to be, and has blocks come as they are to.
    pub(super) fn place(&mut self, served: Served) -> Result<(), Finding> {
        self.set_auto(false)?;
        if (self.way, self.shards) != (served.way, served.shards) {
            self.stop(FILE)?;
            (self.way, self.shards) = (served.way, served.shards);
            self.start_files()?;
        }
        self.put(served.placement)
    }

    fn put(&self, placement: Placement) -> Result<(), Finding> {
        let Placement {
            file, block, disk, ..
        } = placement;
        for (name, cores) in [(FILE, file), (BLOCK, block), (DISK, disk)] {
            let words = ["servers", "move", NODE, name, cores];
            self.inside.command.run(&words)?;
        }
        Ok(())
    }

    /// A program on a core of the node that has the servers' files.
    pub(super) fn program(&self, core: &str, words: &[&str]) -> Command {
        let mut command = self.inside.command.prepare();
        let mount = format!("{MOUNT}={FILE}");
        command.args(["exec", "--mount", &mount, NODE, "--", "taskset", "-c", core]);
        command.args(words);
        command
    }

    /// Ends all; the base has its disk again.
    pub(super) fn end(self) -> Result<(), Finding> {
        self.stop_all()?;
        self.node.remove()
    }
}
