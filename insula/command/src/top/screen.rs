//! Layout of `insula top`: the nodes above, and below [details] of the selected one.

use insula_base::units::Size;
use insula_node::stats::{CoreStats, NodeStats, ProgramStats};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Row, Table, TableState};

use super::details;
use super::model::Model;
use crate::report;

/// A counter of a core: its heading, and its value.
pub(super) type Count = (&'static str, fn(&CoreStats) -> u64);

/// The counters shown of a core.
const COUNTS: [Count; 5] = [
    ("LOCAL/S", |core| core.local_calls),
    ("DELEG/S", |core| core.delegated_calls),
    ("FAULTS/S", |core| core.faults),
    ("SWITCH/S", |core| core.switches),
    ("RINGS/S", |core| core.rings),
];
/// Width of a number and its heading.
pub(super) const NUMBER_WIDTH: u16 = 8;
pub(super) const NUMBER: Constraint = Constraint::Length(NUMBER_WIDTH);
/// Width of a core's number, and of the number of cores.
pub(super) const CORES_WIDTH: u16 = 4;
/// Width of a percentage.
pub(super) const PERCENT_WIDTH: u16 = 5;

/// The counters that fit into `width` beside `used` columns.
pub(super) fn fitting(width: u16, used: u16) -> &'static [Count] {
    let room = usize::from(width.saturating_sub(used) / (NUMBER_WIDTH + 1));
    &COUNTS[..room.min(COUNTS.len())]
}

/// Draws everything.
pub(super) fn draw(frame: &mut Frame, model: &Model) {
    let rows = u16::try_from(model.nodes().len()).unwrap_or(u16::MAX);
    let whole = frame.area();
    // The list takes what it needs, and leaves the details at least half of the screen.
    let listed = rows.saturating_add(1).min(whole.height / 2);
    let [heading, list, below] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(listed),
        Constraint::Min(0),
    ])
    .areas(whole);
    draw_heading(frame, heading, model);
    draw_nodes(frame, list, model);
    if let Some(node) = model.selected().map(|at| &model.nodes()[at]) {
        details::draw(frame, below, model, node);
    }
}

fn draw_heading(frame: &mut Frame, area: Rect, model: &Model) {
    let cores = model.cores();
    let memory = model.nodes().iter().map(|node| node.memory_bytes).sum();
    let text = format!(
        "{} nodes: {} of {} cores ({} more in the pool), {}",
        model.nodes().len(),
        cores.in_nodes,
        cores.all,
        cores.in_pool,
        Size(memory)
    );
    frame.render_widget(Line::from(text).bold(), area);
    let keys = Line::from("up, down  s: servers  q: quit").alignment(Alignment::Right);
    frame.render_widget(keys, area);
}

fn draw_nodes(frame: &mut Frame, area: Rect, model: &Model) {
    let names = model.nodes().iter().map(|node| node.name.chars().count());
    let widest = names.max().and_then(|width| u16::try_from(width).ok());
    let widths = [
        widest.unwrap_or(0).max(4),
        8,
        7,
        CORES_WIDTH,
        PERCENT_WIDTH,
        7,
    ];
    let used = widths.iter().map(|width| width + 1).sum::<u16>() - 1;
    let counts = fitting(area.width, used);
    let left = ["NAME", "STATE"].map(Cell::from);
    let right = ["RUNS", "CPUS", "CPU%", "MEMORY"].map(number);
    let headings = counts.iter().map(|(heading, _)| number(*heading));
    let headings = left.into_iter().chain(right).chain(headings);
    let rows = model
        .nodes()
        .iter()
        .map(|node| node_row(model, node, counts));
    let widths = widths.map(Constraint::Length).into_iter();
    let table = Table::new(rows, widths.chain(counts.iter().map(|_| NUMBER)))
        .header(Row::new(headings).bold())
        .row_highlight_style(Style::new().reversed());
    let mut state = TableState::new().with_selected(model.selected());
    frame.render_stateful_widget(table, area, &mut state);
}

fn node_row<'a>(model: &Model, node: &'a NodeStats, counts: &[Count]) -> Row<'a> {
    let total = node.programs.as_ref().map(ProgramStats::total);
    let left = [node.name.as_str(), node.state].map(Cell::from);
    let right = [
        report::duration(node.ran_ns),
        node.cpus.to_string(),
        known(node.cpu_ns().map(|ns| percent(model.percent(ns)))),
        Size(node.memory_bytes).to_string(),
    ];
    let counts = counts.iter().map(|(_, of)| {
        let shown = |total| rate(model.per_second(of(total)));
        number(known(total.as_ref().map(shown)))
    });
    Row::new(left.into_iter().chain(right.map(number)).chain(counts))
}

/// A cell aligned to the right.
pub(super) fn number<'a>(text: impl Into<Text<'a>>) -> Cell<'a> {
    Cell::from(text.into().alignment(Alignment::Right))
}

/// A value, or that it is not known.
fn known(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".to_owned())
}

/// A percentage, of which each core has a hundred.
pub(super) fn percent(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// A rate per second, in seven characters at most.
pub(super) fn rate(per_second: f64) -> String {
    match per_second {
        0.0 => "0".to_owned(),
        ..10.0 => format!("{per_second:.1}"),
        ..1e5 => format!("{per_second:.0}"),
        ..1e8 => format!("{:.0}k", per_second / 1e3),
        _ => format!("{:.0}M", per_second / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    use super::super::model::tests::model;
    use super::*;

    fn drawn(model: &Model, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn shows_nodes_and_the_selected_ones_calls() {
        insta::assert_snapshot!(drawn(&model(), 100, 12));
    }

    fn model_after(keys: &str) -> Model {
        let mut model = model();
        for key in keys.chars().map(|key| KeyEvent::from(KeyCode::Char(key))) {
            assert!(model.handle_key(key).is_continue());
        }
        model
    }

    #[test]
    fn shows_what_linux_has_used() {
        insta::assert_snapshot!(drawn(&model_after("j"), 100, 12));
    }

    #[test]
    fn says_that_a_node_does_not_run() {
        insta::assert_snapshot!(drawn(&model_after("jj"), 80, 8));
    }

    #[test]
    fn shows_the_servers_of_a_node() {
        insta::assert_snapshot!(drawn(&model_after("s"), 100, 12));
    }

    #[test]
    fn any_size_will_do() {
        for (width, height) in [(1, 1), (20, 3), (300, 100)] {
            drawn(&model(), width, height);
        }
    }

    #[test]
    fn percentages_are_short() {
        for (value, text) in [(0.0, "0.0"), (9.94, "9.9"), (45.2, "45"), (1600.0, "1600")] {
            assert_eq!(percent(value), text);
        }
    }

    #[test]
    fn rates_are_short() {
        for (per_second, text) in [
            (0.0, "0"),
            (0.25, "0.2"),
            (99_999.0, "99999"),
            (123_456.0, "123k"),
            (2.5e9, "2500M"),
        ] {
            assert_eq!(rate(per_second), text);
        }
    }
}
