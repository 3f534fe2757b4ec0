//! What was done: events as they happen, and the report at the end.

use insula_base::error::Error;
use insula_base::units::CpuList;
use insula_driver::name::Name;
use insula_node::{Started, Stopped};
use insula_servers::ServerAction;
use serde::Serialize;

/// Something that has just happened.
#[derive(Debug)]
pub enum Event<'a> {
    /// An image was made resident.
    ImageAdded(&'a Name),
    /// An image replaced the one of its name.
    ImageReplaced(&'a Name),
    /// An image was removed.
    ImageRemoved(&'a Name),
    /// A network was created.
    NetworkAdded(&'a Name),
    /// A network replaced the one of its name.
    NetworkReplaced(&'a Name),
    /// A network was removed.
    NetworkRemoved(&'a Name),
    /// A node was left as it is: it matches its description.
    NodeKept(&'a Name),
    /// A node was removed; how it was stopped, if it ran.
    NodeRemoved(&'a Name, Option<Stopped>),
    /// A node's kernel was started.
    NodeStarted(&'a Started),
    /// A node is ready, so many nanoseconds after its start.
    NodeReady(&'a Name, u64),
    /// A server of a node is as described.
    Server {
        /// Name of the node.
        node: &'a Name,
        /// Name of the server.
        name: &'a Name,
        /// What was done for it.
        action: ServerAction,
    },
    /// A network could not be removed.
    NetworkFailed(&'a Error),
    /// An action on a node failed.
    NodeFailed(&'a Error),
}

/// Receiver of events, called from any thread.
pub type Observer<'a> = &'a (dyn Fn(&Event) + Sync);

/// Action on an image, a network or a node, planned or done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Left as it is.
    Keep,
    /// An image was made resident, or a network created.
    Add,
    /// An image or a network replaced another.
    Replace,
    /// A node was started.
    Start,
    /// A node was stopped, removed, and started again.
    Restart,
    /// Stopped, if it was a node, and removed.
    Remove,
}

/// Result for an image.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ImageReport {
    /// Name of the image.
    pub name: Name,
    /// Its project.
    pub project: Name,
    /// The action.
    pub action: Action,
}

/// Result for a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct NetworkReport {
    /// Name of the network.
    pub name: Name,
    /// Its project.
    pub project: Name,
    /// The action planned.
    pub action: Action,
    /// Why it is not as described.
    pub error: Option<String>,
}

/// Result for a node.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct NodeReport {
    /// Name of the node.
    pub name: Name,
    /// Its project.
    pub project: Name,
    /// The action planned.
    pub action: Action,
    /// Cores chosen for it, if it was to be started.
    pub cpus: Option<CpuList>,
    /// The start, if it was started.
    pub started: Option<Started>,
    /// When it was ready, in nanoseconds after its start.
    pub ready_ns: Option<u64>,
    /// Its servers, if all was done.
    pub servers: Vec<ServerReport>,
    /// Why it is not as described.
    pub error: Option<String>,
}

/// Result for a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ServerReport {
    /// Its name.
    pub name: Name,
    /// What was done for it.
    pub action: ServerAction,
}

impl NodeReport {
    pub(super) fn new(name: &Name, project: &Name, action: Action) -> Self {
        Self {
            name: name.clone(),
            project: project.clone(),
            action,
            cpus: None,
            started: None,
            ready_ns: None,
            servers: Vec::new(),
            error: None,
        }
    }
}

/// Results for all images, networks and nodes.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Report {
    /// By image.
    pub images: Vec<ImageReport>,
    /// By network.
    pub networks: Vec<NetworkReport>,
    /// By node.
    pub nodes: Vec<NodeReport>,
}

impl Report {
    /// Whether all is as described.
    #[must_use]
    pub fn is_good(&self) -> bool {
        let mut networks = self.networks.iter();
        networks.all(|network| network.error.is_none())
            && self.nodes.iter().all(|node| node.error.is_none())
    }
}
