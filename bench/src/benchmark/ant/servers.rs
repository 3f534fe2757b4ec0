//! The servers, and programs that use them.

use std::fs;
use std::process::Command;
use std::time::Duration;

use testbed::base::Finding;

use crate::blocks::BLOCK;
use crate::inside::{Inside, LwkNode, NODE, PROBE, Place, Round, program, run};

/// Cores of the node: the base keeps one.
const CORES: &str = "1-3";
/// The core that the base keeps.
const BASE_CORE: usize = 0;
/// The disk of the block server: a file of the base.
const DISK: &str = "/var/tmp/ant.ext4";
/// Where programs find the file server, and where on the base the same files are.
const MOUNT: &str = "/mnt/ant";
const ON_BASE: &str = "/var/tmp/ant";
/// The file that is read, with more blocks than the file server's small cache has, and as the paper's.
pub(super) const LARGE: &str = "large";
pub(super) const SMALL: &str = "small";
const SIZES: [(&str, usize); 2] = [(LARGE, 512), (SMALL, 32)];
/// The file server's cache when it is to ask the block server, and when it needs not to.
const CACHES: [&str; 2] = ["256K", "16M"];

/// Who has which core of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    /// The core of the application, the file server and the block server.
    pub(super) cores: [&'static str; 3],
    /// Whether the file server has all blocks in its own cache.
    pub(super) has_cache: bool,
    /// Its shards, if it has some: they and it are put on its cores in turn.
    pub(super) shards: u32,
    /// Whether the kernel reads the blocks of that cache by itself.
    pub(super) shares: bool,
}

/// A place with its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Files {
    /// The base, and its ext4.
    Base,
    /// The node, by calls to the base.
    Delegated,
    /// The node, and its servers.
    Served(Placement),
    /// The same, with servers that choose their cores by their load.
    Auto,
}

/// Where a program finds the files.
const fn folder(files: Files) -> &'static str {
    match files {
        Files::Served(_) | Files::Auto => MOUNT,
        Files::Base | Files::Delegated => ON_BASE,
    }
}

const fn served(cores: [&'static str; 3], has_cache: bool) -> Files {
    Files::Served(Placement {
        cores,
        has_cache,
        shards: 0,
        shares: true,
    })
}

impl Files {
    /// The same place, but that each read is a message.
    pub(super) fn copied(self) -> Self {
        match self {
            Self::Served(placement) => Self::Served(Placement {
                shares: false,
                ..placement
            }),
            other => other,
        }
    }
}

/// A file server on a core of its own, and one with two shards on a core each, beside the names on the program's.
pub(super) const WHOLE: Files = served(["0", "1", "0"], true);
pub(super) const SHARDED: Files = Files::Served(Placement {
    cores: ["0", "0-2", "0"],
    has_cache: true,
    shards: 2,
    // Shards do not.
    shares: true,
});

/// Program and file server on a core, with blocks that the kernel reads by itself.
pub(super) const BY_KERNEL: Files = served(["0", "0", "2"], true);

/// All places, with the ends of their rows' ids, in the order in which they are measured.
pub(super) const ALL: [(&str, Files); 9] = [
    ("base", Files::Base),
    ("delegated", Files::Delegated),
    ("af", BY_KERNEL),
    ("a-f", served(["0", "1", "2"], true)),
    ("afb", served(["0", "0", "0"], false)),
    ("af-b", served(["0", "0", "1"], false)),
    ("a-fb", served(["0", "1", "1"], false)),
    ("ab-f", served(["0", "1", "0"], false)),
    ("a-f-b", served(["0", "1", "2"], false)),
];

/// What the file server is started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileServer {
    cache: &'static str,
    shards: u32,
    shares: bool,
}

impl FileServer {
    /// With all blocks in its cache.
    const USUAL: Self = Self {
        cache: CACHES[1],
        shards: 0,
        shares: true,
    };
}

/// Measures each of these places, by its number among [`ALL`], as often as is asked for. `measure` is told the end of its
/// rows' ids.
pub(super) fn measure_each(
    inside: &Inside,
    places: &[usize],
    mut measure: impl FnMut(&mut Servers<'_>, &str, Files) -> Result<(), Finding>,
) -> Result<(), Finding> {
    let mut servers = Servers::start(inside)?;
    for _ in 0..inside.count {
        for place in places {
            let (row, files) = ALL[*place];
            measure(&mut servers, row, files)?;
        }
    }
    servers.end()
}

/// A node with its servers.
pub(super) struct Servers<'a> {
    inside: &'a Inside,
    pub(super) node: LwkNode<'a>,
    started: Option<FileServer>,
    /// Whether both servers choose their cores.
    is_auto: bool,
}

impl<'a> Servers<'a> {
    /// Starts a node with a block server, and writes the files.
    pub(super) fn start(inside: &'a Inside) -> Result<Self, Finding> {
        let node = LwkNode::start_on(inside, CORES)?;
        run(Command::new("mke2fs").args(["-q", "-t", "ext4", "-b", "4096", DISK, "64M"]))?;
        fs::create_dir_all(ON_BASE)?;
        let mut servers = Self {
            inside,
            node,
            started: None,
            is_auto: false,
        };
        servers.start_blocks()?;
        servers.start_files(FileServer::USUAL)?;
        for (name, blocks) in SIZES {
            let size = (blocks * BLOCK).to_string();
            fs::write(format!("{ON_BASE}/{name}"), vec![7; blocks * BLOCK])?;
            let copy =
                format!("head -c {size} {ON_BASE}/{name} > {MOUNT}/{name} && sync {MOUNT}/{name}");
            run(&mut servers.there("0", &["sh", "-c", &copy]))?;
        }
        Ok(servers)
    }

    /// Starts a server, which chooses its core if both do.
    fn start_server(&self, name: &str, words: &[&str]) -> Result<(), Finding> {
        let place: &[&str] = match self.is_auto {
            true => &["--cpus", "0-2", "--place", "auto"],
            false => &[],
        };
        let start = [&["servers", "start", NODE, name], place, &["--"], words].concat();
        self.inside.command.run(&start).map(drop)
    }

    fn start_blocks(&self) -> Result<(), Finding> {
        const PROGRAM: &str = "/payload/bin/insula-blocks";
        self.start_server("block", &[PROGRAM, "--device", DISK, "--cache", "32M"])
    }

    /// Starts the file server, in place of another one.
    fn start_files(&mut self, server: FileServer) -> Result<(), Finding> {
        const PROGRAM: &str = "/payload/bin/insula-files";
        if self.started == Some(server) {
            return Ok(());
        }
        if self.started.is_some() {
            self.stop("file")?;
        }
        let shards = server.shards.to_string();
        let device = ["--device", "server:block", "--cache", server.cache];
        let share: &[&str] = if server.shares { &[] } else { &["--no-share"] };
        let words = [
            &[PROGRAM, "ext4"],
            &device[..],
            &["--shards", &shards],
            share,
        ]
        .concat();
        self.start_server("file", &words)?;
        self.started = Some(server);
        Ok(())
    }

    fn stop(&self, name: &str) -> Result<(), Finding> {
        let words = ["servers", "stop", NODE, name];
        self.inside.command.run(&words).map(drop)
    }

    /// Has both servers choose their cores, or not: they are started anew.
    fn set_auto(&mut self, is_auto: bool) -> Result<(), Finding> {
        if self.is_auto == is_auto {
            return Ok(());
        }
        self.stop("file")?;
        self.stop("block")?;
        self.is_auto = is_auto;
        self.started = None;
        self.start_blocks()?;
        self.start_files(FileServer::USUAL)
    }

    /// Puts the servers where they are to be.
    fn place(&mut self, placement: Placement) -> Result<(), Finding> {
        self.set_auto(false)?;
        self.start_files(FileServer {
            cache: CACHES[usize::from(placement.has_cache)],
            shards: placement.shards,
            shares: placement.shares,
        })?;
        let [_, file, block] = placement.cores;
        for (name, core) in [("file", file), ("block", block)] {
            self.inside
                .command
                .run(&["servers", "move", NODE, name, core])?;
        }
        Ok(())
    }

    /// Runs a shell script in its place, whose words follow it; the first is the folder. Returns how long that took.
    pub(super) fn script(
        &mut self,
        files: Files,
        script: &str,
        words: &[&str],
    ) -> Result<Duration, Finding> {
        let words = [&["sh", "-c", script, folder(files)], words].concat();
        run(&mut self.command(files, &words)?)
    }

    /// A program in its place, with the servers where they are to be.
    fn command(&mut self, files: Files, words: &[&str]) -> Result<Command, Finding> {
        Ok(match files {
            Files::Base => program(self.inside, Place::Base(BASE_CORE), words),
            Files::Delegated => program(self.inside, Place::Lwk, words),
            Files::Served(placement) => {
                self.place(placement)?;
                self.there(placement.cores[0], words)
            }
            Files::Auto => {
                self.set_auto(true)?;
                self.there("0", words)
            }
        })
    }

    /// A program on a core of the node with the servers' files.
    fn there(&self, core: &str, words: &[&str]) -> Command {
        let mut command = self.inside.command.prepare();
        let mount = format!("{MOUNT}=file");
        command.args(["exec", "--mount", &mount, NODE, "--", "taskset", "-c", core]);
        command.args(words);
        command
    }

    /// Has the probe access a file; `words` surround its path.
    pub(super) fn probe(
        &mut self,
        files: Files,
        (before, file, after): (&[&str], &str, &[&str]),
    ) -> Result<Round, Finding> {
        let path = format!("{}/{file}", folder(files));
        let words = [&[PROBE][..], before, &[&path], after].concat();
        let command = self.command(files, &words)?;
        self.node.measured(command)
    }

    /// Has the probe measure what concerns no file.
    pub(super) fn alone(&mut self, files: Files, words: &[&str]) -> Result<Round, Finding> {
        let command = self.command(files, &[&[PROBE], words].concat())?;
        self.node.measured(command)
    }

    /// Ends all.
    pub(super) fn end(self) -> Result<(), Finding> {
        self.stop("file")?;
        self.stop("block")?;
        self.node.remove()?;
        fs::remove_file(DISK)?;
        Ok(fs::remove_dir_all(ON_BASE)?)
    }
}
