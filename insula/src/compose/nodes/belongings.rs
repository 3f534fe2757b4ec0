//! What nodes have of the base's files and network, and what no two of them can have.

use std::path::Path;

use insula_agent::options::Options;
use serde::Serialize;

use super::{Candidate, Planner, PresentNode, is_default};
use crate::compose::mistake::{Mistake, Span};
use crate::compose::project::{Project, WantedBelongings};
use crate::name::Name;
use crate::node::{ClaimError, Claims, Clash, NodeRoot, RootImage, RootImageRecord, RunError};
use crate::virtio::{DiskFile, Networking, Publish};

/// What a node has of the base's files and network: it is there.
pub(super) struct Belongings {
    pub(super) root: Option<NodeRoot>,
    overlay: bool,
    pub(super) disks: Vec<DiskFile>,
    pub(super) network: Option<Networking>,
    program: Vec<String>,
}

/// What of it makes a node what it is. Nothing is written of what a node does not have.
#[derive(Serialize)]
pub(super) struct BelongingsIdentity<'a> {
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

impl Belongings {
    /// What is asked for.
    ///
    /// # Errors
    /// The first that there is not.
    pub(super) fn find(project: &Project, wanted: &WantedBelongings) -> Result<Self, Mistake> {
        let mistake =
            |at: &Span, error: &dyn std::error::Error| project.source.mistake_by(at.clone(), error);
        let find_root = |path| NodeRoot::find(path, wanted.overlay);
        let root = wanted.root.as_deref().map(find_root).transpose();
        let root = root.map_err(|error| mistake(&wanted.root_at, &error))?;
        let disks = wanted.disks.iter().map(DiskFile::find);
        let disks = disks.collect::<Result<_, _>>();
        let disks = disks.map_err(|error| mistake(&wanted.disks_at, &error))?;
        Ok(Self {
            disks: NodeRoot::before(root.as_ref(), disks),
            root,
            overlay: wanted.overlay,
            network: wanted.network.clone(),
            program: wanted.program.clone(),
        })
    }

    /// The node's own part of its command line, with what its agent is told.
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

    pub(super) fn identity(&self) -> BelongingsIdentity<'_> {
        let root = self.root.as_ref();
        BelongingsIdentity {
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
        ports(self.belongings.network.as_ref())
    }

    /// Where a disk is asked for, be it as root.
    fn disk_at(&self, path: &Path) -> &Span {
        let wanted = &self.node.belongings;
        let root = self.belongings.root.as_ref().and_then(NodeRoot::disk);
        match root.is_some_and(|disk| disk.path == path) {
            true => &wanted.root_at,
            false => &wanted.disks_at,
        }
    }

    /// What is wrong with what it claims.
    fn claim(&self, error: &ClaimError) -> Mistake {
        let at = match error {
            ClaimError::Disk { path, .. } | ClaimError::DiskTwice(path) => self.disk_at(path),
            ClaimError::PortTwice(_) => &self.node.belongings.publish_at,
            _ => &self.node.belongings.address_at,
        };
        self.mistake_by(at, error)
    }

    /// It cannot have what another node of these files is to have.
    fn clash(&self, clash: &Clash, other: &Name) -> Mistake {
        let wanted = &self.node.belongings;
        let (at, what, help) = match clash {
            Clash::Address(address) => (
                &wanted.address_at,
                format!("the address {address}"),
                "give each node one of its own",
            ),
            Clash::Disk(path) => (
                self.disk_at(path),
                format!("the disk {}", path.display()),
                "nodes can share one that all of them only read: write `,ro` behind it",
            ),
        };
        let message = format!("{what} is asked for by the node '{other}' as well");
        self.mistake(at, message, help)
    }
}

impl<'a> Planner<'a> {
    /// No two nodes have one address, or one disk that one of them may write to.
    pub(super) fn check_claims(&mut self) {
        let mut mistakes = Vec::new();
        for (index, one) in self.candidates.iter().enumerate() {
            let claims = one.belongings.claims();
            let mut before = self.candidates[..index].iter();
            let clash = before.find_map(|other| {
                let clash = claims.clash(other.belongings.claims())?;
                Some(one.clash(&clash, &other.node.name))
            });
            mistakes.extend(clash);
            if !one.is_started() {
                continue;
            }
            let possible = claims.are_possible();
            mistakes.extend(possible.err().map(|error| one.claim(&error)));
            let clash = self.others().find_map(|(name, other)| {
                let clash = claims.clash(other.claims())?;
                Some(one.claim(&clash.with(name.as_str())))
            });
            mistakes.extend(clash);
        }
        self.mistakes.extend(mistakes);
    }

    /// Nodes that are there, and that these files are not about.
    fn others(&self) -> impl Iterator<Item = (&'a Name, &'a PresentNode)> {
        let is_asked_for = |name: &Name| self.candidates.iter().any(|one| one.node.name == *name);
        let leaves = |name: &Name| self.leaving.iter().any(|one| one.0 == *name);
        let all = self.present.nodes.iter();
        all.filter(move |(name, _)| !is_asked_for(name) && !leaves(name))
    }

    /// Each port of the base leads to one node, and can be opened.
    pub(super) fn check_ports(&mut self) {
        let mut mistakes = Vec::new();
        let freed: Vec<_> = self.freed().map(|node| node.network.as_ref()).collect();
        let freed: Vec<_> = freed.into_iter().flat_map(ports).collect();
        for (index, one) in self.candidates.iter().enumerate() {
            let at = &one.node.belongings.publish_at;
            for port in one.ports() {
                let mut before = self.candidates[..index].iter();
                let is_its = |other: &&Candidate| other.ports().iter().any(|two| port.meets(two));
                if let Some(other) = before.find(is_its) {
                    let (port, other) = (port.base, &other.node.name);
                    let message =
                        format!("the port {port} is asked for by the node '{other}' as well");
                    mistakes.push(one.mistake(at, message, "give each node ports of its own"));
                } else if one.is_started() && !freed.iter().any(|two| port.meets(two)) {
                    mistakes.extend(closed(*port).map(|error| one.mistake_by(at, &error)));
                }
            }
        }
        self.mistakes.extend(mistakes);
    }
}

fn ports(network: Option<&Networking>) -> &[Publish] {
    network.map_or(&[], |network| &network.publish)
}

/// Why it cannot be opened.
fn closed(publish: Publish) -> Option<RunError> {
    let error = publish.check().err();
    error.map(|source| RunError::Publish { publish, source })
}
