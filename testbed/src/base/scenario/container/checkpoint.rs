//! A container is written to a folder and goes on from there under another kernel, with its connections;
//! plain CRIU restores what Insula has written, Insula what plain CRIU has. Folders that are damaged, or
//! made to deceive, are refused, and leave nothing.

mod killed;
mod plain;
mod refused;
mod whole;

use std::fs;
use std::path::Path;

use super::move_linux::{build_image, run_node};
use crate::base::support::insula_command::{insula, try_insula, wait_for, with_cleanup};
use crate::base::support::virtio_modules::{NETWORK_MODULES, SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "checkpoint",
    proves: "containers go on from folders of CRIU's images, ours and others', or nothing is left",
    machine: Shape {
        emulator: Emulator::Backports,
        thread_per_core: true,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: std::time::Duration::from_secs(900),
    soak_limit: Some(std::time::Duration::from_secs(2 * 3600)),
    play,
};

/// The nodes, by their kernels' versions.
const OLD: &str = "6.1";
const NEW: &str = "6.12";
/// Folder of the checkpoints.
const FOLDER: &str = "/var/tmp/checkpoint";

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    fs::create_dir_all(FOLDER)?;
    let played = with_cleanup(|| played(context));
    fs::remove_dir_all(FOLDER)?;
    played?;
    unload(&[&NETWORK_MODULES[..], &SOCKET_MODULES].concat())
}

fn played(context: &Context) -> Result<(), Finding> {
    for version in [OLD, NEW] {
        run_node(version, &build_image(context, version)?)?;
    }
    let ours = whole::play()?;
    let others = plain::play(context, &ours)?;
    refused::play(context, &ours, &others)?;
    [OLD, NEW]
        .iter()
        .try_for_each(|node| insula(&["rm", "--force", node]).map(drop))
}

/// Path of a checkpoint.
fn place(name: &str) -> String {
    format!("{FOLDER}/{name}")
}

/// Executes a script in a node.
fn on(node: &str, script: &str) -> Result<String, Finding> {
    insula(&["exec", node, "--", "sh", "-ec", script])
}

/// A node and the base have nothing of a container.
fn is_nowhere(node: &str, name: &str) -> Result<(), Finding> {
    try_insula(&["inspect", name])?.refused(1, &["no node"])?;
    has_nothing(node, name)
}

/// A node has nothing of a container.
fn has_nothing(node: &str, name: &str) -> Result<(), Finding> {
    let list = "ls /sys/fs/cgroup/insula /run/insula/containers 2>/dev/null; true";
    wait_for(
        &format!("the node {node} to have nothing of {name}"),
        || {
            let left = on(node, list)?;
            Ok((!left.lines().any(|line| line == name)).then_some(()))
        },
    )
}

/// Copies a folder of files.
fn copied(from: &str, name: &str) -> Result<String, Finding> {
    let to = place(name);
    if Path::new(&to).exists() {
        fs::remove_dir_all(&to)?;
    }
    fs::create_dir(&to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), Path::new(&to).join(entry.file_name()))?;
    }
    Ok(to)
}
