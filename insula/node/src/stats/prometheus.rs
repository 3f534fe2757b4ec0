//! Statistics in the text format of Prometheus, version 0.0.4.

use std::fmt::Write;

use insula_rules::Kind;

use insula_agent::usage::Usage;

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
    busy(&mut text, &with_programs);
    cores(&mut text, &with_programs);
    calls(&mut text, &with_programs);
    usage(&mut text, nodes);
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

/// Metrics of time are in seconds.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

fn busy(text: &mut Text, nodes: &[(&str, &ProgramStats)]) {
    let samples = nodes.iter().flat_map(|(node, programs)| {
        let cores = programs.cores.iter().enumerate();
        cores.map(move |(core, stats)| {
            format!(
                "{{node=\"{node}\",core=\"{core}\"}} {}",
                seconds(stats.busy_ns)
            )
        })
    });
    let help = "Time for which a core did not idle.";
    text.metric("counter", "core_busy_seconds_total", help, samples);
}

/// A metric of Linux nodes: its kind, name and description, and its value.
type OfLinux = (&'static str, &'static str, &'static str, fn(&Usage) -> u64);

const OF_LINUX: [OfLinux; 5] = [
    (
        "gauge",
        "node_memory_available_bytes",
        "Memory that a node's Linux can still give to programs.",
        |usage| usage.memory_available_bytes,
    ),
    (
        "counter",
        "node_network_receive_bytes_total",
        "Bytes that a node's network cards have received.",
        |usage| usage.network.in_bytes,
    ),
    (
        "counter",
        "node_network_transmit_bytes_total",
        "Bytes that a node's network cards have sent.",
        |usage| usage.network.out_bytes,
    ),
    (
        "counter",
        "node_disk_read_bytes_total",
        "Bytes that a node has read from its disks.",
        |usage| usage.disks.in_bytes,
    ),
    (
        "counter",
        "node_disk_written_bytes_total",
        "Bytes that a node has written to its disks.",
        |usage| usage.disks.out_bytes,
    ),
];

/// What nodes have used, as far as it is known.
fn usage(text: &mut Text, nodes: &[NodeStats]) {
    let samples = nodes.iter().filter_map(|node| {
        Some(format!(
            "{{node=\"{}\"}} {}",
            node.name,
            seconds(node.cpu_ns()?)
        ))
    });
    let help = "Time for which a node's cores worked, all together.";
    text.metric("counter", "node_cpu_seconds_total", help, samples);
    for (kind, name, help, of) in OF_LINUX {
        let samples = nodes.iter().filter_map(|node| {
            let usage = node.usage.as_ref()?;
            Some(format!("{{node=\"{}\"}} {}", node.name, of(usage)))
        });
        text.metric(kind, name, help, samples);
    }
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
        let usage = Some(Usage {
            cpu_ns: 1_500_000_000,
            memory_available_bytes: 4096,
            ..Usage::default()
        });
        let linux = NodeStats {
            name: "web".into(),
            programs: None,
            usage,
            ..node()
        };
        insta::assert_snapshot!(prometheus(&[node(), linux]));
    }

    /// Each metric that the dashboard of Grafana names is there.
    #[test]
    fn the_dashboard_shows_what_there_is() {
        let dashboard = include_str!("../../../../docs/src/grafana.json");
        let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
        let panels = dashboard["panels"].as_array().unwrap();
        let targets = panels
            .iter()
            .flat_map(|panel| panel["targets"].as_array().unwrap());
        let queries: Vec<_> = targets.map(|one| one["expr"].as_str().unwrap()).collect();
        assert!(queries.len() >= panels.len());
        let metrics = prometheus(&[]);
        for query in queries {
            let is_name = |word: &&str| word.starts_with("insula_");
            let words = query.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            let named: Vec<_> = words.filter(is_name).collect();
            assert!(!named.is_empty(), "{query}");
            for name in named {
                assert!(metrics.contains(&format!("# TYPE {name} ")), "{name}");
            }
        }
    }
}
