//! From what files ask for, and what is there, to what is to be done.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use super::deed::Report;
use super::images::{self, ImageStep};
use super::mistake::Mistake;
use super::nodes::{self, NodeDeed, NodeStep};
use super::order::{Waits, reversed};
use super::present::Present;
use super::project::Project;
use crate::name::Name;
use crate::root::Root;

/// Why files cannot be brought up. Nothing has been touched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct PlanError(
    /// All mistakes that were found, one at least.
    pub Vec<Mistake>,
);

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: BTreeSet<&PathBuf> = self.0.iter().map(|mistake| &mistake.file).collect();
        let names: Vec<_> = files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        writeln!(f, "{} refused; nothing was touched", names.join(", "))?;
        write!(f, "mend what follows; `insula up --dry-run` only checks")?;
        let mut mistakes = self.0.iter();
        mistakes.try_for_each(|mistake| write!(f, "\n\n{mistake}"))
    }
}

/// What is to be done so that what runs is what files ask for.
#[derive(Debug)]
pub struct Plan {
    /// The projects' names.
    pub projects: Vec<Name>,
    /// What is to be done about each image.
    pub images: Vec<ImageStep>,
    /// What is to be done about each node: those that are asked for in the order of the files, then
    /// those that are to go.
    pub nodes: Vec<NodeStep>,
    /// What the nodes that are asked for wait for.
    pub waits: Waits,
    /// What the nodes that are to be stopped wait for.
    pub farewell: Waits,
}

impl Plan {
    /// Makes a plan, or finds what is wrong with the files together and on this machine. Reads the
    /// files of images; touches nothing.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn new(root: &Root, projects: &[Project], present: &Present) -> Result<Self, PlanError> {
        let claims = claims(projects, present);
        if !claims.is_empty() {
            return Err(PlanError(claims));
        }
        let images = images::steps(root, projects, present).map_err(PlanError)?;
        let startable = images::startable(&images, present);
        let nodes = nodes::steps(root, projects, present, &startable, images::size(&images));
        let nodes = nodes.map_err(PlanError)?;
        let farewell = farewell(&nodes, present);
        Ok(Self {
            projects: projects
                .iter()
                .map(|project| project.name.clone())
                .collect(),
            waits: projects.iter().flat_map(Project::waits).collect(),
            images,
            nodes,
            farewell,
        })
    }

    /// What is to be done, as it is told when it has been done.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            images: self.images.iter().map(ImageStep::report).collect(),
            nodes: self.nodes.iter().map(NodeStep::report).collect(),
        }
    }
}

/// Whether each project's name is its own: a name that two files claim would let one take down what
/// the other has made.
fn claims(projects: &[Project], present: &Present) -> Vec<Mistake> {
    let mut seen = BTreeMap::<&Name, &Project>::new();
    let mut mistakes = Vec::new();
    for project in projects {
        let name = &project.name;
        let other = seen.insert(name, project).map(|other| other.path.clone());
        let mut made = present
            .nodes_of(name)
            .filter_map(|(_, node)| node.described.as_ref());
        let made = made.find(|by| by.file != project.path);
        if let Some(other) = other.or(made.map(|by| by.file.clone())) {
            let message = format!("the project '{name}' is that of {}", other.display());
            let help = format!(
                "give this one another name (project = \"…\" at the top), or take the other one down \
                 with `insula down --project {name}`"
            );
            mistakes.push(project.source.mistake(project.at.clone(), message, &help));
        }
    }
    mistakes
}

/// Those that are to be stopped wait for those that came after them when they were started.
fn farewell(nodes: &[NodeStep], present: &Present) -> Waits {
    let leaves =
        |step: &&NodeStep| matches!(step.deed, NodeDeed::Remove | NodeDeed::Restart { .. });
    let came_after = |step: &NodeStep| (step.name.clone(), present.came_after(&step.name));
    reversed(&nodes.iter().filter(leaves).map(came_after).collect())
}
