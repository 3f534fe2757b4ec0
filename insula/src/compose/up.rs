//! Doing what was planned.

use std::collections::BTreeMap;
use std::time::Duration;

use super::deed::{Event, NodeError, Report, Tell};
use super::images::{ImageDeed, ImageStep};
use super::nodes::{NodeDeed, NodeStep};
use super::plan::Plan;
use super::project::Ready;
use super::ready;
use super::schedule::side_by_side;
use super::take_down::take_down;
use crate::driver::{Driver, tsc};
use crate::image::{self, AddError};
use crate::name::Name;
use crate::node::{self, RunRequest, Started};
use crate::root::Root;
use crate::supervisor;

/// Why the images are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// One was not added.
    #[error("{0}\nno node was touched; images that were added before it are kept")]
    Add(#[from] AddError),
    /// One that is asked for no more was not removed.
    #[error(transparent)]
    Remove(#[from] image::RemoveError),
}

/// Does what was planned: images first, then what must go, then what is to come, nodes side by side
/// in the order of their dependencies. A node has `patience` to switch itself off. A node that fails
/// keeps back those that come after it, and no others.
///
/// # Errors
/// [`UpError`]; what came of each node is in the report.
pub fn up(
    driver: &Driver,
    root: &Root,
    plan: Plan,
    patience: Duration,
    tell: Tell,
) -> Result<Report, UpError> {
    let mut report = plan.report();
    // What was read of their files is not needed any more: the nodes may need the memory.
    let mut images = plan.images.into_iter();
    images.try_for_each(|step| put(driver, &step, tell))?;
    let ended = side_by_side(&plan.farewell, |name, _| {
        take_down(driver, name, patience, tell)
    });
    let steps = plan.nodes.iter().map(|step| (&step.name, step)).collect();
    let builder = Builder {
        driver,
        root,
        steps,
        ended: &ended,
        tell,
    };
    let built = side_by_side(&plan.waits, |name, failed| builder.build(name, failed));
    for node in &mut report.nodes {
        match built.get(&node.name) {
            Some(Ok(built)) => {
                node.started.clone_from(&built.started);
                node.ready_ns = built.ready_ns;
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

/// Does to an image what was planned.
fn put(driver: &Driver, step: &ImageStep, tell: Tell) -> Result<(), UpError> {
    let name = &step.name;
    match &step.deed {
        ImageDeed::Keep => {}
        ImageDeed::Add(prepared) => {
            prepared.keep(driver)?;
            tell(&Event::ImageAdded(name));
        }
        ImageDeed::Replace(prepared) => {
            prepared.replace(driver)?;
            tell(&Event::ImageReplaced(name));
        }
        ImageDeed::Remove => {
            image::remove(driver, name)?;
            tell(&Event::ImageRemoved(name));
        }
    }
    Ok(())
}

/// Starts nodes and waits until they are ready.
struct Builder<'a> {
    driver: &'a Driver,
    root: &'a Root,
    steps: BTreeMap<&'a Name, &'a NodeStep>,
    /// What came of those that had to go.
    ended: &'a BTreeMap<Name, Result<(), NodeError>>,
    tell: Tell<'a>,
}

/// A node that is as it should be.
struct Built {
    started: Option<Started>,
    ready_ns: Option<u64>,
}

impl Builder<'_> {
    /// Brings a node up, unless one that it comes after has `failed`.
    fn build(&self, name: &Name, failed: Option<&Name>) -> Result<Built, NodeError> {
        let built = match failed {
            Some(after) => Err(NodeError::NotStarted {
                name: name.clone(),
                after: after.clone(),
            }),
            None => self.start(name),
        };
        built.inspect_err(|error| (self.tell)(&Event::NodeFailed(error)))
    }

    fn start(&self, name: &Name) -> Result<Built, NodeError> {
        let step = self.steps[name];
        let ready = step.ready.as_ref();
        match &step.deed {
            NodeDeed::Keep | NodeDeed::Remove => self.keep(name, ready),
            NodeDeed::Start(request) => self.run(name, request, ready),
            NodeDeed::Restart { request, .. } => match self.ended.get(name) {
                Some(Err(_)) => Err(NodeError::NotReplaced(name.clone())),
                _ => self.run(name, request, ready),
            },
        }
    }

    /// One that runs may still be on its way to being ready: an `insula up` before this one may have
    /// been broken off. When its time is over, what it said may be overwritten, and it counts as
    /// ready.
    fn keep(&self, name: &Name, ready: Option<&Ready>) -> Result<Built, NodeError> {
        (self.tell)(&Event::NodeKept(name));
        let mut ready_ns = None;
        if let Some(ready) = ready {
            let handle = node::find(self.driver, name).map_err(ready::ReadyError::from)?;
            if !ready::has_had(&handle, ready) {
                ready_ns = Some(ready::wait(self.driver, name, ready)?);
            }
        }
        Ok(Built {
            started: None,
            ready_ns,
        })
    }

    fn run(
        &self,
        name: &Name,
        request: &RunRequest,
        ready: Option<&Ready>,
    ) -> Result<Built, NodeError> {
        let started = supervisor::run(self.driver, self.root, request, tsc())?;
        (self.tell)(&Event::NodeStarted(&started));
        let wait = |ready| ready::wait(self.driver, name, ready);
        let ready_ns = ready.map(wait).transpose()?;
        if let Some(ready_ns) = ready_ns {
            (self.tell)(&Event::NodeReady(name, ready_ns));
        }
        Ok(Built {
            started: Some(started),
            ready_ns,
        })
    }
}
