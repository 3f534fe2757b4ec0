//! `insula move`.

use insula_driver::name::Name;
use insula_exec::program;
use insula_migrate::{MoveRequest, Moved};

use super::cli::Movable;
use super::{Context, Failure, container, output};

/// Stands for the base in place of a node.
const BASE: &str = "base";

/// Moves a process or a container to a node, or tells whether it can be moved.
pub(super) fn migrate(
    context: &Context,
    what: &Movable,
    node: &Name,
    only_check: bool,
) -> Result<(), Failure> {
    match what {
        Movable::Process(pid) => move_process(context, *pid, node, only_check),
        Movable::Container(name) => container::migrate(context, name, node, only_check),
    }
}

fn move_process(context: &Context, pid: i32, node: &Name, only_check: bool) -> Result<(), Failure> {
    if node.as_str() == BASE && !only_check {
        return told(pid, node, insula_migrate::to_base(pid)?);
    }
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
    told(pid, node, insula_migrate::to_node(&driver, &request)?)
}

fn told(pid: i32, node: &Name, moved: Moved) -> Result<(), Failure> {
    let stopped_ms = moved.stopped_for.as_secs_f64() * 1e3;
    output::line(&format!(
        "process {pid} runs on '{node}': {} threads, stopped for {stopped_ms:.1} ms",
        moved.threads
    ))
}
