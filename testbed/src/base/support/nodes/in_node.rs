//! Images of nodes with an agent, and commands in such nodes.

use std::fs;
use std::process::Command;

use crate::base::support::insula_command::{Answer, insula, try_insula, try_insula_in_time};
use crate::base::{Context, Finding};
use crate::host::payload::equipment::MODULES_PATH;

/// Builds the image `name` from the installed kernel whose version starts with `version`.
pub(crate) fn build_image(
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

/// Runs a script in a node. Returns its status and output.
pub(crate) fn script(node: &str, script: &str) -> Result<(i32, String), Finding> {
    Ok(status_and_output(node, try_insula(&exec(node, script))?))
}

/// The same for a script that ends within seconds, unless the node's devices do not work.
pub(crate) fn short_script(node: &str, script: &str) -> Result<(i32, String), Finding> {
    Ok(status_and_output(
        node,
        try_insula_in_time(&exec(node, script))?,
    ))
}

fn exec<'a>(node: &'a str, script: &'a str) -> [&'a str; 6] {
    ["exec", node, "--", "/bin/sh", "-c", script]
}

fn status_and_output(node: &str, answer: Answer) -> (i32, String) {
    if !answer.error_output.is_empty() {
        println!("  {node}: {}", answer.error_output);
    }
    (answer.status.unwrap_or(-1), answer.output)
}

/// Checksum of a file of the base, in the format of `sha256sum` for standard input.
pub(crate) fn sum_of(file: &str) -> Result<String, Finding> {
    let output = Command::new("sha256sum")
        .stdin(fs::File::open(file)?)
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
