//! What every machine gets: the project's own programs, module and nodes'
//! initial file system.

use std::io;

use crate::kernels::{self, FetchError, Flavour, Kernel};
use crate::module::{self, ModuleError};
use crate::node::{self, NodeInitrdError};
use crate::payload::{Content, Payload};
use crate::programs;
use crate::project;
use crate::tool::ToolError;

/// What `make demo` runs inside.
const DEMO: &[u8] = include_bytes!("../guest/demo");
/// Lists the tasks in a core file.
const TASKS: &[u8] = include_bytes!("../guest/tasks.py");
/// Where that is inside.
pub const TASKS_PATH: &str = "/payload/tasks.py";
/// Where the module is inside.
pub const MODULE_PATH: &str = "/payload/insula.ko";
/// Where the nodes' initial file system is inside.
pub const NODE_INITRD_PATH: &str = "/payload/node.cpio";
/// Where that of nodes that talk to the base is inside.
pub const PEER_INITRD_PATH: &str = "/payload/peer.cpio";

/// Why a machine could not be equipped.
#[derive(Debug, thiserror::Error)]
pub enum EquipmentError {
    /// The kernel to build the module for could not be had.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The module could not be built.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// The programs could not be built.
    #[error(transparent)]
    Programs(#[from] ToolError),
    /// The nodes' initial file system could not be made.
    #[error(transparent)]
    NodeInitrd(#[from] NodeInitrdError),
    /// The build folder could not be written.
    #[error("the build folder cannot be written: {0}")]
    Lock(#[from] io::Error),
}

/// Builds all that a machine with this base gets, as far as it has changed.
///
/// # Errors
/// When a part cannot be built.
pub fn assemble(base: Flavour, tell: &mut dyn FnMut(&str)) -> Result<Payload, EquipmentError> {
    // Cargo has a lock of its own.
    let programs = programs::build(tell)?;
    let mut payload = Payload::default();
    payload.program("bin/insula", Content::File(programs.insula));
    payload.program("bin/insula-scenario", Content::File(programs.scenario));
    payload.program("bin/insula-demo", Content::Bytes(DEMO.to_vec()));
    payload.file("lib/insula/lwk", Content::File(programs.lwk));
    payload.file("tasks.py", Content::Bytes(TASKS.to_vec()));
    let _guard = project::lock()?;
    let modules = module::build(&kernels::fetch(base, tell)?)?;
    payload.file("insula.ko", Content::File(modules.join("insula.ko")));
    let nodes = fetch_nodes(base, tell)?;
    payload.file("node.cpio", Content::Bytes(node::initrd(&nodes)?));
    let modules = nodes
        .iter()
        .map(module::build)
        .collect::<Result<Vec<_>, _>>()?;
    let peer = node::peer_initrd(&nodes, &modules, &programs.peer)?;
    payload.file("peer.cpio", Content::Bytes(peer));
    Ok(payload)
}

/// Builds what a machine gets that has the project installed: only what tests need.
///
/// # Errors
/// When a part cannot be built.
pub fn assemble_for_installed(
    base: Flavour,
    tell: &mut dyn FnMut(&str),
) -> Result<Payload, EquipmentError> {
    let programs = programs::build(tell)?;
    let mut payload = Payload::default();
    payload.program("bin/insula-scenario", Content::File(programs.scenario));
    let _guard = project::lock()?;
    let nodes = fetch_nodes(base, tell)?;
    payload.file("node.cpio", Content::Bytes(node::initrd(&nodes)?));
    Ok(payload)
}

/// All kernels that lie in /boot of a machine with this base.
fn fetch_nodes(base: Flavour, tell: &mut dyn FnMut(&str)) -> Result<Vec<Kernel>, FetchError> {
    let own = Some(base).filter(|base| !Flavour::USUAL.contains(base));
    let nodes = Flavour::USUAL.into_iter().chain(own);
    nodes.map(|flavour| kernels::fetch(flavour, tell)).collect()
}
