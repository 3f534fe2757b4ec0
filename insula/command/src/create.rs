//! `insula create`, and what other commands do for nodes that were not started yet.

use std::path::PathBuf;

use insula_base::error::Error;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node::{self as node, CreatedNode, NodeSpec, NodeView};
use insula_supervisor as supervisor;
use serde::Serialize;

use super::cli::Create;
use super::node::{note_started, request};
use super::{Context, Failure, container, exec, output};

/// Writes down what a node is to be, and prints its name.
pub(super) fn create(context: &Context, options: Create) -> Result<(), Failure> {
    if exec::is_once(&options.node) {
        return Err(runs_once().into());
    }
    let request = request(options.node)?;
    container::check_name(context, request.name.as_ref())?;
    let created = node::create(&context.driver()?, &context.root, &request)?;
    match options.json {
        true => output::json(&created.view()),
        false => output::line(created.name.as_str()),
    }
}

/// The error of a program on a node of the lightweight kernel that is started for it alone.
fn runs_once() -> Error {
    Error::new("a node of the lightweight kernel is created without a program")
        .untouched()
        .about("program")
        .hint("leave it out, and run programs there with `insula exec`")
}

/// The node of that name that was created, if there is one.
pub(super) fn find(context: &Context, name: &Name) -> Result<Option<CreatedNode>, Failure> {
    Ok(node::find_created(&context.driver()?, &context.root, name)?)
}

/// Removes the node of that name, if it was only created; also one whose file cannot be read.
pub(super) fn remove(context: &Context, name: &Name) -> Result<bool, Failure> {
    let is_created = node::is_created(&context.driver()?, &context.root, name)?;
    if is_created {
        node::remove_created(&context.root, name)?;
    }
    Ok(is_created)
}

/// Names of all nodes that were created.
pub(super) fn names(context: &Context) -> Result<Vec<Name>, Failure> {
    let all = node::created(&context.driver()?, &context.root)?;
    Ok(all.into_iter().map(|one| one.name).collect())
}

/// What `ps` shows of them.
pub(super) fn views(driver: &Driver, context: &Context) -> Result<Vec<NodeView>, Failure> {
    let all = node::created(driver, &context.root)?;
    Ok(all.iter().map(CreatedNode::view).collect())
}

/// Starts a node for the first time.
pub(super) fn start(context: &Context, node: &CreatedNode) -> Result<(), Failure> {
    let (driver, request) = (context.driver()?, node.request()?);
    let started = supervisor::run(&driver, &context.root, &request, context.start_tsc)?;
    if started.is_copy {
        super::snapshot::rename(&driver, &started)?;
    }
    note_started(&started);
    Ok(())
}

/// What `inspect` shows of a node that was not started yet.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct CreatedDetails {
    #[serde(flatten)]
    view: NodeView,
    /// The kernel's file, of a node without an image.
    kernel: Option<PathBuf>,
    /// The initrd's file.
    initrd: Option<PathBuf>,
    /// What it is to be.
    spec: NodeSpec,
    /// When it was created, in seconds since 1970.
    created_unix_s: u64,
}

impl From<CreatedNode> for CreatedDetails {
    fn from(node: CreatedNode) -> Self {
        Self {
            view: node.view(),
            kernel: node.kernel,
            initrd: node.initrd,
            spec: node.spec,
            created_unix_s: node.created_unix_s,
        }
    }
}
