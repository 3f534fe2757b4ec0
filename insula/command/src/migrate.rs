//! `insula move`.

use insula_base::error::Error;
use insula_driver::name::Name;
use insula_exec::container::PreCopy;
use insula_exec::program;
use insula_migrate::{MoveRequest, Moved};

use super::cli::{Movable, Move};
use super::{Context, Failure, container, output};

/// Stands for the base in place of a node.
const BASE: &str = "base";

/// Moves a process or a container to a node, or tells whether it can be moved.
pub(super) fn migrate(context: &Context, options: &Move) -> Result<(), Failure> {
    match &options.what {
        Movable::Process(_) if options.pre_copy() != PreCopy::Auto => {
            Err(Failure::from(not_copied()))
        }
        Movable::Process(pid) => move_process(context, *pid, &options.name, options.check),
        Movable::Container(name) => container::migrate(context, name, options),
    }
}

pub(super) fn not_copied() -> Error {
    Error::new("a process keeps its memory when it is moved")
        .untouched()
        .hint("leave out --pre-copy and --no-pre-copy, which are for containers")
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
