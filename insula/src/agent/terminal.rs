//! This process's terminal, as long as a program in a node has it.

use std::io::{self, IsTerminal};

use insula_agent::TerminalSize;
use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// The terminal of the standard input, which passes on each key as it is pressed. With this value it
/// becomes what it was.
#[derive(Debug)]
pub(super) struct RawTerminal(Termios);

impl RawTerminal {
    /// None if the standard input is no terminal.
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
        // It may be gone.
        let _ = tcsetattr(stdin(), OptionalActions::Drain, &self.0);
    }
}

/// The size of the terminal that the user sees, or the usual one.
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
