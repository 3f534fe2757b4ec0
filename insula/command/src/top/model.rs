//! State of `insula top`: the last two samples of the nodes, the selected node, and whether its servers are shown.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use insula_abi::{Cpu, CpuOwner};
use insula_node::stats::NodeStats;
use insula_servers::{ServedEndpoint, ServerView};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// How the machine's cores are distributed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cores {
    pub(super) all: usize,
    pub(super) in_nodes: usize,
    pub(super) in_pool: usize,
}

impl Cores {
    pub(super) fn of(cpus: &[Cpu]) -> Self {
        let owned = |owner: CpuOwner| cpus.iter().filter(|cpu| cpu.owner == owner).count();
        Self {
            all: cpus.len(),
            in_nodes: owned(CpuOwner::NODE),
            in_pool: owned(CpuOwner::POOL),
        }
    }
}

/// What was read at one moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) cores: Cores,
    /// Counts since each node's start.
    pub(super) nodes: Vec<NodeStats>,
    /// Servers of one node at most.
    pub(super) servers: Vec<ServerView>,
}

/// The last sample, the changes since the one before, and the selection.
#[derive(Debug)]
pub(super) struct Model {
    last: Sample,
    /// The nodes of the last sample, with their counts since the sample before.
    changes: Vec<NodeStats>,
    /// The same of the servers.
    server_changes: Vec<ServerView>,
    shows_servers: bool,
    /// Time between the last two samples.
    elapsed: Duration,
    /// Name of the selected node, since nodes come and go; without a node of that name, the first
    /// is selected.
    selected: Option<String>,
}

impl Model {
    pub(super) fn new(first: Sample) -> Self {
        let mut model = Self {
            changes: Vec::new(),
            server_changes: Vec::new(),
            shows_servers: false,
            elapsed: Duration::ZERO,
            selected: None,
            last: first.clone(),
        };
        model.add(first);
        model
    }

    /// Adds the next sample. All counts of a new node count as changes.
    pub(super) fn add(&mut self, next: Sample) {
        let earlier = |name: &str| self.last.nodes.iter().find(|node| node.name == name);
        let change =
            |node: &NodeStats| earlier(&node.name).map_or(node.clone(), |then| node.since(then));
        self.changes = next.nodes.iter().map(change).collect();
        let servers = next.servers.iter();
        self.server_changes = servers.map(|one| server_change(one, &self.last)).collect();
        self.elapsed = next.at - self.last.at;
        self.last = next;
    }

    /// Handles a key; returns whether to go on.
    pub(super) fn handle_key(&mut self, key: KeyEvent) -> ControlFlow<()> {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            _ if key.kind == KeyEventKind::Release => {}
            KeyCode::Char('q') | KeyCode::Esc => return ControlFlow::Break(()),
            KeyCode::Char('c') if control => return ControlFlow::Break(()),
            KeyCode::Down | KeyCode::Char('j') => self.select(|at| at + 1),
            KeyCode::Up | KeyCode::Char('k') => self.select(|at| at.saturating_sub(1)),
            KeyCode::Char('s') => self.shows_servers = !self.shows_servers,
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn select(&mut self, step: fn(usize) -> usize) {
        let Some(at) = self.selected() else { return };
        let to = step(at).min(self.changes.len() - 1);
        self.selected = Some(self.changes[to].name.clone());
    }

    /// Index of the selected node; `None` if there is no node.
    pub(super) fn selected(&self) -> Option<usize> {
        let is_it = |node: &NodeStats| Some(&node.name) == self.selected.as_ref();
        let found = self.changes.iter().position(is_it);
        found.or((!self.changes.is_empty()).then_some(0))
    }

    /// Name of the node whose servers are shown, if they are.
    pub(super) fn node_of_servers(&self) -> Option<&str> {
        let node = &self.changes[self.selected()?];
        let has_servers = self.shows_servers && node.programs.is_some();
        has_servers.then_some(node.name.as_str())
    }

    /// The servers of that node, with their counts between the last two samples. They may not be known yet.
    pub(super) fn servers(&self) -> impl Iterator<Item = &ServerView> {
        let node = self.node_of_servers();
        let servers = self.server_changes.iter();
        servers.filter(move |one| Some(one.node.as_str()) == node)
    }

    /// The nodes, with their counts between the last two samples.
    pub(super) fn nodes(&self) -> &[NodeStats] {
        &self.changes
    }

    pub(super) fn cores(&self) -> Cores {
        self.last.cores
    }

    /// Percentage of a core's time, of a time between the last two samples.
    pub(super) fn percent(&self, ns: u64) -> f64 {
        self.per_second(ns) / 1e7
    }

    /// Rate a second of a count between the last two samples.
    pub(super) fn per_second(&self, count: u64) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        // No count comes near 2^52.
        #[expect(clippy::cast_precision_loss)]
        if seconds > 0.0 {
            count as f64 / seconds
        } else {
            0.0
        }
    }

    /// Age of the last sample.
    pub(super) fn age(&self) -> Duration {
        self.last.at.elapsed()
    }
}

/// A server with its counts since a sample; with none if it was not in it, or runs anew.
fn server_change(now: &ServerView, earlier: &Sample) -> ServerView {
    let mut earlier = earlier.servers.iter();
    let before = earlier.find(|one| (&one.node, &one.name) == (&now.node, &now.name));
    let before = before.and_then(|one| one.endpoint.as_ref());
    let mut change = now.clone();
    if let Some(endpoint) = &mut change.endpoint {
        let before = before.filter(|before| before.pid == endpoint.pid);
        let since = |now: u64, of: fn(&ServedEndpoint) -> u64| {
            before.map_or(0, |before| now.saturating_sub(of(before)))
        };
        endpoint.received = since(endpoint.received, |one| one.received);
        endpoint.crossings = since(endpoint.crossings, |one| one.crossings);
        endpoint.busy_ns = since(endpoint.busy_ns, |one| one.busy_ns);
    }
    change
}

#[cfg(test)]
pub(super) mod tests {
    use insula_agent::usage::{Traffic, Usage};
    use insula_node::stats::{CallStats, CoreStats, ProgramStats};

    use super::*;

    fn lightweight(name: &str, rounds: u64) -> NodeStats {
        let core = CoreStats {
            local_calls: 1500 * rounds,
            delegated_calls: 20 * rounds,
            faults: rounds / 2,
            switches: 3 * rounds,
            rings: 20 * rounds,
            busy_ns: 250_000_000 * rounds,
            ..CoreStats::default()
        };
        let call = |name, delegated, count| CallStats {
            name,
            delegated,
            count,
        };
        let calls = vec![
            call("futex", false, 2990 * rounds),
            call("read", true, 40 * rounds),
        ];
        NodeStats {
            name: name.to_owned(),
            state: "running",
            cpus: 2,
            memory_bytes: 512 << 20,
            ran_ns: 1_000_000_000 * (300 + rounds),
            findings: None,
            programs: Some(ProgramStats {
                processes: 1,
                cores: vec![core; 2],
                calls,
            }),
            usage: None,
        }
    }

    fn stock(name: &str, state: &'static str) -> NodeStats {
        NodeStats {
            state,
            programs: None,
            ..lightweight(name, 0)
        }
    }

    fn used(name: &str, rounds: u64) -> NodeStats {
        let traffic = |in_bytes, out_bytes| Traffic {
            in_bytes,
            out_bytes,
        };
        NodeStats {
            usage: Some(Usage {
                cpu_ns: 900_000_000 * rounds,
                memory_bytes: 480 << 20,
                memory_available_bytes: 300 << 20,
                network: traffic(rounds << 20, rounds << 10),
                disks: traffic(0, rounds << 12),
            }),
            ran_ns: 1_000_000_000 * (300 + rounds),
            ..stock(name, "running")
        }
    }

    fn server(name: &str, pid: Option<u32>, rounds: u64) -> ServerView {
        ServerView {
            node: "quiet".to_owned(),
            name: name.to_owned(),
            state: "running",
            endpoint: Some(ServedEndpoint {
                name: name.to_owned(),
                pid,
                threads: 1,
                waiting: 1,
                queued: 3,
                served: 1,
                received: 500 * rounds,
                crossings: 20 * rounds,
                interrupts: 0,
                busy_ns: 400_000_000 * rounds,
                cpus: "1-2".parse().unwrap(),
            }),
            kept: None,
        }
    }

    /// Two samples, two seconds apart, of three nodes, one of them of the lightweight kernel.
    pub(in crate::top) fn model() -> Model {
        let start = Instant::now();
        let sample = |after, rounds| Sample {
            at: start + Duration::from_secs(after),
            cores: Cores {
                all: 8,
                in_nodes: 6,
                in_pool: 1,
            },
            nodes: vec![
                lightweight("quiet", rounds),
                used("web", rounds),
                stock("old", "stopped"),
            ],
            servers: vec![
                server("file", Some(7), rounds),
                // It was started again.
                server("disk", Some(8 + u32::from(rounds > 5)), rounds),
            ],
        };
        let mut model = Model::new(sample(0, 5));
        model.add(sample(2, 7));
        model
    }

    #[test]
    fn changes_are_shown_per_second() {
        let model = model();
        let total = model.nodes()[0].programs.as_ref().unwrap().total();
        assert!((model.per_second(total.delegated_calls) - 40.0).abs() < 1e-9);
    }

    #[test]
    fn servers_are_those_of_the_selected_node() {
        let mut model = model();
        let mut press = |code: char| {
            let key = KeyEvent::from(KeyCode::Char(code));
            assert!(model.handle_key(key).is_continue());
            let endpoints = model.servers().filter_map(|one| one.endpoint.as_ref());
            let received: Vec<_> = endpoints.map(|one| one.received).collect();
            (model.node_of_servers().map(str::to_owned), received)
        };
        assert_eq!(press('s'), (Some("quiet".to_owned()), vec![1000, 0]));
        assert_eq!(press('j'), (None, Vec::new()));
        assert_eq!(press('k').1.len(), 2);
        assert_eq!(press('s'), (None, Vec::new()));
    }

    #[test]
    fn the_first_sample_has_no_rates() {
        let sample = Sample {
            at: Instant::now(),
            cores: Cores::default(),
            nodes: vec![lightweight("quiet", 5)],
            servers: Vec::new(),
        };
        let model = Model::new(sample);
        assert_eq!(
            model.nodes()[0].programs.as_ref().unwrap().total(),
            CoreStats::default()
        );
        assert_eq!(model.per_second(7).to_bits(), 0.0_f64.to_bits());
    }

    #[test]
    fn keys_select_and_quit() {
        let mut model = model();
        let mut press = |code| {
            let flow = model.handle_key(KeyEvent::from(code));
            (model.selected(), flow.is_break())
        };
        assert_eq!(press(KeyCode::Up), (Some(0), false));
        assert_eq!(press(KeyCode::Down), (Some(1), false));
        assert_eq!(press(KeyCode::Char('j')), (Some(2), false));
        assert_eq!(press(KeyCode::Down), (Some(2), false));
        assert_eq!(press(KeyCode::Char('c')), (Some(2), false));
        assert_eq!(press(KeyCode::Char('q')), (Some(2), true));
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(model.handle_key(interrupt).is_break());
    }

    #[test]
    fn the_selection_stays_while_other_nodes_go() {
        let mut model = model();
        let down = KeyEvent::from(KeyCode::Down);
        assert!(model.handle_key(down).is_continue());
        let sample = |nodes| Sample {
            at: Instant::now(),
            cores: Cores::default(),
            nodes,
            servers: Vec::new(),
        };
        model.add(sample(vec![
            stock("web", "running"),
            stock("old", "stopped"),
        ]));
        assert_eq!(model.selected(), Some(0));
        model.add(sample(Vec::new()));
        assert_eq!(model.selected(), None);
        assert!(model.handle_key(down).is_continue());
    }
}
