//! Statistics in the text format of Prometheus, version 0.0.4.

use std::fmt::Write;

use insula_rules::Kind;

use super::{CallStats, CoreStats, NodeStats, ProgramStats};

/// Formats the statistics of these nodes. Metrics without samples are declared nevertheless.
#[must_use]
pub fn prometheus(nodes: &[NodeStats]) -> String {
    let mut text = Text::default();
    node_gauges(&mut text, nodes);
    findings(&mut text, nodes);
    let with_programs: Vec<_> = nodes
        .iter()
        .filter_map(|node| Some((node.name.as_str(), node.programs.as_ref()?)))
        .collect();
    processes(&mut text, &with_programs);
    cores(&mut text, &with_programs);
    calls(&mut text, &with_programs);
    text.0
}

/// The output so far.
#[derive(Default)]
struct Text(String);

impl Text {
    /// Appends a metric with its samples, each labels and a value.
    fn metric(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        samples: impl Iterator<Item = String>,
    ) {
        // Writing to a string does not fail.
        let _ = writeln!(
            self.0,
            "# HELP insula_{name} {help}\n# TYPE insula_{name} {kind}"
        );
        for sample in samples {
            let _ = writeln!(self.0, "insula_{name}{sample}");
        }
    }
}

fn node_gauges(text: &mut Text, nodes: &[NodeStats]) {
    let mut gauge = |name, help, of: fn(&NodeStats) -> u64| {
        let sample = |node: &NodeStats| format!("{{node=\"{}\"}} {}", node.name, of(node));
        text.metric("gauge", name, help, nodes.iter().map(sample));
    };
    gauge("node_cpus", "Cores of a node.", |node| node.cpus as u64);
    gauge("node_memory_bytes", "Memory of a node.", |node| {
        node.memory_bytes
    });
    gauge("node_running", "Whether a node runs.", |node| {
        u64::from(node.state == "running")
    });
}

/// Of watched nodes all kinds: those that are not found count 0.
fn findings(text: &mut Text, nodes: &[NodeStats]) {
    let samples = nodes.iter().flat_map(|node| {
        let found = node.findings.iter();
        found.flat_map(move |found| {
            Kind::ALL.into_iter().map(move |kind| {
                let count = found.iter().filter(|one| one.kind == kind).count();
                format!(
                    "{{node=\"{}\",kind=\"{}\"}} {count}",
                    node.name,
                    kind.name()
                )
            })
        })
    });
    let help = "What a node's watcher finds wrong with its kernel.";
    text.metric("gauge", "node_findings", help, samples);
}

fn processes(text: &mut Text, nodes: &[(&str, &ProgramStats)]) {
    let samples = nodes
        .iter()
        .map(|(node, programs)| format!("{{node=\"{node}\"}} {}", programs.processes));
    let help = "Processes on a node of the lightweight kernel.";
    text.metric("gauge", "processes", help, samples);
}

fn cores(text: &mut Text, nodes: &[(&str, &ProgramStats)]) {
    for (index, (name, help, _)) in CoreStats::default().named().into_iter().enumerate() {
        let samples = nodes.iter().flat_map(|(node, programs)| {
            let cores = programs.cores.iter().enumerate();
            cores.map(move |(core, stats)| {
                let count = stats.named()[index].2;
                format!("{{node=\"{node}\",core=\"{core}\"}} {count}")
            })
        });
        text.metric("counter", &format!("{name}_total"), help, samples);
    }
}

fn calls(text: &mut Text, nodes: &[(&str, &ProgramStats)]) {
    let samples = nodes.iter().flat_map(|(node, programs)| {
        programs.calls.iter().map(move |call| {
            let CallStats {
                name,
                delegated,
                count,
            } = call;
            format!("{{node=\"{node}\",call=\"{name}\",delegated=\"{delegated}\"}} {count}")
        })
    });
    text.metric(
        "counter",
        "system_calls_total",
        "System calls of programs.",
        samples,
    );
}

#[cfg(test)]
mod tests {
    use super::super::tests::node;
    use super::*;

    #[test]
    fn prometheus_can_read_it() {
        insta::assert_snapshot!(prometheus(&[node()]));
    }
}
