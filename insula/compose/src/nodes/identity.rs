//! What makes a node of a file another one.

use std::path::Path;

use insula_image::{Content, Description, sha256};
use insula_node::attachment::DiskFile;
use insula_node::{Attachments, Described, NodeRoot, NodeSpec, RootImageRecord};
use insula_rules::Rules;
use serde::Serialize;

use crate::project::{Project, WantedNode};

/// What a node's digest is computed from: its keys, and the content of the files that they name.
#[derive(Serialize)]
struct Identity<'a> {
    spec: NodeSpec,
    content: Content,
    root: Option<&'a Path>,
    root_image: Option<&'a RootImageRecord>,
    disks: &'a [DiskFile],
    /// Of the file with rules, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    watch: Option<&'a Rules>,
}

/// The node as its record says it was described.
pub(super) fn described(
    project: &Project,
    node: &WantedNode,
    image: &Description,
    attachments: &Attachments,
) -> Described {
    let identity = Identity {
        spec: node.spec.normalized(),
        content: image.content(),
        root: attachments.root.as_ref().and_then(NodeRoot::path),
        root_image: attachments.root_image(),
        disks: &attachments.disks,
        watch: attachments.watch.as_ref(),
    };
    // Serialising to memory fails only for maps with non-string keys: there are none.
    let digest = sha256(&serde_json::to_vec(&identity).unwrap_or_default());
    Described {
        project: project.name.to_string(),
        file: project.path.clone(),
        digest,
    }
}
