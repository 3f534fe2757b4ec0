//! What a watcher finds.

use crate::repair::Repair;
use insula_node::events::{NodeEvent, Status};
pub(crate) use insula_rules::Kind;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Attribute of an event that has a repair.
pub(crate) const REPAIR: &str = "repair";

/// Something that is wrong with a kernel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Finding {
    /// What kind it is of.
    pub kind: Kind,
    /// What it concerns: the same as long as it lasts. `pid 17`, `cpu 2`, `do_sys_openat2+0x4`.
    pub subject: String,
    /// What is wrong, in words; may change while it lasts.
    pub detail: String,
    /// How it can be repaired, if that is certain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<Repair>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.kind.name(), self.subject, self.detail)
    }
}

impl Finding {
    /// An event of a node: what has become of the finding. A repair is in it, so that it can be undone.
    #[must_use]
    pub fn event(&self, node: &str, status: Status) -> NodeEvent {
        let event = NodeEvent::now(node, status)
            .with("kind", self.kind.name())
            .with("subject", &*self.subject)
            .with("detail", &*self.detail);
        match (&self.repair, status) {
            (Some(repair), Status::Repaired) => {
                // Serialising to memory does not fail.
                event.with(REPAIR, serde_json::to_string(repair).unwrap_or_default())
            }
            _ => event,
        }
    }

    pub(crate) fn new(kind: Kind, subject: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            kind,
            subject: subject.into(),
            detail: detail.into(),
            repair: None,
        }
    }

    /// The same, with more detail.
    pub(crate) fn with_more(mut self, detail: &str) -> Self {
        self.detail.push_str(detail);
        self
    }

    /// The same, with a repair.
    pub(crate) fn with_repair(self, repair: Option<Repair>) -> Self {
        Self { repair, ..self }
    }

    /// Whether it is about the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.kind, &self.subject) == (other.kind, &other.subject)
    }
}
