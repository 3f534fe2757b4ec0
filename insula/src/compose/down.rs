//! Taking down what a project has brought up.

use std::path::PathBuf;
use std::time::Duration;

use super::deed::{Deed, Event, ImageReport, NodeReport, Report, Tell};
use super::images::removable;
use super::order::{Waits, reversed};
use super::present::Present;
use super::project::Project;
use super::schedule::side_by_side;
use super::take_down::take_down;
use crate::driver::Driver;
use crate::image::{self, RemoveError};
use crate::name::Name;

/// A project to take down.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Its name.
    pub name: Name,
    /// The file that must have made it; any if not given.
    pub file: Option<PathBuf>,
    /// What its nodes wait for by the file; what they say themselves of those that are not in it.
    pub waits: Waits,
}

impl From<&Project> for Scope {
    fn from(project: &Project) -> Self {
        Self {
            name: project.name.clone(),
            file: Some(project.path.clone()),
            waits: project.waits(),
        }
    }
}

/// Why nothing was taken down. Nothing has been touched.
#[derive(Debug, thiserror::Error)]
pub enum DownError {
    /// Another file has made it.
    #[error(
        "the project '{name}' was made by {}, not by {}; nothing was touched\n\
         take it down with that file, or by its name: `insula down --project {name}`",
        .made_by.display(), .file.display()
    )]
    OtherFile {
        /// The project.
        name: Name,
        /// Its file.
        made_by: PathBuf,
        /// The file that was given.
        file: PathBuf,
    },
    /// An image was not removed.
    #[error(transparent)]
    Image(#[from] RemoveError),
}

/// Stops and removes all nodes of these projects, side by side, each before those that it came
/// after; with `images` then the images that they have added, save those that nodes of others were
/// started from. A node has `patience` to switch itself off.
///
/// # Errors
/// [`DownError`]; what came of each node is in the report.
pub fn down(
    driver: &Driver,
    present: &Present,
    scopes: &[Scope],
    images: bool,
    patience: Duration,
    tell: Tell,
) -> Result<Report, DownError> {
    scopes.iter().try_for_each(|scope| check(present, scope))?;
    let waits = scopes.iter().flat_map(|scope| waits(present, scope));
    let farewell = reversed(&waits.collect());
    let ended = side_by_side(&farewell, |name, _| take_down(driver, name, patience, tell));
    let mut report = Report::default();
    for scope in scopes {
        for (name, _) in present.nodes_of(&scope.name) {
            let ended = ended.get(name).and_then(|ended| ended.as_ref().err());
            report.nodes.push(NodeReport {
                error: ended.map(ToString::to_string),
                ..NodeReport::new(name, &scope.name, Deed::Remove)
            });
        }
        let removable = removable(scope.name.clone(), present);
        for name in removable.filter(|_| images) {
            image::remove(driver, name)?;
            tell(&Event::ImageRemoved(name));
            report.images.push(ImageReport {
                name: name.clone(),
                project: scope.name.clone(),
                deed: Deed::Remove,
            });
        }
    }
    Ok(report)
}

/// Nothing is taken down by a file that only happens to have the same project's name.
fn check(present: &Present, scope: &Scope) -> Result<(), DownError> {
    let Some(file) = &scope.file else {
        return Ok(());
    };
    let mut made = present
        .nodes_of(&scope.name)
        .filter_map(|(_, node)| node.described.as_ref());
    match made.find(|by| by.file != *file) {
        Some(by) => Err(DownError::OtherFile {
            name: scope.name.clone(),
            made_by: by.file.clone(),
            file: file.clone(),
        }),
        None => Ok(()),
    }
}

/// What the nodes of a project that are there wait for.
fn waits(present: &Present, scope: &Scope) -> Waits {
    let entry = |name: &Name| {
        let by_file = scope.waits.get(name).cloned();
        (
            name.clone(),
            by_file.unwrap_or_else(|| present.came_after(name)),
        )
    };
    let nodes = present.nodes_of(&scope.name);
    nodes.map(|(name, _)| entry(name)).collect()
}
