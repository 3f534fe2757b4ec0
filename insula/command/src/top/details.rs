//! What `insula top` shows of the selected node: what Linux has used, or the calls, cores and servers of a
//! lightweight kernel.

use insula_agent::usage::{Traffic, Usage};
use insula_base::units::Size;
use insula_node::stats::{NodeStats, ProgramStats};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Stylize;
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table};

use super::model::Model;
use super::screen::{
    CORES_WIDTH, Count, NUMBER, NUMBER_WIDTH, PERCENT_WIDTH, fitting, number, percent, rate,
};

/// Least width of a call's name, place and rate, and of what is shown of a server.
const CALLS_WIDTH: u16 = 30;
const SERVERS_WIDTH: u16 = 50;

pub(super) fn draw(frame: &mut Frame, area: Rect, model: &Model, node: &NodeStats) {
    let block = Block::new()
        .borders(Borders::TOP)
        .title(format!(" {} ", node.name));
    let inside = block.inner(area);
    frame.render_widget(block, area);
    match (&node.programs, &node.usage) {
        (Some(programs), _) => draw_programs(frame, inside, model, programs),
        (None, Some(usage)) => draw_usage(frame, inside, model, (node.cpus, usage)),
        (None, None) => {
            let why = match node.state {
                "running" => {
                    "Its kernel does not tell what it does: it has no agent, or an older one."
                }
                _ => "It does not run.",
            };
            frame.render_widget(Paragraph::new(why), inside);
        }
    }
}

/// What Linux has used.
fn draw_usage(frame: &mut Frame, area: Rect, model: &Model, (cpus, usage): (usize, &Usage)) {
    let cpu = percent(model.percent(usage.cpu_ns));
    let used = usage
        .memory_bytes
        .saturating_sub(usage.memory_available_bytes);
    let traffic = |[came, went]: [&str; 2], traffic: &Traffic| {
        let [first, second] = [traffic.in_bytes, traffic.out_bytes].map(|count| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            Size(model.per_second(count) as u64)
        });
        format!("{came} {first}/s, {went} {second}/s")
    };
    let rows = [
        ("CPU", format!("{cpu} % of {cpus} cores")),
        (
            "MEMORY",
            format!("{} of {} used", Size(used), Size(usage.memory_bytes)),
        ),
        ("NETWORK", traffic(["received", "sent"], &usage.network)),
        ("DISKS", traffic(["read", "written"], &usage.disks)),
    ];
    let rows = rows.map(|(name, value)| Row::new([Cell::from(name).bold(), Cell::from(value)]));
    frame.render_widget(
        Table::new(rows, [Constraint::Length(8), Constraint::Min(0)]),
        area,
    );
}

/// The calls of programs and the work of cores; instead of the calls the servers, if they are shown.
fn draw_programs(frame: &mut Frame, inside: Rect, model: &Model, programs: &ProgramStats) {
    let shows_servers = model.node_of_servers().is_some();
    let left_width = if shows_servers {
        SERVERS_WIDTH
    } else {
        CALLS_WIDTH
    };
    let cores_width = CORES_WIDTH + 1 + PERCENT_WIDTH;
    let counts = fitting(inside.width, left_width + 1 + cores_width);
    let counts_width = counts.iter().map(|_| NUMBER_WIDTH + 1).sum::<u16>();
    let [left, cores] = Layout::horizontal([
        Constraint::Min(left_width),
        Constraint::Length(cores_width + counts_width),
    ])
    .spacing(1)
    .areas(inside);
    match shows_servers {
        true => draw_servers(frame, left, model),
        false => draw_calls(frame, left, model, programs),
    }
    draw_cores(frame, cores, model, programs, counts);
}

fn draw_calls(frame: &mut Frame, area: Rect, model: &Model, programs: &ProgramStats) {
    let rows = programs.calls.iter().map(|call| {
        let whose = if call.delegated { "delegated" } else { "local" };
        Row::new([
            Cell::from(call.name),
            Cell::from(whose),
            number(rate(model.per_second(call.count))),
        ])
    });
    let widths = [Constraint::Min(9), Constraint::Length(9), NUMBER];
    let heading = [Cell::from("CALL"), Cell::from("WHERE"), number("CALLS/S")];
    frame.render_widget(
        Table::new(rows, widths).header(Row::new(heading).bold()),
        area,
    );
}

fn draw_servers(frame: &mut Frame, area: Rect, model: &Model) {
    let rows = model.servers().map(|server| {
        let name = Cell::from(server.name.as_str());
        let Some(endpoint) = server.endpoint.as_ref().filter(|one| one.pid.is_some()) else {
            return Row::new([name, Cell::from(server.state)]);
        };
        let counts = [
            percent(model.percent(endpoint.busy_ns)),
            endpoint.queued.to_string(),
            rate(model.per_second(endpoint.received)),
            rate(model.per_second(endpoint.crossings)),
        ];
        let cpus = Cell::from(endpoint.cpus.to_string());
        Row::new([name, cpus].into_iter().chain(counts.map(number)))
    });
    let widths = [
        Constraint::Min(9),
        Constraint::Length(8),
        Constraint::Length(PERCENT_WIDTH),
    ];
    let widths = widths
        .into_iter()
        .chain([Constraint::Length(6), NUMBER, NUMBER]);
    let left = ["SERVER", "CORES"].map(Cell::from);
    let right = ["CPU%", "QUEUED", "ASKED/S", "CROSS/S"].map(number);
    let heading = Row::new(left.into_iter().chain(right));
    frame.render_widget(Table::new(rows, widths).header(heading.bold()), area);
}

fn draw_cores(
    frame: &mut Frame,
    area: Rect,
    model: &Model,
    programs: &ProgramStats,
    counts: &[Count],
) {
    let rows = programs.cores.iter().enumerate().map(|(index, core)| {
        let counts = counts
            .iter()
            .map(|(_, of)| number(rate(model.per_second(of(core)))));
        let first = [index.to_string(), percent(model.percent(core.busy_ns))].map(number);
        Row::new(first.into_iter().chain(counts))
    });
    let headings = counts.iter().map(|(heading, _)| number(*heading));
    let headings = ["CORE", "CPU%"].map(number).into_iter().chain(headings);
    let widths = [CORES_WIDTH, PERCENT_WIDTH].map(Constraint::Length);
    let widths = widths.into_iter().chain(counts.iter().map(|_| NUMBER));
    frame.render_widget(
        Table::new(rows, widths).header(Row::new(headings).bold()),
        area,
    );
}
