//! This process's terminal while a program in a node uses it.

use std::io::{self, IsTerminal};

use insula_agent::TerminalSize;
use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// The terminal of standard input in raw mode. Dropping it restores the previous mode.
#[derive(Debug)]
pub(super) struct RawTerminal(Termios);

impl RawTerminal {
    /// Enters raw mode; `None` if standard input is not a terminal.
    pub(super) fn enter() -> io::Result<Option<Self>> {
        if !io::stdin().is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Flush, &raw)?;
        Ok(Some(Self(before)))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = tcsetattr(stdin(), OptionalActions::Drain, &self.0);
    }
}

/// The size of the user's terminal, or 80x24.
pub(super) fn size() -> TerminalSize {
    match tcgetwinsize(stdout()).or_else(|_| tcgetwinsize(stdin())) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => TerminalSize {
            rows: size.ws_row,
            columns: size.ws_col,
        },
        _ => TerminalSize {
            rows: 24,
            columns: 80,
        },
    }
}
