//! `insula move`.

use insula_driver::name::Name;
use insula_exec::program;
use insula_migrate::MoveRequest;

use super::{Context, Failure, output};

/// Moves a process to a node, or tells whether it can be moved.
pub(super) fn migrate(
    context: &Context,
    pid: i32,
    node: &Name,
    only_check: bool,
) -> Result<(), Failure> {
    let driver = context.driver()?;
    let request = MoveRequest {
        pid,
        node,
        polls: program::POLLS,
    };
    if only_check {
        insula_migrate::check(&driver, &request)?;
        return output::line(&format!("process {pid} can be moved to '{node}'"));
    }
    let moved = insula_migrate::to_node(&driver, &request)?;
    let stopped_ms = moved.stopped_for.as_secs_f64() * 1e3;
    output::line(&format!(
        "process {pid} runs on '{node}': {} threads, stopped for {stopped_ms:.1} ms",
        moved.threads
    ))
}
