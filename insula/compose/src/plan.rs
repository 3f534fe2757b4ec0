//! The plan: from what files describe and the current state to actions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use insula_base::error::Error;
use insula_base::root::Root;
use insula_driver::name::Name;

use super::current_state::CurrentState;
use super::diagnostic::Diagnostic;
use super::images::{self, ImageStep};
use super::networks::{self, NetworkStep};
use super::nodes::{self, NodeAction, NodeStep};
use super::order::{Dependencies, reversed};
use super::project::Project;
use super::report::Report;

/// Why files are refused. Nothing has been changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct PlanError(
    /// All errors found, at least one.
    pub Vec<Diagnostic>,
);

impl PlanError {
    /// The refusal as a whole, without the single errors.
    #[must_use]
    pub fn error(&self) -> Error {
        let files: BTreeSet<&PathBuf> = self.0.iter().map(|diagnostic| &diagnostic.file).collect();
        let names: Vec<_> = files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        Error::new(format!("{} refused", names.join(", ")))
            .untouched()
            .hint("correct the errors below; `insula up --dry-run` only checks")
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.error())?;
        let mut diagnostics = self.0.iter();
        diagnostics.try_for_each(|diagnostic| write!(f, "\n\n{diagnostic}"))
    }
}

/// The actions that bring the machine to what files describe.
#[derive(Debug)]
pub struct Plan {
    /// Names of the projects.
    pub projects: Vec<Name>,
    /// Action on each image.
    pub images: Vec<ImageStep>,
    /// Action on each network.
    pub networks: Vec<NetworkStep>,
    /// Action on each node: described ones in the order of the files, then those to be removed.
    pub nodes: Vec<NodeStep>,
    /// Dependencies of the described nodes.
    pub dependencies: Dependencies,
    /// Order of stopping: each node depends on those that must be stopped before it.
    pub teardown_order: Dependencies,
}

impl Plan {
    /// Makes a plan, or finds the errors of the files together and on this machine. Reads the files
    /// of images; changes nothing.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn new(
        root: &Root,
        projects: &[Project],
        current: &CurrentState,
    ) -> Result<Self, PlanError> {
        let claims = claims(projects, current);
        if !claims.is_empty() {
            return Err(PlanError(claims));
        }
        let images = images::steps(root, projects, current).map_err(PlanError)?;
        let built_in = images::built_in(projects);
        let startable = images::startable(&images, current, built_in.as_ref());
        let (networks, planned) = networks::steps(root, projects, current).map_err(PlanError)?;
        let machine = nodes::Machine {
            root,
            current,
            images: &startable,
            images_size: images::size(&images),
            networks: &planned,
        };
        let nodes = nodes::steps(projects, &machine);
        let nodes = nodes.map_err(PlanError)?;
        let teardown_order = teardown_order(&nodes, current);
        Ok(Self {
            projects: projects
                .iter()
                .map(|project| project.name.clone())
                .collect(),
            dependencies: projects.iter().flat_map(Project::dependencies).collect(),
            images,
            networks,
            nodes,
            teardown_order,
        })
    }

    /// The plan as a report.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            images: self.images.iter().map(ImageStep::report).collect(),
            networks: self.networks.iter().map(NetworkStep::report).collect(),
            nodes: self.nodes.iter().map(NodeStep::report).collect(),
        }
    }
}

/// Refuses a project name that another file uses: with it, either file would remove what the other
/// has created.
fn claims(projects: &[Project], current: &CurrentState) -> Vec<Diagnostic> {
    let mut seen = BTreeMap::<&Name, &Project>::new();
    let mut diagnostics = Vec::new();
    for project in projects {
        let name = &project.name;
        let other = seen.insert(name, project).map(|other| other.path.clone());
        let mut made = current
            .nodes_of(name)
            .filter_map(|(_, node)| node.described.as_ref());
        let made = made.find(|by| by.file != project.path);
        if let Some(other) = other.or(made.map(|by| by.file.clone())) {
            let message = format!("the project '{name}' belongs to {}", other.display());
            let hint = format!(
                "give this one another name (project = \"…\" at the top), or remove the other one \
                 with `insula down --project {name}`"
            );
            diagnostics.push(
                project
                    .source
                    .diagnostic(project.at.clone(), message, &hint),
            );
        }
    }
    diagnostics
}

/// Nodes to be stopped wait for those that depended on them when they were started.
fn teardown_order(nodes: &[NodeStep], current: &CurrentState) -> Dependencies {
    let leaves =
        |step: &&NodeStep| matches!(step.action, NodeAction::Remove | NodeAction::Restart { .. });
    let dependencies_of =
        |step: &NodeStep| (step.name.clone(), current.dependencies_of(&step.name));
    reversed(&nodes.iter().filter(leaves).map(dependencies_of).collect())
}
