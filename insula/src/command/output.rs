//! Writing to the user.

use std::error::Error;
use std::io::{self, Write};

use serde::Serialize;

use super::Failure;

/// Writes text to the standard output.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Writes a line to the standard output.
pub(super) fn line(text: &str) -> Result<(), Failure> {
    print(&format!("{text}\n"))
}

/// Writes a value as indented JSON.
pub(super) fn json(value: &impl Serialize) -> Result<(), Failure> {
    line(&serde_json::to_string_pretty(value)?)
}

/// Tells the user of a failure: first what, then, indented, what to do.
pub(super) fn complain(failure: &dyn Error) {
    let text = failure.to_string().replace('\n', "\n        ");
    // When even this cannot be written there is nobody to tell.
    let _ = writeln!(io::stderr(), "insula: {text}");
}

/// Tells the user something besides.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "insula: note: {text}");
}

/// Whether the reader of our output has gone, as in `insula logs | head`.
pub(super) fn is_closed_pipe(failure: &(dyn Error + 'static)) -> bool {
    let error = failure.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
