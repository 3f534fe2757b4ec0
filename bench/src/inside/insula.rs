//! Runs the command `insula`.

use std::path::PathBuf;
use std::process;
use std::time::{Duration, Instant};

use insula_driver::name::Name;
use insula_driver::tsc;
use serde::Deserialize;
use testbed::base::Finding;

/// The command `insula`, as a user types it.
pub struct Command(PathBuf);

/// Durations of a start, as `insula run --json` reports them.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Timing {
    load_ns: u64,
    layout_ns: u64,
    total_ns: u64,
}

impl Timing {
    /// Time to copy kernel and initrd into the node's memory, and to make and write the rest of its
    /// layout.
    #[must_use]
    pub fn load(&self) -> Duration {
        Duration::from_nanos(self.load_ns + self.layout_ns)
    }

    /// Time from the command's start to the kernel's first instruction.
    #[must_use]
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.total_ns)
    }
}

/// A node that was started.
#[derive(Clone, Debug)]
pub struct Start {
    /// Its name.
    pub name: Name,
    /// Time of Enter: just before the process was made.
    pub enter: Instant,
    /// Time stamp counter at that moment.
    pub enter_tsc: u64,
    /// Durations of the start.
    pub timing: Timing,
}

#[derive(Deserialize)]
struct Answer {
    timing: Timing,
}

impl Command {
    pub(super) fn new(program: PathBuf) -> Self {
        Self(program)
    }

    /// The command, without arguments.
    #[must_use]
    pub fn prepare(&self) -> process::Command {
        process::Command::new(&self.0)
    }

    /// Runs it with these arguments and returns its output.
    ///
    /// # Errors
    /// When it fails.
    pub fn run(&self, words: &[&str]) -> Result<String, Finding> {
        self.execute(self.prepare().args(words))
    }

    /// Starts a node: `insula run --json --name NAME WORDS…`.
    ///
    /// # Errors
    /// When it is not started.
    pub fn start(&self, name: &str, words: &[&str]) -> Result<Start, Finding> {
        let mut command = process::Command::new(&self.0);
        command.args(["run", "--json", "--name", name]).args(words);
        let name: Name = name.parse()?;
        let (enter, enter_tsc) = (Instant::now(), tsc());
        let text = self.execute(&mut command)?;
        let Answer { timing } = serde_json::from_str(&text)?;
        Ok(Start {
            name,
            enter,
            enter_tsc,
            timing,
        })
    }

    fn execute(&self, command: &mut process::Command) -> Result<String, Finding> {
        let output = command.output()?;
        let message = || {
            let words: Vec<_> = command
                .get_args()
                .map(|word| word.to_string_lossy())
                .collect();
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            format!("insula {}: {}", words.join(" "), error.trim())
        };
        Finding::unless(output.status.success(), message)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
