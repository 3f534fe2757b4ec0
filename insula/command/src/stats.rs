//! `insula stats`.

use insula_base::units::Size;
use insula_node::stats::{self, NodeStats};

use super::cli::Stats;
use super::{Context, Failure, node, output};
use crate::report::{Align, Table};

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
    Ok(handles.iter().map(stats::of).collect::<Result<_, _>>()?)
}

fn table(nodes: &[NodeStats]) -> Table {
    let right = |name| (name, Align::Right);
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("STATE", Align::Left),
        right("CPUS"),
        right("MEMORY"),
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
                .map_or_else(|| "-".to_owned(), |total| of(total).to_string())
        };
        let programs = node.programs.as_ref();
        let processes = programs.map_or_else(|| "-".to_owned(), |one| one.processes.to_string());
        let calls = node.programs.iter().flat_map(|programs| &programs.calls);
        let names: Vec<_> = calls.take(3).map(|call| call.name).collect();
        table.row([
            node.name.clone(),
            node.state.to_owned(),
            node.cpus.to_string(),
            Size(node.memory_bytes).to_string(),
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
