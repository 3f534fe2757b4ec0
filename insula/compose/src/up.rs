//! `insula up`: carrying out a plan.

use std::collections::BTreeMap;
use std::time::Duration;

use insula_base::error::Error;
use insula_base::root::Root;
use insula_driver::name::Name;
use insula_driver::{Driver, tsc};
use insula_image as image;
use insula_node::spec::Ready;
use insula_node::{self as node, RunRequest, Started};
use insula_servers::{self as servers, ServerAction};
use insula_supervisor as supervisor;

use super::images::{ImageAction, ImageStep};
use super::nodes::{NodeAction, NodeStep};
use super::plan::Plan;
use super::ready;
use super::report::{Event, Observer, Report, ServerReport};
use super::schedule::run_in_parallel;
use super::teardown::teardown;

/// Carries out a plan: images and networks first, then removals, then starts, nodes in parallel in the order of
/// their dependencies. A node has `timeout` to power off. A node that fails keeps those that depend
/// on it from starting, and no others.
///
/// # Errors
/// Why no node was touched; the result for each node is in the report.
pub fn up(
    driver: &Driver,
    root: &Root,
    plan: Plan,
    timeout: Duration,
    observer: Observer,
) -> Result<Report, Error> {
    let starts = |step: &NodeStep| !matches!(step.action, NodeAction::Keep | NodeAction::Remove);
    if plan.nodes.iter().any(starts) {
        node::check_base(root).map_err(Error::untouched)?;
    }
    let mut report = plan.report();
    // Drops what was read of the images' files: the nodes may need the memory.
    let mut images = plan.images.into_iter();
    images.try_for_each(|step| apply_image(driver, &step, observer))?;
    for step in &plan.networks {
        step.create(driver, root, observer)?;
    }
    let ended = run_in_parallel(&plan.teardown_order, |name, _| {
        teardown(driver, name, timeout, observer)
    });
    let steps = plan.nodes.iter().map(|step| (&step.name, step)).collect();
    let builder = Builder {
        driver,
        root,
        steps,
        ended: &ended,
        observer,
    };
    let built = run_in_parallel(&plan.dependencies, |name, failed| {
        builder.build(name, failed)
    });
    if ended.values().all(Result::is_ok) {
        for (network, step) in report.networks.iter_mut().zip(&plan.networks) {
            network.error = step.remove(driver, root, observer);
        }
    }
    for node in &mut report.nodes {
        match built.get(&node.name) {
            Some(Ok(built)) => {
                node.started.clone_from(&built.started);
                node.ready_ns = built.ready_ns;
                node.servers.clone_from(&built.servers);
            }
            Some(Err(error)) => node.error = Some(error.to_string()),
            None => {}
        }
        if let Some(Err(error)) = ended.get(&node.name) {
            node.error = Some(error.to_string());
        }
    }
    Ok(report)
}

/// Carries out the action on an image.
fn apply_image(driver: &Driver, step: &ImageStep, observer: Observer) -> Result<(), Error> {
    let name = &step.name;
    match &step.action {
        ImageAction::Keep => {}
        ImageAction::Add(prepared) => {
            prepared.add(driver).map_err(others_kept)?;
            observer(&Event::ImageAdded(name));
        }
        ImageAction::Replace(prepared) => {
            prepared.replace(driver).map_err(others_kept)?;
            observer(&Event::ImageReplaced(name));
        }
        ImageAction::Remove => {
            image::remove(driver, name)?;
            observer(&Event::ImageRemoved(name));
        }
    }
    Ok(())
}

/// The error of an image that was not added.
fn others_kept(error: Error) -> Error {
    error.leaving("no node was touched; images that were added before it are kept")
}

fn not_started(name: &Name, after: &Name) -> Error {
    Error::new(format!(
        "the node '{name}' was not started: it depends on '{after}', which is not ready"
    ))
}

/// The node that it replaces could not be removed.
fn not_replaced(name: &Name) -> Error {
    Error::new(format!(
        "the node '{name}' was not started again: the running one could not be stopped first"
    ))
}

/// Starts nodes and waits until they are ready.
struct Builder<'a> {
    driver: &'a Driver,
    root: &'a Root,
    steps: BTreeMap<&'a Name, &'a NodeStep>,
    /// Results of the nodes that had to be removed.
    ended: &'a BTreeMap<Name, Result<(), Error>>,
    observer: Observer<'a>,
}

/// A node that is as described.
struct Built {
    started: Option<Started>,
    ready_ns: Option<u64>,
    servers: Vec<ServerReport>,
}

impl Builder<'_> {
    /// Brings a node to the described state, unless a dependency has `failed`.
    fn build(&self, name: &Name, failed: Option<&Name>) -> Result<Built, Error> {
        let built = match failed {
            Some(after) => Err(not_started(name, after)),
            None => self.start(name).and_then(|built| self.serve(name, built)),
        };
        built.inspect_err(|error| (self.observer)(&Event::NodeFailed(error)))
    }

    fn start(&self, name: &Name) -> Result<Built, Error> {
        let step = self.steps[name];
        let ready = step.ready.as_ref();
        match &step.action {
            NodeAction::Keep | NodeAction::Remove => self.keep(name, ready),
            NodeAction::Start(request) => self.run(name, request, ready),
            NodeAction::Restart { request, .. } => match self.ended.get(name) {
                Some(Err(_)) => Err(not_replaced(name)),
                _ => self.run(name, request, ready),
            },
        }
    }

    /// A running node may not be ready yet: an earlier `insula up` may have been interrupted. After
    /// the timeout its log may be overwritten, and it counts as ready.
    fn keep(&self, name: &Name, ready: Option<&Ready>) -> Result<Built, Error> {
        (self.observer)(&Event::NodeKept(name));
        let mut ready_ns = None;
        if let Some(ready) = ready {
            let handle = node::find(self.driver, name)?;
            if !ready::has_timed_out(&handle, ready) {
                ready_ns = Some(ready::wait(self.driver, name, ready)?);
            }
        }
        Ok(Built {
            started: None,
            ready_ns,
            servers: Vec::new(),
        })
    }

    fn run(
        &self,
        name: &Name,
        request: &RunRequest,
        ready: Option<&Ready>,
    ) -> Result<Built, Error> {
        let started = supervisor::run(self.driver, self.root, request, tsc())?;
        (self.observer)(&Event::NodeStarted(&started));
        let wait = |ready| ready::wait(self.driver, name, ready);
        let ready_ns = ready.map(wait).transpose()?;
        if let Some(ready_ns) = ready_ns {
            (self.observer)(&Event::NodeReady(name, ready_ns));
        }
        Ok(Built {
            started: Some(started),
            ready_ns,
            servers: Vec::new(),
        })
    }

    /// Has a node's servers run as described, and no others of the project.
    fn serve(&self, name: &Name, mut built: Built) -> Result<Built, Error> {
        let step = self.steps[name];
        let told = |server: &Name, action| {
            (self.observer)(&Event::Server {
                node: name,
                name: server,
                action,
            });
            ServerReport {
                name: server.clone(),
                action,
            }
        };
        let (driver, root, project) = (self.driver, self.root, &step.project);
        let wanted: Vec<_> = step.servers.iter().map(|server| &server.name).collect();
        for left in servers::remove_others(driver, root, project, name, &wanted)? {
            built.servers.push(told(&left, ServerAction::Remove));
        }
        for server in &step.servers {
            let one = (name, &server.name);
            let action = servers::ensure(driver, root, project, one, &server.spec)?;
            built.servers.push(told(&server.name, action));
        }
        Ok(built)
    }
}
