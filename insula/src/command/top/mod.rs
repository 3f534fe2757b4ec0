//! `insula top`.

mod board;
mod screen;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use insula::driver::Driver;
use insula::stats;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use signal_hook::consts::{SIGHUP, SIGTERM};

use super::cli::Top;
use super::{Context, Failure, node};
use board::{Board, Cores, Look};

/// How often it is looked whether a signal came, which waiting for keys does not tell.
const SIGNALS_INTERVAL: Duration = Duration::from_millis(250);

/// Why nodes cannot be watched.
#[derive(Debug, thiserror::Error)]
enum TopError {
    #[error(
        "`insula top` draws on a terminal, and the standard output is none; `insula stats` prints the same once"
    )]
    NoTerminal,
    #[error("the terminal cannot be used: {0}; `insula stats` prints the same without one")]
    Terminal(#[from] io::Error),
}

/// Shows what nodes do until the user has seen enough.
pub(super) fn top(context: &Context, options: &Top) -> Result<(), Failure> {
    if !io::stdout().is_terminal() {
        return Err(TopError::NoTerminal.into());
    }
    let driver = context.driver()?;
    let mut board = Board::new(look(&driver)?);
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).map_err(TopError::from)?;
    }
    let mut terminal = ratatui::try_init().map_err(TopError::from)?;
    let interval = Duration::from_secs(options.interval.into());
    let watched = watch(&mut terminal, &driver, &mut board, interval, &ended);
    ratatui::restore();
    watched
}

fn watch(
    terminal: &mut DefaultTerminal,
    driver: &Driver,
    board: &mut Board,
    interval: Duration,
    ended: &AtomicBool,
) -> Result<(), Failure> {
    while !ended.load(Ordering::Relaxed) {
        terminal
            .draw(|frame| screen::draw(frame, board))
            .map_err(TopError::from)?;
        let left = interval.saturating_sub(board.age());
        if event::poll(left.min(SIGNALS_INTERVAL)).map_err(TopError::from)? {
            if let Event::Key(key) = event::read().map_err(TopError::from)?
                && board.take_key(key).is_break()
            {
                break;
            }
        } else if board.age() >= interval {
            board.add(look(driver)?);
        }
    }
    Ok(())
}

/// What there is to see now.
fn look(driver: &Driver) -> Result<Look, Failure> {
    let (_, cpus) = driver.machine()?;
    let handles = node::all(driver)?;
    Ok(Look {
        at: Instant::now(),
        cores: Cores::of(&cpus),
        nodes: handles.iter().map(stats::of).collect::<Result<_, _>>()?,
    })
}
