//! Conflicts over the base's files and network.

use insula_base::error::Error;
use insula_driver::name::Name;
use insula_node::attachment::{Networking, Publish};
use insula_node::{Conflict, cannot_publish};

use super::candidate::Candidate;
use super::{CurrentNode, Planner};
use crate::diagnostic::Diagnostic;

impl Candidate<'_> {
    fn ports(&self) -> &[Publish] {
        ports(self.attachments.network.as_ref())
    }

    /// The diagnostic for a claim that cannot be met.
    fn claim(&self, error: &Error) -> Diagnostic {
        self.diagnostic_from(error.option, error)
    }

    /// The diagnostic for a conflict with another node of these files.
    fn conflict(&self, conflict: &Conflict, other: &Name) -> Diagnostic {
        let message = format!("{} is also used by the node '{other}'", conflict.what);
        self.diagnostic(conflict.option, message, conflict.hint)
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
            for port in one.ports() {
                let mut before = self.candidates[..index].iter();
                let is_its =
                    |other: &&Candidate| other.ports().iter().any(|two| port.conflicts(two));
                if let Some(other) = before.find(is_its) {
                    let (port, other) = (port.base, &other.node.name);
                    let message = format!("the port {port} is also used by the node '{other}'");
                    let hint = "give each node its own ports";
                    diagnostics.push(one.diagnostic("publish", message, hint));
                } else if one.is_started() && !freed.iter().any(|two| port.conflicts(two)) {
                    diagnostics.extend(
                        open_error(*port).map(|error| one.diagnostic_from("publish", &error)),
                    );
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
fn open_error(publish: Publish) -> Option<Error> {
    let error = publish.check().err();
    error.map(|error| cannot_publish(publish, error))
}
