//! `insula top`.

mod details;
mod model;
mod screen;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use insula_base::error::Error;
use insula_driver::Driver;
use insula_servers::{self as servers, ServerView};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use signal_hook::consts::{SIGHUP, SIGTERM};

use super::cli::Top;
use super::{Context, Failure, node, stats};
use model::{Cores, Model, Sample};

/// Interval for checking signals, which waiting for keys does not report.
const SIGNALS_INTERVAL: Duration = Duration::from_millis(250);

fn no_terminal() -> Error {
    Error::new("standard output is not a terminal, which `insula top` needs")
        .hint("use `insula stats`, which prints the same once")
}

fn unusable(error: io::Error) -> Error {
    Error::new("the terminal cannot be used")
        .because(error)
        .hint("use `insula stats`, which prints the same without one")
}

/// Shows the nodes until the user quits.
pub(super) fn top(context: &Context, options: &Top) -> Result<(), Failure> {
    if !io::stdout().is_terminal() {
        return Err(no_terminal().into());
    }
    let driver = context.driver()?;
    let mut model = Model::new(sample(context, &driver, None)?);
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).map_err(unusable)?;
    }
    let mut terminal = ratatui::try_init().map_err(unusable)?;
    let interval = Duration::from_secs(options.interval.into());
    let watched = watch(
        &mut terminal,
        (context, &driver),
        &mut model,
        interval,
        &ended,
    );
    ratatui::restore();
    watched
}

fn watch(
    terminal: &mut DefaultTerminal,
    (context, driver): (&Context, &Driver),
    model: &mut Model,
    interval: Duration,
    ended: &AtomicBool,
) -> Result<(), Failure> {
    while !ended.load(Ordering::Relaxed) {
        terminal
            .draw(|frame| screen::draw(frame, model))
            .map_err(unusable)?;
        let left = interval.saturating_sub(model.age());
        if event::poll(left.min(SIGNALS_INTERVAL)).map_err(unusable)? {
            if let Event::Key(key) = event::read().map_err(unusable)?
                && model.handle_key(key).is_break()
            {
                break;
            }
        } else if model.age() >= interval {
            model.add(sample(context, driver, model.node_of_servers())?);
        }
    }
    Ok(())
}

/// Takes a sample, with the servers of a node.
fn sample(
    context: &Context,
    driver: &Driver,
    node_of_servers: Option<&str>,
) -> Result<Sample, Failure> {
    let (_, cpus) = driver.machine()?;
    let handles = node::all(driver)?;
    Ok(Sample {
        at: Instant::now(),
        cores: Cores::of(&cpus),
        nodes: stats::of(driver, &handles)?,
        servers: node_of_servers.map_or_else(Vec::new, |node| servers_of(context, driver, node)),
    })
}

/// The servers of a node; none if it ends just now, or cannot run what asks it.
fn servers_of(context: &Context, driver: &Driver, node: &str) -> Vec<ServerView> {
    let named = node.parse().ok();
    let listed = named.and_then(|node| servers::list(driver, &context.root, &[node]).ok());
    listed.unwrap_or_default()
}
