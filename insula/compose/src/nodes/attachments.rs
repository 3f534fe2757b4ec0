//! A node's attachments to the base's files and network, and conflicts over them.

use std::path::Path;

use insula_agent::options::Options;
use insula_driver::name::Name;
use insula_node::attachment::{DiskFile, Networking, Publish};
use insula_node::{ClaimError, Claims, Conflict, NodeRoot, RootImage, RootImageRecord, RunError};
use serde::Serialize;

use super::{Candidate, CurrentNode, Planner, is_default};
use crate::diagnostic::{Diagnostic, Span};
use crate::project::{Project, WantedAttachments};

/// A node's attachments, all of which exist.
pub(super) struct Attachments {
    pub(super) root: Option<NodeRoot>,
    overlay: bool,
    pub(super) disks: Vec<DiskFile>,
    pub(super) network: Option<Networking>,
    program: Vec<String>,
}

/// The part of them that belongs to the node's digest. What a node does not have is left out.
#[derive(Serialize)]
pub(super) struct AttachmentsIdentity<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    root_image: Option<&'a RootImageRecord>,
    #[serde(skip_serializing_if = "is_default")]
    overlay: bool,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    disks: &'a [DiskFile],
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<&'a Networking>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    program: &'a [String],
}

impl Attachments {
    /// Looks up the attachments that a file describes.
    ///
    /// # Errors
    /// The first that does not exist.
    pub(super) fn find(project: &Project, wanted: &WantedAttachments) -> Result<Self, Diagnostic> {
        let diagnostic = |at: &Span, error: &dyn std::error::Error| {
            project.source.diagnostic_from(at.clone(), error)
        };
        let find_root = |path| NodeRoot::find(path, wanted.overlay);
        let root = wanted.root.as_deref().map(find_root).transpose();
        let root = root.map_err(|error| diagnostic(&wanted.root_at, &error))?;
        let disks = wanted.disks.iter().map(DiskFile::find);
        let disks = disks.collect::<Result<_, _>>();
        let disks = disks.map_err(|error| diagnostic(&wanted.disks_at, &error))?;
        Ok(Self {
            disks: NodeRoot::before(root.as_ref(), disks),
            root,
            overlay: wanted.overlay,
            network: wanted.network.clone(),
            program: wanted.program.clone(),
        })
    }

    /// The node's own part of its command line, with the agent's options.
    pub(super) fn append(&self, own: &str) -> String {
        let agent = Options {
            root: self.root.as_ref().map(|root| root.for_agent(self.overlay)),
            network: self.network.is_some(),
            run: self
                .program
                .iter()
                .cloned()
                .map(String::into_bytes)
                .collect(),
            ..Options::default()
        };
        format!("{own} {}", agent.command_line()).trim().to_owned()
    }

    pub(super) fn identity(&self) -> AttachmentsIdentity<'_> {
        let root = self.root.as_ref();
        AttachmentsIdentity {
            root: root.and_then(NodeRoot::path),
            root_image: root.and_then(NodeRoot::image).map(RootImage::record),
            overlay: self.overlay,
            disks: &self.disks,
            network: self.network.as_ref(),
            program: &self.program,
        }
    }

    fn claims(&self) -> Claims<'_> {
        Claims {
            network: self.network.as_ref(),
            disks: &self.disks,
        }
    }
}

impl Candidate<'_> {
    fn ports(&self) -> &[Publish] {
        ports(self.attachments.network.as_ref())
    }

    /// Where in the file a disk is named, possibly as root.
    fn disk_at(&self, path: &Path) -> &Span {
        let requested = &self.node.attachments;
        let root = self.attachments.root.as_ref().and_then(NodeRoot::disk);
        match root.is_some_and(|disk| disk.path == path) {
            true => &requested.root_at,
            false => &requested.disks_at,
        }
    }

    /// The diagnostic for a claim that cannot be met.
    fn claim(&self, error: &ClaimError) -> Diagnostic {
        let at = match error {
            ClaimError::Disk { path, .. } | ClaimError::DiskTwice(path) => self.disk_at(path),
            ClaimError::PortTwice(_) => &self.node.attachments.publish_at,
            _ => &self.node.attachments.address_at,
        };
        self.diagnostic_from(at, error)
    }

    /// The diagnostic for a conflict with another node of these files.
    fn conflict(&self, conflict: &Conflict, other: &Name) -> Diagnostic {
        let requested = &self.node.attachments;
        let (at, what, hint) = match conflict {
            Conflict::Address(address) => (
                &requested.address_at,
                format!("the address {address}"),
                "give each node its own",
            ),
            Conflict::Disk(path) => (
                self.disk_at(path),
                format!("the disk {}", path.display()),
                "nodes can share a disk that all of them only read: append `,ro`",
            ),
        };
        let message = format!("{what} is also used by the node '{other}'");
        self.diagnostic(at, message, hint)
    }
}

impl<'a> Planner<'a> {
    /// Refuses an address for two nodes, and a disk for two of which one may write to it.
    pub(super) fn check_claims(&mut self) {
        let mut diagnostics = Vec::new();
        for (index, one) in self.candidates.iter().enumerate() {
            let claims = one.attachments.claims();
            let mut before = self.candidates[..index].iter();
            let conflict = before.find_map(|other| {
                let conflict = claims.conflict(other.attachments.claims())?;
                Some(one.conflict(&conflict, &other.node.name))
            });
            diagnostics.extend(conflict);
            if !one.is_started() {
                continue;
            }
            let possible = claims.check();
            diagnostics.extend(possible.err().map(|error| one.claim(&error)));
            let conflict = self.others().find_map(|(name, other)| {
                let conflict = claims.conflict(other.claims())?;
                Some(one.claim(&conflict.with(name.as_str())))
            });
            diagnostics.extend(conflict);
        }
        self.diagnostics.extend(diagnostics);
    }

    /// Existing nodes that these files do not describe.
    fn others(&self) -> impl Iterator<Item = (&'a Name, &'a CurrentNode)> {
        let is_in_files = |name: &Name| self.candidates.iter().any(|one| one.node.name == *name);
        let is_removed = |name: &Name| self.removed.iter().any(|one| one.0 == *name);
        let all = self.current.nodes.iter();
        all.filter(move |(name, _)| !is_in_files(name) && !is_removed(name))
    }

    /// Checks that each port of the base is forwarded to one node, and can be opened.
    pub(super) fn check_ports(&mut self) {
        let mut diagnostics = Vec::new();
        let freed: Vec<_> = self.freed().map(|node| node.network.as_ref()).collect();
        let freed: Vec<_> = freed.into_iter().flat_map(ports).collect();
        for (index, one) in self.candidates.iter().enumerate() {
            let at = &one.node.attachments.publish_at;
            for port in one.ports() {
                let mut before = self.candidates[..index].iter();
                let is_its =
                    |other: &&Candidate| other.ports().iter().any(|two| port.conflicts(two));
                if let Some(other) = before.find(is_its) {
                    let (port, other) = (port.base, &other.node.name);
                    let message = format!("the port {port} is also used by the node '{other}'");
                    diagnostics.push(one.diagnostic(at, message, "give each node its own ports"));
                } else if one.is_started() && !freed.iter().any(|two| port.conflicts(two)) {
                    diagnostics
                        .extend(open_error(*port).map(|error| one.diagnostic_from(at, &error)));
                }
            }
        }
        self.diagnostics.extend(diagnostics);
    }
}

fn ports(network: Option<&Networking>) -> &[Publish] {
    network.map_or(&[], |network| &network.publish)
}

/// The error of a port that cannot be opened.
fn open_error(publish: Publish) -> Option<RunError> {
    let error = publish.check().err();
    error.map(|source| RunError::Publish { publish, source })
}
