//! Printing beside a watcher.

use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use crate::{Failure, output};

/// What is printed.
enum Line {
    /// To standard output.
    Output(String),
    /// A note, to standard error.
    Note(String),
}

impl Line {
    fn print(&self) -> Result<(), Failure> {
        match self {
            Self::Output(line) => output::line(line),
            Self::Note(note) => {
                output::note(note);
                Ok(())
            }
        }
    }
}

/// Prints lines in a thread of its own: that may have to wait, for a base that hangs or a
/// reader that is slow, and the watcher goes on meanwhile.
pub(super) struct Teller {
    lines: Sender<Line>,
    printer: JoinHandle<Result<(), String>>,
}

impl Teller {
    /// Starts the thread.
    pub(super) fn start() -> Self {
        let (lines, queue) = channel::<Line>();
        let print = move || {
            let printed = queue.iter().try_for_each(|line| line.print());
            // A failure cannot be passed between threads.
            printed.map_err(|failure| failure.to_string())
        };
        Self {
            lines,
            printer: thread::spawn(print),
        }
    }

    /// Has a line printed some time.
    ///
    /// # Errors
    /// When an earlier one could not be printed.
    pub(super) fn tell(&self, line: String) -> Result<(), Failure> {
        self.send(Line::Output(line))
    }

    /// Has a note printed some time.
    ///
    /// # Errors
    /// As for [`tell`](Self::tell).
    pub(super) fn note(&self, note: String) -> Result<(), Failure> {
        self.send(Line::Note(note))
    }

    fn send(&self, line: Line) -> Result<(), Failure> {
        let sent = self.lines.send(line);
        sent.map_err(|_| "what was found cannot be printed any more".into())
    }

    /// Waits until everything is printed.
    ///
    /// # Errors
    /// When it cannot be.
    pub(super) fn finish(self) -> Result<(), Failure> {
        drop(self.lines);
        match self.printer.join() {
            Ok(printed) => Ok(printed?),
            Err(_) => Err("printing has failed".into()),
        }
    }
}
