//! What was done, told as it happens and in the end.

use serde::Serialize;

use super::ready::ReadyError;
use crate::name::Name;
use crate::node::{EndError, RunError, Started, Stopped};
use crate::units::CpuList;

/// Something that has just happened.
#[derive(Debug)]
pub enum Event<'a> {
    /// An image has become resident.
    ImageAdded(&'a Name),
    /// An image has taken the place of the one of its name.
    ImageReplaced(&'a Name),
    /// An image has been removed.
    ImageRemoved(&'a Name),
    /// A node has been left alone: it is as it should be.
    NodeKept(&'a Name),
    /// A node has been removed; how it came to be stopped, if it ran.
    NodeRemoved(&'a Name, Option<Stopped>),
    /// A node's kernel runs.
    NodeStarted(&'a Started),
    /// A node has told that it is ready, so many nanoseconds after its start.
    NodeReady(&'a Name, u64),
    /// Something was not done to a node.
    NodeFailed(&'a NodeError),
}

/// Who is told of each event, from any thread.
pub type Tell<'a> = &'a (dyn Fn(&Event) + Sync);

/// Why a node is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// It was not ended.
    #[error(transparent)]
    End(#[from] EndError),
    /// It was not started.
    #[error(transparent)]
    Run(Box<RunError>),
    /// It is not ready.
    #[error(transparent)]
    Ready(#[from] ReadyError),
    /// The one that is to be replaced by it is still there.
    #[error("the node '{0}' was not started anew: it could not be ended first")]
    NotReplaced(Name),
    /// One that it comes after is not ready.
    #[error("the node '{name}' was not started: it comes after '{after}', which is not ready")]
    NotStarted {
        /// The node.
        name: Name,
        /// The one that it waited for.
        after: Name,
    },
}

impl From<RunError> for NodeError {
    fn from(error: RunError) -> Self {
        Self::Run(Box::new(error))
    }
}

/// What is to be done, or was done, about an image or a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deed {
    /// Left alone.
    Keep,
    /// An image was made resident.
    Add,
    /// An image was put in the place of another.
    Replace,
    /// A node was started.
    Start,
    /// A node was stopped, removed, and started anew.
    Restart,
    /// Stopped, if it was a node, and removed.
    Remove,
}

/// What came of an image.
#[derive(Clone, Debug, Serialize)]
pub struct ImageReport {
    /// Its name.
    pub name: Name,
    /// The project.
    pub project: Name,
    /// What was done.
    pub deed: Deed,
}

/// What came of a node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeReport {
    /// Its name.
    pub name: Name,
    /// The project.
    pub project: Name,
    /// What was to be done.
    pub deed: Deed,
    /// The cores chosen for it, if it was to be started.
    pub cpus: Option<CpuList>,
    /// The start, if it was started.
    pub started: Option<Started>,
    /// When it told that it is ready, in nanoseconds after its start.
    pub ready_ns: Option<u64>,
    /// Why it is not as it should be.
    pub error: Option<String>,
}

impl NodeReport {
    pub(super) fn new(name: &Name, project: &Name, deed: Deed) -> Self {
        Self {
            name: name.clone(),
            project: project.clone(),
            deed,
            cpus: None,
            started: None,
            ready_ns: None,
            error: None,
        }
    }
}

/// What came of all.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Of each image.
    pub images: Vec<ImageReport>,
    /// Of each node.
    pub nodes: Vec<NodeReport>,
}

impl Report {
    /// Whether all is as it should be.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.nodes.iter().all(|node| node.error.is_none())
    }
}
