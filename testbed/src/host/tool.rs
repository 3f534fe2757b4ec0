//! Runs other programs.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// Most bytes of a failed program's output that its error quotes.
const OUTPUT_TAIL_BYTES: usize = 4000;

/// Failure to run a program.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// It is not installed.
    #[error("`{program}` is not installed; `make deps` installs all that is needed")]
    Missing {
        /// Its name.
        program: String,
    },
    /// It could not be started.
    #[error("`{program}` could not be started: {source}")]
    Start {
        /// Its name.
        program: String,
        /// The underlying error.
        source: io::Error,
    },
    /// It ended with an error.
    #[error("`{command}` failed ({status}):\n{output}")]
    Failed {
        /// The command line.
        command: String,
        /// Its exit status.
        status: String,
        /// The end of its output.
        output: String,
    },
}

/// Program to be run, with all its output captured.
pub struct Tool {
    program: String,
    command: Command,
}

impl Tool {
    /// The program `program`, searched for in PATH and in the folders of system programs, which a
    /// user's PATH leaves out on Debian.
    pub fn new(program: &str) -> Self {
        let mut command = Command::new(program);
        command.env("PATH", search_path()).env("LC_ALL", "C");
        // `cargo run` sets it for this process. A cargo run in turn would take it for a change, and build all
        // again that depends on it.
        command.env_remove("CARGO_MANIFEST_DIR");
        command.stdin(Stdio::null());
        Self {
            program: program.to_owned(),
            command,
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets the folder that it runs in.
    pub fn directory(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// Runs it to its end. Returns its output, stderr last.
    ///
    /// # Errors
    /// When it is missing, cannot be started or ends with a status other than 0.
    pub fn run(mut self) -> Result<String, ToolError> {
        let output = self
            .command
            .output()
            .map_err(|source| self.start_error(source))?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        if output.status.success() {
            return Ok(text);
        }
        Err(self.failed(output.status.to_string(), &text))
    }

    /// Runs it to its end with its output going where this program's goes.
    ///
    /// # Errors
    /// As [`Tool::run`].
    pub fn run_visibly(mut self) -> Result<(), ToolError> {
        let status = self
            .command
            .status()
            .map_err(|source| self.start_error(source))?;
        if status.success() {
            return Ok(());
        }
        Err(self.failed(status.to_string(), "its output is above"))
    }

    fn start_error(&self, source: io::Error) -> ToolError {
        let program = self.program.clone();
        match source.kind() {
            io::ErrorKind::NotFound => ToolError::Missing { program },
            _ => ToolError::Start { program, source },
        }
    }

    fn failed(&self, status: String, output: &str) -> ToolError {
        let arguments = self.command.get_args().map(OsStr::to_string_lossy);
        let words: Vec<_> = std::iter::once(self.program.as_str().into())
            .chain(arguments)
            .collect();
        ToolError::Failed {
            command: words.join(" "),
            status,
            output: tail(output, OUTPUT_TAIL_BYTES).to_owned(),
        }
    }
}

/// PATH with the folders of system programs at its end.
pub fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}

/// Last `size` bytes of `text`, from the start of a line if that leaves anything.
pub fn tail(text: &str, size: usize) -> &str {
    let Some(mut start) = text.len().checked_sub(size).filter(|&start| start > 0) else {
        return text;
    };
    while !text.is_char_boundary(start) {
        start += 1;
    }
    match text[start..].find('\n') {
        Some(line) if start + line + 1 < text.len() => &text[start + line + 1..],
        _ => &text[start..],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_answered() {
        let text = Tool::new("sh")
            .args(["-c", "echo out; echo err >&2"])
            .run()
            .unwrap();
        assert_eq!(text, "out\nerr\n");
    }

    #[test]
    fn failure_tells_command_status_and_output() {
        let error = Tool::new("sh")
            .args(["-c", "echo sorry; exit 7"])
            .run()
            .unwrap_err();
        let text = error.to_string();
        assert!(text.contains("sh -c"), "{text}");
        assert!(text.contains("status: 7"), "{text}");
        assert!(text.contains("sorry"), "{text}");
    }

    #[test]
    fn missing_program_has_a_hint() {
        let error = Tool::new("no-such-program-at-all").run().unwrap_err();
        assert!(matches!(error, ToolError::Missing { .. }));
        assert!(error.to_string().contains("make deps"));
    }

    #[test]
    fn tail_begins_at_a_line() {
        assert_eq!(tail("one\ntwo\nthree\n", 8), "three\n");
        assert_eq!(tail("short", 10), "short");
        assert_eq!(tail("überlang", 8), "berlang");
    }
}
