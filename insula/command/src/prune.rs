//! `insula prune` and `insula image prune`.

use std::process::ExitCode;

use insula_driver::name::Name;
use insula_node::{Handle, NodeView};

use super::node::{observe_all, remove};
use super::ps::{Filter, Filters};
use super::targets::Targets;
use super::{Context, Failure, container, create, image};

/// State of a container that does not run any more.
const EXITED: &str = "exited";

/// Removes all containers that have ended, and all nodes that have stopped or were not started yet, and prints their names.
pub(super) fn prune(context: &Context, filters: &[Filter]) -> Result<ExitCode, Failure> {
    let driver = context.driver()?;
    let (handles, filters) = (observe_all(&driver)?, Filters(filters));
    let mut containers = container::list(context, &handles)?;
    containers.retain(|one| one.state == EXITED && filters.have_container(one));
    let stopped = handles
        .iter()
        .filter(|node| node.is_stopped() && !node.is_restarting());
    let mut nodes: Vec<_> = stopped.map(Handle::view).collect();
    nodes.extend(create::views(&driver, context)?);
    nodes.retain(|node| filters.have_node(node));
    let containers = containers.into_iter().map(|one| Ok(one.record.name));
    let nodes = nodes.iter().map(|node| node.name.parse());
    let names = containers.chain(nodes).collect::<Result<Vec<Name>, _>>()?;
    Targets::listed(names).each(|name| remove(context, name, false))
}

/// Removes all images of which there is no node, and prints their names.
pub(super) fn prune_images(context: &Context) -> Result<ExitCode, Failure> {
    let driver = context.driver()?;
    let mut nodes: Vec<NodeView> = observe_all(&driver)?.iter().map(Handle::view).collect();
    nodes.extend(create::views(&driver, context)?);
    let is_used = |name: &Name| {
        let mut used = nodes.iter().filter_map(|node| node.image.as_deref());
        used.any(|image| image == name.as_str())
    };
    let mut names = image::names(&driver)?;
    names.retain(|name| !is_used(name));
    Targets::listed(names).each(|name| image::remove(context, name))
}
