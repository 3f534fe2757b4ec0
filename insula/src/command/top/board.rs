//! What `insula top` knows: the last two looks at the nodes, and which of them the user chose.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use insula::stats::NodeStats;
use insula_abi::{Cpu, CpuOwner};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// How the machine's cores are shared out.
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

/// What was seen at a moment.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) cores: Cores,
    /// Counts since each node's start.
    pub(super) nodes: Vec<NodeStats>,
}

/// The last look, what changed since the one before, and the user's choice.
#[derive(Debug)]
pub(super) struct Board {
    last: Look,
    /// The nodes of the last look, with what they counted since the look before.
    changes: Vec<NodeStats>,
    /// Between the last two looks.
    elapsed: Duration,
    /// By name, since nodes come and go; the first, if there is none of that name.
    chosen: Option<String>,
}

impl Board {
    pub(super) fn new(first: Look) -> Self {
        let mut board = Self {
            changes: Vec::new(),
            elapsed: Duration::ZERO,
            chosen: None,
            last: first.clone(),
        };
        board.add(first);
        board
    }

    /// Takes what was seen next. Of a node that is new, all that it counted is new.
    pub(super) fn add(&mut self, next: Look) {
        let earlier = |name: &str| self.last.nodes.iter().find(|node| node.name == name);
        let change =
            |node: &NodeStats| earlier(&node.name).map_or(node.clone(), |then| node.since(then));
        self.changes = next.nodes.iter().map(change).collect();
        self.elapsed = next.at - self.last.at;
        self.last = next;
    }

    /// Whether to go on after the user has pressed a key.
    pub(super) fn take_key(&mut self, key: KeyEvent) -> ControlFlow<()> {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            _ if key.kind == KeyEventKind::Release => {}
            KeyCode::Char('q') | KeyCode::Esc => return ControlFlow::Break(()),
            KeyCode::Char('c') if control => return ControlFlow::Break(()),
            KeyCode::Down | KeyCode::Char('j') => self.choose(|at| at + 1),
            KeyCode::Up | KeyCode::Char('k') => self.choose(|at| at.saturating_sub(1)),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn choose(&mut self, step: fn(usize) -> usize) {
        let Some(at) = self.chosen() else { return };
        let to = step(at).min(self.changes.len() - 1);
        self.chosen = Some(self.changes[to].name.clone());
    }

    /// Which of the nodes the user chose; none if there is no node.
    pub(super) fn chosen(&self) -> Option<usize> {
        let is_it = |node: &NodeStats| Some(&node.name) == self.chosen.as_ref();
        let found = self.changes.iter().position(is_it);
        found.or((!self.changes.is_empty()).then_some(0))
    }

    /// The nodes, with what they counted between the last two looks.
    pub(super) fn nodes(&self) -> &[NodeStats] {
        &self.changes
    }

    pub(super) fn cores(&self) -> Cores {
        self.last.cores
    }

    /// How often a second something happened so many times between the last two looks.
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

    /// How long ago the last look was.
    pub(super) fn age(&self) -> Duration {
        self.last.at.elapsed()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use insula::stats::{CallStats, CoreStats, ProgramStats};

    use super::*;

    fn lightweight(name: &str, rounds: u64) -> NodeStats {
        let core = CoreStats {
            local_calls: 1500 * rounds,
            delegated_calls: 20 * rounds,
            faults: rounds / 2,
            switches: 3 * rounds,
            rings: 20 * rounds,
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
            programs: Some(ProgramStats {
                processes: 1,
                cores: vec![core; 2],
                calls,
            }),
        }
    }

    fn stock(name: &str, state: &'static str) -> NodeStats {
        NodeStats {
            state,
            programs: None,
            ..lightweight(name, 0)
        }
    }

    /// Two looks two seconds apart at three nodes, one of them of the lightweight kernel.
    pub(in crate::command::top) fn board() -> Board {
        let began = Instant::now();
        let look = |after, rounds| Look {
            at: began + Duration::from_secs(after),
            cores: Cores {
                all: 8,
                in_nodes: 6,
                in_pool: 1,
            },
            nodes: vec![
                lightweight("quiet", rounds),
                stock("web", "running"),
                stock("old", "stopped"),
            ],
        };
        let mut board = Board::new(look(0, 5));
        board.add(look(2, 7));
        board
    }

    #[test]
    fn what_changed_is_told_a_second() {
        let board = board();
        let total = board.nodes()[0].programs.as_ref().unwrap().total();
        assert!((board.per_second(total.delegated_calls) - 40.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_happened_before_the_second_look() {
        let look = Look {
            at: Instant::now(),
            cores: Cores::default(),
            nodes: vec![lightweight("quiet", 5)],
        };
        let board = Board::new(look);
        assert_eq!(
            board.nodes()[0].programs.as_ref().unwrap().total(),
            CoreStats::default()
        );
        assert_eq!(board.per_second(7).to_bits(), 0.0_f64.to_bits());
    }

    #[test]
    fn keys_choose_and_end() {
        let mut board = board();
        let mut press = |code| {
            let flow = board.take_key(KeyEvent::from(code));
            (board.chosen(), flow.is_break())
        };
        assert_eq!(press(KeyCode::Up), (Some(0), false));
        assert_eq!(press(KeyCode::Down), (Some(1), false));
        assert_eq!(press(KeyCode::Char('j')), (Some(2), false));
        assert_eq!(press(KeyCode::Down), (Some(2), false));
        assert_eq!(press(KeyCode::Char('c')), (Some(2), false));
        assert_eq!(press(KeyCode::Char('q')), (Some(2), true));
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(board.take_key(interrupt).is_break());
    }

    #[test]
    fn a_chosen_node_stays_chosen_while_others_go() {
        let mut board = board();
        let down = KeyEvent::from(KeyCode::Down);
        assert!(board.take_key(down).is_continue());
        let look = |nodes| Look {
            at: Instant::now(),
            cores: Cores::default(),
            nodes,
        };
        board.add(look(vec![stock("web", "running"), stock("old", "stopped")]));
        assert_eq!(board.chosen(), Some(0));
        board.add(look(Vec::new()));
        assert_eq!(board.chosen(), None);
        assert!(board.take_key(down).is_continue());
    }
}
