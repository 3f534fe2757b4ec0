//! The same program on the base and on the lightweight kernel.

use std::path::Path;
use std::process::Command;

use testbed::base::Finding;

use super::Inside;
use crate::marks::Kind;

/// Program that measures from within: see [`crate::probe`].
pub const PROBE: &str = "/payload/bin/insula-bench-probe";
/// Name of the node.
pub const NODE: &str = "quiet";

/// Place where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On a core of the base.
    Base(usize),
    /// On a node of the lightweight kernel.
    Lwk,
}

/// A node of the lightweight kernel, and the program that measures on it, or beside it.
pub struct LwkNode<'a> {
    inside: &'a Inside,
}

/// Median and 99th percentile of a round, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Round {
    /// Median.
    pub median_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
}

impl<'a> LwkNode<'a> {
    /// Starts it on that core.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(inside: &'a Inside, core: usize) -> Result<Self, Finding> {
        Self::start_on(inside, &core.to_string())
    }

    /// Starts it on those cores, as a list.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_on(inside: &'a Inside, cores: &str) -> Result<Self, Finding> {
        Self::start_with(inside, cores, &[])
    }

    /// The same, with further options.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_with(inside: &'a Inside, cores: &str, more: &[&str]) -> Result<Self, Finding> {
        let words = ["--image", "lwk", "--cpu-list", cores, "--memory", "512M"];
        inside.command.start(NODE, &[&words[..], more].concat())?;
        Ok(Self { inside })
    }

    /// Has the probe measure a round.
    ///
    /// # Errors
    /// When it fails.
    pub fn round(&self, place: Place, words: &[&str]) -> Result<Round, Finding> {
        measured(
            self.inside,
            program(self.inside, place, &[&[PROBE], words].concat()),
        )
    }

    /// Has the probe do once what the emulator is to count.
    ///
    /// # Errors
    /// When it fails.
    pub fn marked(&self, place: Place, kind: Kind, file: &Path) -> Result<(), Finding> {
        let words = [PROBE, "marked", kind.word(), &file.to_string_lossy()];
        output(self.inside, place, &words).map(drop)
    }

    /// Removes the node.
    ///
    /// # Errors
    /// When it is not removed.
    pub fn remove(self) -> Result<(), Finding> {
        self.inside.command.run(&["rm", "--force", NODE]).map(drop)
    }
}

/// Runs a command that runs the probe, and returns what that has measured.
///
/// # Errors
/// When it fails.
pub fn measured(inside: &Inside, mut command: Command) -> Result<Round, Finding> {
    let text = succeeded(&mut command)?;
    let tsc_khz = f64::from(inside.driver.machine()?.0.tsc_khz);
    let ticks: Vec<f64> = text
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let [median, p99] = ticks[..] else {
        return Err(Finding::new(format!("{PROBE} printed: {text}")));
    };
    let us = |ticks: f64| ticks * 1e3 / tsc_khz;
    Ok(Round {
        median_us: us(median),
        p99_us: us(p99),
    })
}

/// Runs a program at that place and returns its output.
///
/// # Errors
/// When it fails.
pub fn output(inside: &Inside, place: Place, words: &[&str]) -> Result<String, Finding> {
    succeeded(&mut program(inside, place, words))
}

/// Output of a command.
fn succeeded(command: &mut Command) -> Result<String, Finding> {
    let output = command.output()?;
    Finding::unless(output.status.success(), || {
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        format!("{command:?}: {}: {error}", output.status)
    })?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Command of a program at that place.
#[must_use]
pub fn program(inside: &Inside, place: Place, words: &[&str]) -> Command {
    let mut program = match place {
        Place::Base(core) => {
            let mut taskset = Command::new("taskset");
            taskset.args(["-c", &core.to_string()]);
            taskset
        }
        Place::Lwk => {
            let mut exec = inside.command.prepare();
            exec.args(["exec", NODE, "--"]);
            exec
        }
    };
    program.args(words);
    program
}
