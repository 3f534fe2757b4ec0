//! `insula stats`.

use insula_agent::usage::{Traffic, Usage};
use insula_base::units::Size;
use insula_driver::Driver;
use insula_exec::agent::add_usage;
use insula_node::Handle;
use insula_node::stats::{self, NodeStats};

use super::cli::Stats;
use super::{Context, Failure, node, output};
use crate::report::{Align, Table, duration};

pub(super) fn stats(context: &Context, options: &Stats) -> Result<(), Failure> {
    let nodes = gather(context, options)?;
    if options.json {
        output::json(&nodes)
    } else if options.prometheus {
        output::print(&stats::prometheus(&nodes))
    } else {
        output::print(&table(&nodes).to_string())
    }
}

/// Statistics of these nodes now.
pub(super) fn of(driver: &Driver, nodes: &[Handle]) -> Result<Vec<NodeStats>, Failure> {
    let (machine, _) = driver.machine()?;
    let stats = nodes.iter().map(|node| stats::of(node, machine.tsc_khz));
    let mut stats = stats.collect::<Result<Vec<_>, _>>()?;
    add_usage(driver, &mut stats);
    Ok(stats)
}

/// Statistics of all nodes, or of those named.
fn gather(context: &Context, options: &Stats) -> Result<Vec<NodeStats>, Failure> {
    let driver = context.driver()?;
    let handles = match options.names.as_slice() {
        [] => node::all(&driver)?,
        names => {
            let found = names.iter().map(|name| node::find(&driver, name));
            found.collect::<Result<_, _>>()?
        }
    };
    of(&driver, &handles)
}

/// What is not known.
fn none() -> String {
    "-".to_owned()
}

/// Memory that is used, if that is known, of all.
fn memory(node: &NodeStats) -> String {
    let all = Size(node.memory_bytes);
    match node.usage {
        Some(Usage {
            memory_bytes,
            memory_available_bytes,
            ..
        }) => {
            let used = memory_bytes.saturating_sub(memory_available_bytes);
            format!("{} / {all}", Size(used))
        }
        None => all.to_string(),
    }
}

fn traffic(traffic: Traffic) -> String {
    format!("{} / {}", Size(traffic.in_bytes), Size(traffic.out_bytes))
}

fn table(nodes: &[NodeStats]) -> Table {
    let right = |name| (name, Align::Right);
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("STATE", Align::Left),
        right("CPUS"),
        right("CPU TIME"),
        right("MEMORY"),
        right("NET IO"),
        right("DISK IO"),
        right("PROCESSES"),
        right("LOCAL CALLS"),
        right("DELEGATED"),
        right("FAULTS"),
        right("RINGS"),
        ("MOST CALLED", Align::Left),
    ]);
    for node in nodes {
        let total = node.programs.as_ref().map(stats::ProgramStats::total);
        let count = |of: fn(&stats::CoreStats) -> u64| {
            total
                .as_ref()
                .map_or_else(none, |total| of(total).to_string())
        };
        let programs = node.programs.as_ref();
        let processes = programs.map_or_else(none, |one| one.processes.to_string());
        let calls = node.programs.iter().flat_map(|programs| &programs.calls);
        let names: Vec<_> = calls.take(3).map(|call| call.name).collect();
        table.row([
            node.name.clone(),
            node.state.to_owned(),
            node.cpus.to_string(),
            node.cpu_ns().map_or_else(none, duration),
            memory(node),
            node.usage.map_or_else(none, |usage| traffic(usage.network)),
            node.usage.map_or_else(none, |usage| traffic(usage.disks)),
            processes,
            count(|total| total.local_calls),
            count(|total| total.delegated_calls),
            count(|total| total.faults),
            count(|total| total.rings),
            names.join(" "),
        ]);
    }
    table
}
