//! `insula down`: stopping and removing what a project has started.

use std::path::{Path, PathBuf};
use std::time::Duration;

use insula_base::error::Error;
use insula_base::root::Root;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_image as image;

use super::current_state::CurrentState;
use super::images::removable;
use super::networks::{self, NetworkStep};
use super::order::{Dependencies, reversed};
use super::project::Project;
use super::report::{Action, Event, ImageReport, NetworkReport, NodeReport, Observer, Report};
use super::schedule::run_in_parallel;
use super::teardown::teardown;

/// A project to stop and remove.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Its name.
    pub name: Name,
    /// File that must have created it; any if `None`.
    pub file: Option<PathBuf>,
    /// Dependencies of its nodes by the file; nodes that are not in it bring their own.
    pub dependencies: Dependencies,
}

impl From<&Project> for Scope {
    fn from(project: &Project) -> Self {
        Self {
            name: project.name.clone(),
            file: Some(project.path.clone()),
            dependencies: project.dependencies(),
        }
    }
}

/// Stops and removes all nodes of these projects in parallel, each before those that it depends on;
/// then the networks that they have created, except those of other projects' nodes; with `images` also the
/// images that they have added, except those that nodes of other projects were started from. A node has
/// `timeout` to power off.
///
/// # Errors
/// Why nothing was done; the result for each node is in the report.
pub fn down(
    (driver, root): (&Driver, &Root),
    current: &CurrentState,
    scopes: &[Scope],
    images: bool,
    timeout: Duration,
    observer: Observer,
) -> Result<Report, Error> {
    scopes.iter().try_for_each(|scope| check(current, scope))?;
    let dependencies = scopes.iter().flat_map(|scope| dependencies(current, scope));
    let teardown_order = reversed(&dependencies.collect());
    let ended = run_in_parallel(&teardown_order, |name, _| {
        teardown(driver, name, timeout, observer)
    });
    let mut report = Report::default();
    for scope in scopes {
        for (name, _) in current.nodes_of(&scope.name) {
            let ended = ended.get(name).and_then(|ended| ended.as_ref().err());
            report.nodes.push(NodeReport {
                error: ended.map(ToString::to_string),
                ..NodeReport::new(name, &scope.name, Action::Remove)
            });
        }
        if ended.values().all(Result::is_ok) {
            for name in networks::removable(&scope.name, current) {
                let step = NetworkStep::removal(name, &scope.name);
                report.networks.push(NetworkReport {
                    error: step.remove(driver, root, observer),
                    ..step.report()
                });
            }
        }
        let removable = removable(scope.name.clone(), current);
        for name in removable.filter(|_| images) {
            image::remove(driver, name)?;
            observer(&Event::ImageRemoved(name));
            report.images.push(ImageReport {
                name: name.clone(),
                project: scope.name.clone(),
                action: Action::Remove,
            });
        }
    }
    Ok(report)
}

/// Refuses a file that only happens to have the same project's name.
fn check(current: &CurrentState, scope: &Scope) -> Result<(), Error> {
    let Some(file) = &scope.file else {
        return Ok(());
    };
    let nodes = current.nodes_of(&scope.name);
    let of_nodes = nodes.filter_map(|(_, node)| Some(&node.described.as_ref()?.file));
    let networks = current.networks_of(&scope.name);
    let of_networks = networks.filter_map(|network| network.file.as_ref());
    let mut files = of_nodes.chain(of_networks);
    match files.find(|by| *by != file) {
        Some(by) => Err(other_file(&scope.name, by, file)),
        None => Ok(()),
    }
}

/// Another file created the project.
fn other_file(name: &Name, created_by: &Path, file: &Path) -> Error {
    let (created_by, file) = (created_by.display(), file.display());
    Error::new(format!(
        "the project '{name}' was created by {created_by}, not by {file}"
    ))
    .untouched()
    .hint(format!(
        "use that file, or the project's name: `insula down --project {name}`"
    ))
}

/// Dependencies of the existing nodes of a project.
fn dependencies(current: &CurrentState, scope: &Scope) -> Dependencies {
    let entry = |name: &Name| {
        let by_file = scope.dependencies.get(name).cloned();
        (
            name.clone(),
            by_file.unwrap_or_else(|| current.dependencies_of(name)),
        )
    };
    let nodes = current.nodes_of(&scope.name);
    nodes.map(|(name, _)| entry(name)).collect()
}
