//! Reporting errors as an OCI runtime does: to standard error, and to the log that the engine reads.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::SystemTime;

use insula_base::error::Error;
use serde_json::json;

use super::arguments::Arguments;

/// The log of the command line: `--log` and `--log-format`.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    file: Option<PathBuf>,
    is_json: bool,
}

impl Report {
    pub(super) fn of(arguments: &Arguments) -> Self {
        Self {
            file: arguments.global("--log").and_then(file),
            is_json: arguments.global("--log-format") == Some(OsStr::new("json")),
        }
    }

    /// Reports why the command has failed.
    pub(super) fn error(&self, error: &Error) {
        let message = error.to_string();
        // If even this cannot be written, nothing can be reported.
        let _ = writeln!(io::stderr(), "insula-oci: {message}");
        if let Some(file) = &self.file {
            let line = self.line(&message);
            let opened = OpenOptions::new().create(true).append(true).open(file);
            let _ = opened.and_then(|mut file| file.write_all(line.as_bytes()));
        }
    }

    /// A line of the log, in the form that crun and runc have in common.
    fn line(&self, message: &str) -> String {
        if !self.is_json {
            return format!("insula-oci: {}\n", message.replace('\n', " "));
        }
        let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        format!(
            "{}\n",
            json!({"level": "error", "msg": message, "time": time})
        )
    }
}

/// The file that a log is, in crun's forms: `PATH` or `file:PATH`. Those of the journal and of syslog are none.
fn file(log: &OsStr) -> Option<PathBuf> {
    let text = log.to_string_lossy();
    match text.split_once(':') {
        Some(("file", path)) => Some(path.into()),
        Some(("journald" | "syslog", _)) => None,
        _ => Some(log.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;
    use std::path::Path;

    use serde_json::Value;

    use super::*;

    fn report(words: &[&str]) -> Report {
        Report::of(&Arguments::parse(words.iter().map(OsString::from)))
    }

    #[test]
    fn errors_are_in_the_log_as_engines_read_them() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let words = [
            "--log",
            log.to_str().unwrap(),
            "--log-format",
            "json",
            "create",
        ];
        let error = Error::new("it failed").untouched().hint("try again");
        report(&words).error(&error);
        report(&words).error(&error);
        let text = fs::read_to_string(&log).unwrap();
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["level"], "error");
        let message = lines[0]["msg"].as_str().unwrap();
        assert!(
            message.contains("it failed; nothing was touched"),
            "{message}"
        );
    }

    #[test]
    fn only_files_are_written() {
        for (word, file) in [
            ("file:/x", Some("/x")),
            ("/x", Some("/x")),
            ("x:y", Some("x:y")),
            ("journald:x", None),
        ] {
            assert_eq!(
                report(&["--log", word]).file.as_deref(),
                file.map(Path::new)
            );
        }
    }
}
