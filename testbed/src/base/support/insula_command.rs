//! Use of the command `insula`, as its users do.

use std::fmt::Debug;
use std::fs;
use std::io::{Write, stdout};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::output_schema::checked;
use crate::base::Finding;

/// Time limit of what takes a second or two on a quiet host.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(90);
/// Interval at which a condition is checked.
const INTERVAL: Duration = Duration::from_millis(100);
/// Pause after a check, in multiples of its duration: checks share the host's cores with the work
/// that is waited for.
const PAUSE_FACTOR: u32 = 3;
/// What takes less is not told.
const TOLD_FROM: Duration = Duration::from_millis(300);
/// Records of a node's log that are shown when a scenario fails.
const RECORDS_SHOWN: &str = "60";
/// Records of containers, each in a file of its name, and the lines shown of their logs.
const CONTAINERS: &str = "/run/insula/containers";
const LINES_SHOWN: usize = 20;

/// Result of a run of `insula`.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Its arguments, for messages.
    words: String,
    /// Its exit status; none if a signal ended it.
    pub(crate) status: Option<i32>,
    /// Its standard output.
    pub(crate) output: String,
    /// Its standard error.
    pub(crate) error_output: String,
}

impl Answer {
    pub(crate) fn new(words: &[&str], output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            words: words.join(" "),
            status: output.status.code(),
            output: text(&output.stdout),
            error_output: text(&output.stderr),
        }
    }

    /// Its output, if it succeeded.
    pub(crate) fn succeeded(self) -> Result<String, Finding> {
        match self.status {
            Some(0) => Ok(self.output),
            _ => Err(self.finding("failed")),
        }
    }

    /// Succeeds if it was refused with that exit status and a message that has all these parts.
    pub(crate) fn refused(&self, status: i32, parts: &[&str]) -> Result<(), Finding> {
        if self.status != Some(status) {
            return Err(self.finding(&format!("was not refused with status {status}")));
        }
        match parts
            .iter()
            .find(|part| !self.error_output.contains(**part))
        {
            Some(missing) => {
                Err(self.finding(&format!("was refused without a word of `{missing}`")))
            }
            None => Ok(()),
        }
    }

    fn finding(&self, what: &str) -> Finding {
        let Self {
            words,
            status,
            output,
            error_output,
        } = self;
        let status = status.map_or("none".to_owned(), |status| status.to_string());
        Finding::new(format!(
            "`insula {words}` {what}; status {status}, output: {output}\nerrors: {error_output}"
        ))
    }
}

/// The command, not yet started.
pub(crate) fn command(words: &[&str]) -> Command {
    let mut command = Command::new("insula");
    command.args(words).stdin(Stdio::null());
    command
}

/// Runs `insula` to its end, whatever the result. Tells how long it took.
pub(crate) fn try_insula(words: &[&str]) -> Result<Answer, Finding> {
    let began = Instant::now();
    let answer = Answer::new(words, &command(words).output()?);
    tell(began, &format!("`insula {}`", answer.words));
    Ok(answer)
}

/// Prints how long something took, unless that was short. Who makes a scenario faster looks there first.
pub(crate) fn tell(began: Instant, what: &str) {
    let elapsed = began.elapsed();
    if elapsed >= TOLD_FROM {
        // At shutdown systemd disconnects the terminal, which then takes no more.
        let _ = writeln!(stdout(), "{:.1} s: {what}", elapsed.as_secs_f64());
    }
}

/// The same; fails if that takes longer than [`TIMEOUT`]. For few output: it is read at the end.
pub(crate) fn try_insula_in_time(words: &[&str]) -> Result<Answer, Finding> {
    let mut command = command(words);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let ended = wait_for(&format!("`insula {}` to end", words.join(" ")), || {
        Ok(child.try_wait()?)
    });
    if ended.is_err() {
        child.kill()?;
    }
    let output = child.wait_with_output()?;
    ended.map(|_| Answer::new(words, &output))
}

/// Runs `insula`, which must succeed. Returns its output.
pub(crate) fn insula(words: &[&str]) -> Result<String, Finding> {
    try_insula(words)?.succeeded()
}

/// Runs `insula`, which must succeed and print JSON as its schema says.
pub(crate) fn insula_json(words: &[&str]) -> Result<Value, Finding> {
    json_of(words, &insula(words)?)
}

/// The same of a command that prints a document in each line.
pub(crate) fn insula_json_lines(words: &[&str]) -> Result<Vec<Value>, Finding> {
    let text = insula(words)?;
    text.lines().map(|line| json_of(words, line)).collect()
}

/// What `insula` has printed, which must be as its schema says.
pub(crate) fn json_of(words: &[&str], text: &str) -> Result<Value, Finding> {
    let read = serde_json::from_str(text).map_err(Finding::from);
    let checked = read.and_then(|value| checked(words, value));
    checked.map_err(|error| error.when(&format!("`insula {}`", words.join(" "))))
}

/// Polls until `check` returns a value, for at most [`TIMEOUT`].
pub(crate) fn wait_for<T>(
    what: &str,
    check: impl FnMut() -> Result<Option<T>, Finding>,
) -> Result<T, Finding> {
    wait_at_most(TIMEOUT, what, check)
}

/// The same, for at most `limit`.
pub(crate) fn wait_at_most<T>(
    limit: Duration,
    what: &str,
    mut check: impl FnMut() -> Result<Option<T>, Finding>,
) -> Result<T, Finding> {
    let began = Instant::now();
    loop {
        let started = Instant::now();
        if let Some(found) = check()? {
            tell(began, &format!("waited for {what}"));
            return Ok(found);
        }
        let pause = INTERVAL.max(PAUSE_FACTOR * started.elapsed());
        let waited_s = began.elapsed().as_secs();
        Finding::unless(began.elapsed() < limit, || {
            format!("waited {waited_s} s for {what}")
        })?;
        std::thread::sleep(pause);
    }
}

/// Fails unless both are equal.
pub(crate) fn assert_equal<T: PartialEq + Debug>(
    what: &str,
    found: &T,
    wanted: &T,
) -> Result<(), Finding> {
    Finding::unless(found == wanted, || {
        format!("{what}: {found:?} instead of {wanted:?}")
    })
}

/// Plays a part and, however it ends, removes all nodes, images and the pool. If it fails, the
/// nodes' logs are shown first.
pub(crate) fn with_cleanup(part: impl FnOnce() -> Result<(), Finding>) -> Result<(), Finding> {
    let result = part().map_err(|finding| {
        show_nodes();
        finding.beside(&ended_nodes())
    });
    let removed = remove_all();
    result.and(removed)
}

/// Nodes that have stopped, and why.
fn ended_nodes() -> Vec<String> {
    let list = insula_json(&["ps", "--all", "--json"]).unwrap_or_default();
    let nodes = list.as_array().into_iter().flatten();
    let ended = nodes.filter(|node| node["state"] == "stopped");
    let told = |node: &Value| {
        format!(
            "{} has stopped ({})",
            text(&node["name"]),
            text(&node["reason"])
        )
    };
    ended.map(told).collect()
}

/// Removes all nodes and images, and empties the pool.
fn remove_all() -> Result<(), Finding> {
    for name in names(&["ps", "--all", "--json"])? {
        insula(&["rm", "--force", &name])?;
    }
    for name in names(&["image", "ls", "--json"])? {
        insula(&["image", "rm", &name])?;
    }
    insula(&["machine", "release"]).map(drop)
}

/// Names in the output of a list.
pub(crate) fn names(list: &[&str]) -> Result<Vec<String>, Finding> {
    let list = insula_json(list)?;
    let names = list.as_array().into_iter().flatten();
    Ok(names.map(|one| text(&one["name"])).collect())
}

/// A value that should be text.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A value that should be a list of numbers.
pub(crate) fn numbers(value: &Value) -> Vec<u32> {
    let numbers = value.as_array().into_iter().flatten();
    numbers
        .filter_map(|number| number.as_u64()?.try_into().ok())
        .collect()
}

/// Prints the nodes and their logs, as far as available; before, those that run log what they execute.
pub(super) fn show_nodes() {
    let show = |words: &[&str]| match try_insula(words) {
        Ok(answer) => println!("{}{}", answer.output, answer.error_output),
        Err(finding) => println!("{finding}"),
    };
    show(&["ps", "--all"]);
    for name in names(&["ps", "--json"]).unwrap_or_default() {
        println!("Where {name} is:");
        show(&["backtrace", &name]);
    }
    for name in names(&["ps", "--all", "--json"]).unwrap_or_default() {
        println!("The log of {name} ends:");
        show(&["logs", "--tail", RECORDS_SHOWN, &name]);
    }
    for record in fs::read_dir(CONTAINERS).into_iter().flatten().flatten() {
        let name = record.path();
        let name = name.file_stem().unwrap_or_default().to_string_lossy();
        println!("The log of the container {name} ends:");
        let log = try_insula(&["logs", &name]).map(|answer| answer.output);
        let log = log.unwrap_or_default();
        let first = log.lines().count().saturating_sub(LINES_SHOWN);
        log.lines().skip(first).for_each(|line| println!("{line}"));
    }
}
