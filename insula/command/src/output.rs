//! Writing to the user.

use std::error::Error;
use std::io::{self, Write};

use insula_base::error::Kind;
use insula_base::error_text::plain;
use serde::Serialize;
use serde_json::{Value, json};

use super::Failure;

/// Writes text to standard output.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Writes a line to standard output.
pub(super) fn line(text: &str) -> Result<(), Failure> {
    print(&format!("{text}\n"))
}

/// Writes a value as indented JSON.
pub(super) fn json(value: &impl Serialize) -> Result<(), Failure> {
    line(&serde_json::to_string_pretty(value)?)
}

/// Prints an error to standard error: first the message, then, indented, the hint.
pub(super) fn print_error(failure: &dyn Error) {
    let text = plain(&failure.to_string()).replace('\n', "\n        ");
    // If even this cannot be written, nothing can be reported.
    let _ = writeln!(io::stderr(), "insula: {text}");
}

/// Whether JSON is asked for: then errors are reported in JSON as well.
pub(super) fn is_json() -> bool {
    let mut words = std::env::args_os().skip(1).take_while(|word| word != "--");
    // What follows is a program's.
    words.next().is_some_and(|word| word != "exec") && words.any(|word| word == "--json")
}

/// An error as JSON: `message`, and `hint` if there is one.
pub(super) fn error_as_json(failure: &(dyn Error + 'static)) -> Value {
    let (message, hint) = match failure.downcast_ref::<insula_base::error::Error>() {
        Some(error) => (error.message(), Some(&error.hint)),
        None => (plain(&failure.to_string()), None),
    };
    let hint = hint.filter(|hint| !hint.is_empty());
    json!({ "error": { "message": message, "hint": hint } })
}

/// Prints a note to standard error.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "insula: note: {text}");
}

/// Whether the reader of our output has gone, as in `insula logs | head`. A connection that was broken
/// is another matter.
pub(super) fn is_closed_pipe(failure: &(dyn Error + 'static)) -> bool {
    let cause = || {
        let error = failure.downcast_ref::<insula_base::error::Error>()?;
        (error.kind == Kind::Output).then(|| error.cause())?
    };
    let error = failure.downcast_ref::<io::Error>().or_else(cause);
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_closed_output_is_none_of_our_errors() {
        let broken = |kind| {
            let why = io::Error::from(io::ErrorKind::BrokenPipe);
            insula_base::error::Error::of(kind, "writing").because(why)
        };
        assert!(is_closed_pipe(&broken(Kind::Output)));
        assert!(!is_closed_pipe(&broken(Kind::Other)));
        assert!(is_closed_pipe(&io::Error::from(io::ErrorKind::BrokenPipe)));
    }

    #[test]
    fn an_error_as_json_has_message_and_hint() {
        let gone = io::Error::other("gone (os error 2)");
        let error = insula_base::error::Error::new("no node").because(gone);
        let failure: Failure = error.hint("look with `ps`").into();
        let json = error_as_json(failure.as_ref());
        let wanted = json!({ "error": { "message": "no node: gone", "hint": "look with `ps`" } });
        assert_eq!(json, wanted);
        let failure: Failure = "no hint".into();
        let json = error_as_json(failure.as_ref());
        assert!(json["error"]["hint"].is_null());
    }
}
