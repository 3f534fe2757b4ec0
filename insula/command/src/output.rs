//! Writing to the user.

use std::error::Error;
use std::io::{self, Write};

use insula_base::error::Kind;
use insula_base::error_text::plain;
use insula_compose::Diagnostic;
use serde::Serialize;

use super::Failure;

/// Version of what commands print as JSON. Within one there only come fields, documents and values.
pub(super) const OUTPUT_VERSION: u32 = 1;

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

/// A failure as JSON, in place of a result.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct FailureView {
    /// What has failed.
    error: ErrorView,
    /// Each error in the files that were read; only of `up` and `down`.
    #[serde(skip_serializing_if = "Option::is_none")]
    diagnostics: Option<Vec<Diagnostic>>,
}

/// An error.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ErrorView {
    /// What failed and why, and what was left unchanged.
    message: String,
    /// What to do, if there is something.
    hint: Option<String>,
}

impl FailureView {
    /// That of a failure.
    pub(super) fn new(failure: &(dyn Error + 'static)) -> Self {
        let (message, hint) = match failure.downcast_ref::<insula_base::error::Error>() {
            Some(error) => (error.message(), Some(error.hint.clone())),
            None => (plain(&failure.to_string()), None),
        };
        let hint = hint.filter(|hint| !hint.is_empty());
        Self {
            error: ErrorView { message, hint },
            diagnostics: None,
        }
    }

    /// With the errors in files.
    pub(super) fn with_diagnostics(self, diagnostics: &[Diagnostic]) -> Self {
        Self {
            diagnostics: Some(diagnostics.to_vec()),
            ..self
        }
    }
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
    use serde_json::json;

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
        let json = json!(FailureView::new(failure.as_ref()));
        let wanted = json!({ "error": { "message": "no node: gone", "hint": "look with `ps`" } });
        assert_eq!(json, wanted);
        let failure: Failure = "no hint".into();
        let json = json!(FailureView::new(failure.as_ref()));
        assert!(json["error"]["hint"].is_null());
    }
}
