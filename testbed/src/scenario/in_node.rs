//! Images of nodes that one can live in, and what is done in such a node.

use std::fs;
use std::process::Command;

use super::insula_command::{ask, insula};
use super::{Context, Finding};
use crate::equipment::MODULES_PATH;

/// Builds the image of that name from the installed kernel whose version begins with `version`.
pub(super) fn build_image(
    context: &Context,
    name: &str,
    version: &str,
    options: &[&str],
) -> Result<(), Finding> {
    let release = context.release(version)?;
    let modules = format!("{MODULES_PATH}/{release}");
    let build = ["image", "build", name];
    let kernel = ["--installed", &release, "--module-folder", &modules];
    insula(&[&build, &kernel[..], options].concat()).map(drop)
}

/// Runs a script in a node. Answers its status and output.
pub(super) fn script(node: &str, script: &str) -> Result<(i32, String), Finding> {
    let answer = ask(&["exec", node, "--", "/bin/sh", "-c", script])?;
    if !answer.complaint.is_empty() {
        println!("  {node}: {}", answer.complaint);
    }
    Ok((answer.status.unwrap_or(-1), answer.output))
}

/// The sum of a file of the base, as `sha256sum` in a node tells it of its input.
pub(super) fn sum_of(file: &str) -> Result<String, Finding> {
    let told = Command::new("sha256sum")
        .stdin(fs::File::open(file)?)
        .output()?;
    Ok(String::from_utf8_lossy(&told.stdout).into_owned())
}
