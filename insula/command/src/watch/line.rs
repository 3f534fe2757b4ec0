//! What a watcher tells as JSON, a line for each.

use insula_watch::Event;
use serde::Serialize;

/// A line.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct WatchLine<'a> {
    #[serde(flatten)]
    pub(super) event: WatchEvent<'a>,
    /// When, in UTC (RFC 3339).
    pub(super) time: String,
    /// Number of the node's start; of a node only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) starts: Option<u64>,
}

/// What has happened.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum WatchEvent<'a> {
    /// The first look is done: what changes from now on is seen.
    Watching,
    /// The kernel has ended: what was wrong with it is over.
    Over,
    /// Something has changed.
    #[serde(untagged)]
    Changed(&'a Event),
}
