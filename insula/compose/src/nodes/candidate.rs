//! A node that a file describes, on its way to a decision.

use insula_base::error::Error;
use insula_base::units::CpuList;
use insula_image::Description;
use insula_node::cores::{ChosenCore, CoreRequest};
use insula_node::{Attachments, Described, RunRequest, Source};

use super::{NodeAction, NodeStep};
use crate::current_state::{CurrentNode, RunState};
use crate::diagnostic::Diagnostic;
use crate::project::{Project, WantedNode, WantedServer};

/// A node that a file describes.
pub(super) struct Candidate<'a> {
    pub(super) project: &'a Project,
    pub(super) node: &'a WantedNode,
    pub(super) image: &'a Description,
    pub(super) attachments: Attachments,
    pub(super) described: Described,
    pub(super) decision: Decision,
    /// Whether an error was found that makes others pointless to report.
    pub(super) is_refused: bool,
    /// Cores chosen, if it is to be started.
    pub(super) cores: Vec<ChosenCore>,
}

/// Planned action on a described node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Keep,
    Start,
    Restart { changed: bool },
}

impl Candidate<'_> {
    pub(super) fn is_started(&self) -> bool {
        self.decision != Decision::Keep && !self.is_refused
    }

    /// An error of one of its keys.
    pub(super) fn diagnostic(
        &self,
        key: &str,
        message: impl std::fmt::Display,
        hint: &str,
    ) -> Diagnostic {
        let at = self.node.spans.at(key);
        self.project.source.diagnostic(at, message, hint)
    }

    /// An error of the library, of one of its keys.
    pub(super) fn diagnostic_from(&self, key: &str, error: &Error) -> Diagnostic {
        let at = self.node.spans.at(key);
        self.project.source.diagnostic_from(at, error)
    }

    /// The servers that are to run on it.
    pub(super) fn servers(&self) -> impl Iterator<Item = &WantedServer> {
        let all = self.project.servers.iter();
        all.filter(|server| server.node == self.node.name)
    }

    pub(super) fn request(&self) -> Box<RunRequest> {
        Box::new(RunRequest {
            source: Source::Image(self.node.image.clone()),
            name: Some(self.node.name.clone()),
            cores: CoreRequest::List(CpuList(self.cores.iter().map(|one| one.cpu).collect())),
            spec: self.node.spec.clone(),
            attachments: self.attachments.clone(),
            described: Some(self.described.clone()),
            remove: false,
            is_created: false,
            is_attached: false,
        })
    }

    pub(super) fn step(&self) -> NodeStep {
        let request = || self.request();
        NodeStep {
            name: self.node.name.clone(),
            project: self.project.name.clone(),
            ready: self.node.spec.ready.clone(),
            servers: self.servers().cloned().collect(),
            action: match self.decision {
                Decision::Keep => NodeAction::Keep,
                Decision::Start => NodeAction::Start(request()),
                Decision::Restart { changed } => NodeAction::Restart {
                    request: request(),
                    changed,
                },
            },
        }
    }
}

/// Decides on a node whose name exists; or says why nothing can be done.
pub(super) fn decide(
    project: &Project,
    there: &CurrentNode,
    digest: &str,
) -> Result<Decision, (&'static str, &'static str)> {
    let described = there.described.as_ref();
    let ours = described.filter(|by| by.project == project.name.as_str());
    match (ours, there.state) {
        (_, RunState::Starting) => Err((
            "which another command is starting",
            "try again when that command has finished",
        )),
        (None, _) => Err((
            "which was not created by this project",
            "use another name, or remove it with `insula rm`",
        )),
        (Some(by), RunState::Running) if by.digest == digest => Ok(Decision::Keep),
        (Some(by), _) => Ok(Decision::Restart {
            changed: by.digest != digest,
        }),
    }
}
