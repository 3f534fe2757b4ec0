//! Writing to the user.

use std::error::Error;
use std::io::{self, Write};

use insula::report::plain;
use serde::Serialize;
use serde_json::{Value, json};

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
    let text = plain(&failure.to_string()).replace('\n', "\n        ");
    // When even this cannot be written there is nobody to tell.
    let _ = writeln!(io::stderr(), "insula: {text}");
}

/// Whether JSON is asked for: then failures are told in it as well.
pub(super) fn is_json() -> bool {
    let own = std::env::args_os().skip(1).take_while(|word| word != "--");
    own.into_iter().any(|word| word == "--json")
}

/// A failure as JSON: `message`, and, where there is a way out, `hint`.
pub(super) fn failure_as_json(failure: &dyn Error) -> Value {
    let text = plain(&failure.to_string());
    let (message, hint) = match text.split_once('\n') {
        Some((message, hint)) => (message, Some(hint)),
        None => (text.as_str(), None),
    };
    json!({ "error": { "message": message, "hint": hint } })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_as_json_tells_what_and_what_to_do() {
        let failure: Failure = "no node: gone (os error 2)\nlook with `ps`".into();
        let told = failure_as_json(failure.as_ref());
        let wanted = json!({ "error": { "message": "no node: gone", "hint": "look with `ps`" } });
        assert_eq!(told, wanted);
        let failure: Failure = "no way out".into();
        let told = failure_as_json(failure.as_ref());
        assert!(told["error"]["hint"].is_null());
    }
}
