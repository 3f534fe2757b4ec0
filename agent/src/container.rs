//! Containers of a node: trees of processes in namespaces of their own, and requests about them.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::pod::Share;
use crate::processor::Processor;
use crate::{Exec, ExitStatus};

/// First bytes of the MAC address of a container's card, locally administered and not a node's.
const MARK: [u8; 2] = [0x0a, 0x43];
/// Folder of CRIU in a node whose image has it, with the libraries that it needs.
pub const CRIU_FOLDER: &str = "/run/insula/criu";
/// Folder of a container's images among its files, when those come from a node or go to one.
pub const IMAGES: &str = "images";
/// Length of a container's name in bytes.
pub const NAME_MAX: usize = 63;

/// The MAC address of the card of the container with this address.
#[must_use]
pub fn card(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [MARK[0], MARK[1], a, b, c, d]
}

/// The address of the container whose card has this MAC address; `None` for other cards.
#[must_use]
pub fn address(card: [u8; 6]) -> Option<Ipv4Addr> {
    let [first, second, a, b, c, d] = card;
    ([first, second] == MARK).then(|| Ipv4Addr::new(a, b, c, d))
}

/// Whether a text can be a container's name: `[a-zA-Z0-9][a-zA-Z0-9_.-]*`, as a node's.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let first = text.bytes().next();
    text.len() <= NAME_MAX
        && first.is_some_and(|byte| byte.is_ascii_alphanumeric())
        && text.bytes().all(allowed)
}

/// A container to start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// Its name, also its host name.
    pub name: String,
    /// Its address in the network of nodes and base; without one it has a loopback interface only.
    pub address: Option<Ipv4Addr>,
    /// Its program. It has neither standard input nor a terminal.
    pub exec: Exec,
}

/// A request about containers. [`ContainerAnswer`] follows, unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerRequest {
    /// Start one.
    Start(ContainerSpec),
    /// List all.
    List,
    /// Stop one: SIGTERM to its program, and SIGKILL to all of it after this many seconds.
    Stop {
        /// Its name.
        name: String,
        /// The seconds.
        grace_s: u32,
    },
    /// Remove one that has ended, and its log.
    Remove(String),
    /// Send its log as [`Output`](crate::Output): up to now, or up to its end, with its status.
    Log {
        /// Its name.
        name: String,
        /// Whether to go on until it has ended.
        follow: bool,
    },
    /// Say what this node lacks for moves.
    Lacks,
    /// Dump one, which stands still from then on: [`DumpAnswer`] and its files, as [messages of a
    /// copy](crate::copy::CopyMessage), follow. Then comes a [`MoveStep`]; if the connection ends
    /// instead, the container goes on.
    Dump(String),
    /// Restore a container, whose files follow as messages of a copy. When the answer says that it is
    /// done, the container is complete but stands still, and a [`MoveStep`] follows. If the connection
    /// ends before [`MoveStep::Keep`], the container is removed.
    Restore(Dumped),
    /// Decide upon a container that was restored, after a connection that has ended.
    Settle {
        /// Its name.
        name: String,
        /// Whether it is to go on here; otherwise it is removed.
        resume: bool,
    },
    /// Say what programs of this node can use of the processor.
    Processor,
    /// Say what keeps the container of this name from being moved, as [`ContainerAnswer::Lacks`].
    Obstacles(String),
    /// Restore a container of images that may come from elsewhere: as [`Restore`](Self::Restore), but
    /// nobody else has it. So no [`MoveStep::Keep`] comes, and it is removed if the connection ends before
    /// [`MoveStep::Resume`].
    Import(Imported),
    /// Send a signal to the first process of one.
    Signal {
        /// Its name.
        name: String,
        /// The signal's number.
        signal: i32,
    },
    /// Copy the memory of one while it runs, and dump it then: [`DumpAnswer`] says what there is to restore,
    /// and a [`PreCopyStep`] follows. If the connection ends instead, nothing is left of it.
    PreCopy(String),
    /// Say how much memory the programs of one have that is copied when it is moved.
    Memory(String),
    /// Start or restore one in this folder as its root, instead of the agent's own.
    In {
        /// Path of the folder.
        root: Vec<u8>,
        /// [`Start`](Self::Start), [`Restore`](Self::Restore) or [`Import`](Self::Import).
        request: Box<ContainerRequest>,
    },
    /// End the agent of the [base](crate::base), unless it has containers.
    End,
    /// List the processes of one that runs.
    Processes(String),
    /// Have all processes of one that belongs to a [pod](crate::pod) stand still, or go on.
    Freeze {
        /// Its name.
        name: String,
        /// Whether they stand still.
        frozen: bool,
    },
    /// Change how much of the node one that belongs to a [pod](crate::pod) gets. What is not said stays.
    Limit {
        /// Its name.
        name: String,
        /// How much it gets.
        share: Share,
    },
}

/// A step of a move whose memory is copied while the container runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PreCopyStep {
    /// Copy the memory that was not copied yet, or has changed since, as
    /// [messages of a copy](crate::copy::CopyMessage). The container runs, and another such step follows.
    Round,
    /// Dump the container with what has changed since: as
    /// [`ContainerRequest::Dump`], but if it is [busy](DumpAnswer::Busy), another such step follows.
    Last,
}

/// A step of a move, in this order. [`ContainerAnswer`] follows.
///
/// The source decides: until it has got [`Release`](Self::Release) it has the container, from then on
/// the target has. So there is never none, and never more than one that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoveStep {
    /// To the target: keep the container, standing still, also if this connection ends.
    Keep,
    /// To the source: remove it, without a packet to its peers.
    Release,
    /// To the target: have it go on.
    Resume,
}

/// Answer to [`ContainerRequest::Dump`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DumpAnswer {
    /// It was dumped, and its files follow.
    Dumped(Dumped),
    /// It goes on, for this reason.
    Refused(String),
    /// It goes on, since a connection to it is just being made or accepted: that cannot be dumped, and
    /// is over soon.
    Busy,
}

/// A container that was dumped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dumped {
    /// What was started.
    pub spec: ContainerSpec,
    /// Name of its output's pipe in the images, as `pipe:[123]`.
    pub output: String,
}

/// A container of images that may come from elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// Its name and address; its program is in the images.
    pub spec: ContainerSpec,
    /// What the images are of.
    pub images: Images,
    /// Whether its TCP connections are restored as closed ones.
    pub close_connections: bool,
}

/// What images are of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Images {
    /// A container, with the name of its output's pipe in the images.
    Container(String),
    /// Processes without namespaces of their own, as plain CRIU dumps them. They get those of a new
    /// container.
    Tree,
}

impl From<Dumped> for Imported {
    fn from(dumped: Dumped) -> Self {
        Self {
            spec: dumped.spec,
            images: Images::Container(dumped.output),
            close_connections: false,
        }
    }
}

/// Answer to a [`ContainerRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerAnswer {
    /// It is done.
    Done,
    /// It was not done, for this reason.
    Refused(String),
    /// All containers.
    List(Vec<ContainerState>),
    /// What the node lacks for moves: nothing if empty.
    Lacks(Vec<String>),
    /// What programs can use of the processor.
    Processor(Processor),
    /// Memory, in bytes.
    Memory(u64),
    /// Process ids, as the agent sees them.
    Processes(Vec<i32>),
}

/// A container and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerState {
    /// What was started.
    pub spec: ContainerSpec,
    /// Process id of its first process in the node, while it has one.
    pub pid: Option<u32>,
    /// Its phase.
    pub phase: Phase,
}

/// Phase of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// It runs.
    Running,
    /// It stands still, and is being moved to another node.
    Moving,
    /// It stands still, and comes from another node.
    Restored,
    /// Its program has ended.
    Exited(ExitStatus),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_nodes() {
        for good in ["a", "web-1", "6.12", &"x".repeat(NAME_MAX)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "-a", "a b", &"x".repeat(NAME_MAX + 1)] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn cards_are_not_those_of_nodes() {
        let address = Ipv4Addr::new(10, 78, 255, 7);
        assert_eq!(crate::network::address(card(address)), None);
        assert_eq!(super::address(card(address)), Some(address));
    }
}
