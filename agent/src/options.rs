//! The agent's options on its node's kernel command line.
//!
//! | option | meaning |
//! |---|---|
//! | `insula_agent.run=WORDS` | the node's main program: when it exits, the node powers off |
//! | `insula_agent.env=VARIABLES`, `insula_agent.workdir=FOLDER` | its environment variables, as `NAME=VALUE`, and its working directory |
//! | `insula_agent.interactive=yes`, `insula_agent.terminal=yes` | that program has a standard input, for commands that are attached to it, and a terminal |
//! | `insula_agent.attached=yes` | it starts when a command is attached to it, or after half a minute |
//! | `insula_agent.root=KIND` | the root: `files` is the virtiofs file system `root`; `memory` an EROFS image in memory that other nodes share; `disk` an ext4 file system on the first disk; with `overlay`, `memory` and `disk-overlay` changes stay in the node's memory |
//! | `insula_agent.volumes=MOUNT-POINTS` | of the virtiofs file systems `volume0`, `volume1` and so on; one that ends in `:ro` is only read |
//! | `insula_agent.network=yes` | the node has a network card, which is awaited before its program starts |
//! | `insula_agent.nameservers=ADDRESSES`, `insula_agent.search=DOMAINS` | how its programs resolve names, unless its root is a folder or a disk of its own |
//! | `insula_agent.clock=UNIX_NS,TSC,TSC_KHZ` | the base's wall clock at a reading of the time stamp counter, which base and node share, and its rate: a node has no clock of its own |
//!
//! The prefix with a dot keeps the kernel from passing an option to init as an argument or
//! variable. Words are joined by commas; other special characters are written as `%` and two
//! hexadecimal digits.

use std::fmt;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// Prefix of each option.
const PREFIX: &str = "insula_agent.";
const RUN: &str = "run";
const ENVIRONMENT: &str = "env";
const DIRECTORY: &str = "workdir";
const INTERACTIVE: &str = "interactive";
const TERMINAL: &str = "terminal";
const ATTACHED: &str = "attached";
const ROOT: &str = "root";
const CLOCK: &str = "clock";
const NETWORK: &str = "network";
const NAMESERVERS: &str = "nameservers";
const SEARCH: &str = "search";
const VOLUMES: &str = "volumes";
/// End of the mount point of a volume that is only read.
const READ_ONLY: &[u8] = b":ro";
const YES: &str = "yes";

/// Tag of the file system that is a node's root.
pub const ROOT_TAG: &str = "root";

/// Tag of the file system that is a node's volume of that number, from 0 on.
#[must_use]
pub fn volume_tag(number: usize) -> String {
    format!("volume{number}")
}

/// A folder of the base beside the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// A path without a colon.
    pub mount_point: Vec<u8>,
    /// Whether it is only read.
    pub read_only: bool,
}

impl Volume {
    fn parse(word: &str) -> Self {
        let word = decode(word);
        let read_only = word.strip_suffix(READ_ONLY);
        Self {
            read_only: read_only.is_some(),
            mount_point: read_only.unwrap_or(&word).to_owned(),
        }
    }

    fn word(&self) -> String {
        let end = if self.read_only { READ_ONLY } else { b"" };
        encode(&[&self.mount_point, end].concat())
    }
}

/// Options of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The node's main program and its arguments; empty for none.
    pub run: Vec<Vec<u8>>,
    /// Its environment variables, as `NAME=VALUE`.
    pub environment: Vec<Vec<u8>>,
    /// Its working directory, `/` by default.
    pub directory: Option<Vec<u8>>,
    /// Whether it has a standard input.
    pub interactive: bool,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// Whether it waits for a command to be attached before it starts.
    pub attached: bool,
    /// The root, if it is not the initial file system.
    pub root: Option<Root>,
    /// Folders of the base beside the root, in the order of their tags.
    pub volumes: Vec<Volume>,
    /// Whether the node has a network card.
    pub network: bool,
    /// How its programs resolve names.
    pub resolver: Resolver,
    /// The time.
    pub clock: Option<Clock>,
}

/// How names are resolved (resolv.conf(5)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolver {
    /// Name servers, in the order in which they are asked.
    pub nameservers: Vec<Ipv4Addr>,
    /// Domains of which a name without a dot may be.
    pub search: Vec<String>,
}

impl Resolver {
    /// As options of a command line.
    fn words(&self) -> [Option<String>; 2] {
        let servers = self.nameservers.iter().map(Ipv4Addr::to_string);
        let search = self.search.iter().map(|domain| encode(domain.as_bytes()));
        [list(NAMESERVERS, servers), list(SEARCH, search)]
    }
}

impl fmt::Display for Resolver {
    /// As in a file `resolv.conf`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for server in &self.nameservers {
            writeln!(f, "nameserver {server}")?;
        }
        match self.search.is_empty() {
            true => Ok(()),
            false => writeln!(f, "search {}", self.search.join(" ")),
        }
    }
}

/// The base's wall clock at one value of the time stamp counter, which all kernels of a machine
/// share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// Nanoseconds since 1970.
    pub unix_ns: u64,
    /// Value of the counter.
    pub tsc: u64,
    /// Frequency of the counter.
    pub tsc_khz: u64,
}

impl Clock {
    /// The time at the counter value `tsc`, in nanoseconds since 1970. `None` on overflow or a
    /// frequency of 0.
    #[must_use]
    pub fn unix_ns_at(self, tsc: u64) -> Option<u64> {
        let ticks = u128::from(tsc.checked_sub(self.tsc)?);
        let passed = (ticks * 1_000_000).checked_div(u128::from(self.tsc_khz))?;
        self.unix_ns.checked_add(u64::try_from(passed).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(',').map(str::parse);
        let mut next = || numbers.next()?.ok();
        let clock = Self {
            unix_ns: next()?,
            tsc: next()?,
            tsc_khz: next()?,
        };
        numbers.next().is_none().then_some(clock)
    }
}

/// A node's root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// A folder of the base.
    Files,
    /// The same below an overlay in the node's memory.
    Overlay,
    /// An image in persistent memory below an overlay.
    Memory,
    /// The file system on the first disk.
    Disk,
    /// The same below an overlay in the node's memory.
    DiskOverlay,
}

impl Root {
    const ALL: [(Self, &str); 5] = [
        (Self::Files, "files"),
        (Self::Overlay, "overlay"),
        (Self::Memory, "memory"),
        (Self::Disk, "disk"),
        (Self::DiskOverlay, "disk-overlay"),
    ];

    fn parse(text: &str) -> Option<Self> {
        let found = Self::ALL.into_iter().find(|(_, name)| *name == text);
        found.map(|(root, _)| root)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Files => Self::ALL[0].1,
            Self::Overlay => Self::ALL[1].1,
            Self::Memory => Self::ALL[2].1,
            Self::Disk => Self::ALL[3].1,
            Self::DiskOverlay => Self::ALL[4].1,
        }
    }
}

impl Options {
    /// Parses a command line. The last of repeated options counts; unknown ones are ignored.
    #[must_use]
    pub fn parse(command_line: &str) -> Self {
        let mut options = Self::default();
        for word in command_line.split_ascii_whitespace() {
            let option = word.strip_prefix(PREFIX);
            match option.and_then(|option| option.split_once('=')) {
                Some((RUN, value)) => options.run = words(value),
                Some((ENVIRONMENT, value)) => options.environment = words(value),
                Some((DIRECTORY, value)) => options.directory = Some(decode(value)),
                Some((INTERACTIVE, value)) => options.interactive = value == YES,
                Some((TERMINAL, value)) => options.terminal = value == YES,
                Some((ATTACHED, value)) => options.attached = value == YES,
                Some((ROOT, value)) => options.root = Root::parse(value),
                Some((VOLUMES, value)) => {
                    options.volumes = value.split(',').map(Volume::parse).collect();
                }
                Some((NETWORK, value)) => options.network = value == YES,
                Some((NAMESERVERS, value)) => {
                    let servers = value.split(',').filter_map(|word| word.parse().ok());
                    options.resolver.nameservers = servers.collect();
                }
                Some((SEARCH, value)) => {
                    let domain = |word: Vec<u8>| String::from_utf8(word).ok();
                    options.resolver.search = words(value).into_iter().filter_map(domain).collect();
                }
                Some((CLOCK, value)) => options.clock = Clock::parse(value),
                _ => {}
            }
        }
        options
    }

    /// Number of virtiofs file systems: the root, if it is one, and the volumes.
    #[must_use]
    pub fn folders(&self) -> usize {
        let has_root = matches!(self.root, Some(Root::Files | Root::Overlay));
        usize::from(has_root) + self.volumes.len()
    }

    /// The options as words of a command line.
    #[must_use]
    pub fn command_line(&self) -> String {
        let run = list(RUN, self.run.iter().map(|word| encode(word)));
        let environment = list(
            ENVIRONMENT,
            self.environment.iter().map(|word| encode(word)),
        );
        let directory = list(DIRECTORY, self.directory.iter().map(|word| encode(word)));
        let root = self
            .root
            .map(|root| format!("{PREFIX}{ROOT}={}", root.name()));
        let volumes = list(VOLUMES, self.volumes.iter().map(Volume::word));
        let yes = |is: bool, name| is.then(|| format!("{PREFIX}{name}={YES}"));
        let interactive = yes(self.interactive, INTERACTIVE);
        let terminal = yes(self.terminal, TERMINAL);
        let attached = yes(self.attached, ATTACHED);
        let network = yes(self.network, NETWORK);
        let clock = self.clock.map(|clock| {
            let Clock {
                unix_ns,
                tsc,
                tsc_khz,
            } = clock;
            format!("{PREFIX}{CLOCK}={unix_ns},{tsc},{tsc_khz}")
        });
        let [nameservers, search] = self.resolver.words();
        [
            run,
            environment,
            directory,
            interactive,
            terminal,
            attached,
            root,
            volumes,
            network,
            nameservers,
            search,
            clock,
        ]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ")
    }
}

/// An option with several words; none if there are none.
fn list(option: &str, words: impl Iterator<Item = String>) -> Option<String> {
    let words: Vec<_> = words.collect();
    (!words.is_empty()).then(|| format!("{PREFIX}{option}={}", words.join(",")))
}

/// The words of an option.
fn words(value: &str) -> Vec<Vec<u8>> {
    value.split(',').map(decode).collect()
}

fn encode(word: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/.-_+=:@".contains(&byte);
    let encode = |&byte: &u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02x}"),
    };
    word.iter().map(encode).collect()
}

/// An invalid escape stands for itself.
fn decode(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, more @ ..] = rest {
        let code = more.first_chunk::<2>().filter(|_| *first == b'%');
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => (bytes.push(byte), rest = &more[2..]),
            None => (bytes.push(*first), rest = more),
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn options_are_found_among_others() {
        let line = "quiet insula_agent.run=/bin/echo,a%20b,%,%2,%zz insula_agent.x=y panic=1";
        let run = ["/bin/echo", "a b", "%", "%2", "%zz"].map(|word| word.as_bytes().to_vec());
        assert_eq!(Options::parse(line).run, run);
        assert_eq!(Options::parse("quiet"), Options::default());
        assert_eq!(Options::default().command_line(), "");
    }

    #[test]
    fn time_advances_with_the_counter() {
        let clock = Clock {
            unix_ns: 1_000,
            tsc: 500,
            tsc_khz: 2_000_000,
        };
        assert_eq!(clock.unix_ns_at(500), Some(1_000));
        // Two ticks a nanosecond, for a century.
        let century_ns = 100 * 365 * 86_400 * 1_000_000_000;
        assert_eq!(
            clock.unix_ns_at(500 + 2 * century_ns),
            Some(1_000 + century_ns)
        );
        assert_eq!(clock.unix_ns_at(499), None);
        assert_eq!(
            Clock {
                tsc_khz: 0,
                ..clock
            }
            .unix_ns_at(501),
            None
        );
        for text in ["", "1,2", "1,2,3,4", "1,x,3"] {
            let line = format!("insula_agent.clock={text}");
            assert_eq!(Options::parse(&line).clock, None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_words_read_back(
            [network, interactive, terminal, attached] in any::<[bool; 4]>(),
            volumes in proptest::collection::vec(("[^:]{1,9}", any::<bool>()), 0..4),
            clock in any::<Option<[u64; 3]>>(),
            nameservers in proptest::collection::vec(any::<Ipv4Addr>(), 0..3),
            search in proptest::collection::vec(".{1,9}", 0..3),
            root in proptest::option::of(proptest::sample::select(Root::ALL.map(|(root, _)| root).to_vec())),
            run in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..9), 1..6),
        ) {
            let clock = clock.map(|[unix_ns, tsc, tsc_khz]| Clock { unix_ns, tsc, tsc_khz });
            let [environment, directory] = [&run, &run].map(Clone::clone);
            let directory = directory.into_iter().next();
            let volumes = volumes.into_iter().map(|(path, read_only)| Volume { mount_point: path.into(), read_only });
            let options = Options { run, environment, directory, interactive, terminal, attached, root, volumes: volumes.collect(), network, clock, resolver: Resolver { nameservers, search } };
            let line = options.command_line();
            prop_assert!(line.chars().all(|one| one == ' ' || one.is_ascii_graphic() && one != '"'));
            prop_assert_eq!(Options::parse(&line), options);
        }
    }
}
