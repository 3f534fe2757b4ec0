//! A compose file's text, and errors in it: shown with file, line and column.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use insula_base::error::Error;
use serde::Serialize;

/// Range of a file's text, in bytes.
pub type Span = Range<usize>;

/// A file's text and path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its path as the user gave it.
    pub path: PathBuf,
    /// The text.
    pub text: String,
}

impl Source {
    /// Reads a file.
    ///
    /// # Errors
    /// The file system's error; `InvalidData` for text that is not UTF-8.
    pub fn read(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            text: std::fs::read_to_string(path)?,
        })
    }

    /// An error at `span`, with a hint.
    #[must_use]
    pub fn diagnostic(&self, span: Span, message: impl fmt::Display, hint: &str) -> Diagnostic {
        let start = self.text.floor_char_boundary(span.start);
        let (message, hint) = (message.to_string(), as_keys(hint));
        let before = &self.text[..start];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Diagnostic {
            file: self.path.clone(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            shown: self.show(start..span.end, &message, &hint),
            message,
            hint,
        }
    }

    /// An error of the library at `span`. What was left alone is said once for all of a file.
    #[must_use]
    pub fn diagnostic_from(&self, span: Span, error: &Error) -> Diagnostic {
        self.diagnostic(span, as_keys(&error.failure()), &error.hint)
    }

    fn show(&self, span: Span, message: &str, hint: &str) -> String {
        let end = self.text.floor_char_boundary(span.end).max(span.start);
        let path = self.path.to_string_lossy();
        let snippet = Snippet::source(self.text.as_str())
            .path(path.as_ref())
            .annotation(AnnotationKind::Primary.span(span.start..end));
        let mut group = Level::ERROR.primary_title(message).element(snippet);
        if !hint.is_empty() {
            group = group.element(Level::HELP.message(hint));
        }
        Renderer::plain().render(&[group])
    }
}

/// Writes options as keys of a file: `--cpu-list` becomes `cpu_list`. Commands, in backquotes,
/// stay.
fn as_keys(text: &str) -> String {
    let is_word = |letter: char| letter.is_ascii_lowercase() || letter == '-';
    let key = |rest: &str| match rest.find(|letter| !is_word(letter)) {
        Some(end) => format!("`{}`{}", rest[..end].replace('-', "_"), &rest[end..]),
        None => format!("`{}`", rest.replace('-', "_")),
    };
    let keys = |prose: &str| {
        let mut parts = prose.split("--");
        let first = parts.next().unwrap_or_default().to_owned();
        first + &parts.map(key).collect::<String>()
    };
    let parts = text.split('`').enumerate().map(|(index, part)| {
        let is_prose = index.is_multiple_of(2);
        if is_prose {
            keys(part)
        } else {
            part.to_owned()
        }
    });
    parts.collect::<Vec<_>>().join("`")
}

/// An error in a file. Displayed with its line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Diagnostic {
    /// The file, as the user named it.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The column in that line, in characters from 1.
    pub column: usize,
    /// The message.
    pub message: String,
    /// The hint; may be empty.
    pub hint: String,
    #[serde(skip)]
    shown: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn source(text: &str) -> Source {
        Source {
            path: "insula.toml".into(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn line_and_column_count_characters() {
        let diagnostic = source("# ä\nä = 1\n").diagnostic(8..9, "what", "do");
        assert_eq!((diagnostic.line, diagnostic.column), (2, 3));
        let end = source("a").diagnostic(1..1, "what", "");
        assert_eq!((end.line, end.column), (1, 2));
    }

    #[test]
    fn options_become_keys_but_commands_stay() {
        assert_eq!(
            as_keys("ask for --cpu-list, or --memory; see `insula ps --all`"),
            "ask for `cpu_list`, or `memory`; see `insula ps --all`"
        );
    }

    #[test]
    fn an_error_of_the_library_is_shown() {
        let error = Error::new("core 0 is the base's")
            .untouched()
            .hint("choose other cores with --cpu-list");
        let diagnostic = source("cpu_list = \"0\"").diagnostic_from(11..14, &error);
        insta::assert_snapshot!(diagnostic);
        assert!(!diagnostic.message.contains("nothing was touched"));
        assert!(diagnostic.hint.starts_with("choose other cores"));
    }

    proptest! {
        #[test]
        fn any_span_can_be_shown(
            text in "[aä\\n\"\t]{0,20}",
            start in 0_usize..50,
            size in 0_usize..9,
        ) {
            let diagnostic = source(&text).diagnostic(start..start + size, "what", "do");
            prop_assert!(diagnostic.to_string().contains("insula.toml:"));
        }
    }
}
