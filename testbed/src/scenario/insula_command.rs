//! Using the command `insula` as its users do.

use std::fmt::Debug;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Finding;

/// For what takes a second or two on a quiet host.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);
/// How often a condition is looked at.
const INTERVAL: Duration = Duration::from_millis(100);
/// Pause after a look, in times that it took: who looks is not to keep those from their work who
/// are waited for, with whom it shares the host's cores.
const REST: u32 = 1;
/// Records of a node's log that are shown when a scenario fails.
const RECORDS_SHOWN: &str = "60";

/// What a run of `insula` answered.
#[derive(Debug)]
pub(super) struct Answer {
    /// The words after `insula`, for messages.
    words: String,
    /// Its exit status; none if a signal ended it.
    pub(super) status: Option<i32>,
    /// What it printed.
    pub(super) output: String,
    /// What it complained of.
    pub(super) complaint: String,
}

impl Answer {
    pub(super) fn new(words: &[&str], output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            words: words.join(" "),
            status: output.status.code(),
            output: text(&output.stdout),
            complaint: text(&output.stderr),
        }
    }

    /// What it printed, if it succeeded.
    pub(super) fn succeeded(self) -> Result<String, Finding> {
        match self.status {
            Some(0) => Ok(self.output),
            _ => Err(self.finding("failed")),
        }
    }

    /// Holds if it was refused with that exit status and a message that has all these parts.
    pub(super) fn refused(&self, status: i32, parts: &[&str]) -> Result<(), Finding> {
        if self.status != Some(status) {
            return Err(self.finding(&format!("was not refused with status {status}")));
        }
        match parts.iter().find(|part| !self.complaint.contains(**part)) {
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
            complaint,
        } = self;
        let status = status.map_or("none".to_owned(), |status| status.to_string());
        Finding::new(format!(
            "`insula {words}` {what}; status {status}, output: {output}\ncomplaint: {complaint}"
        ))
    }
}

/// The command, not yet started.
pub(super) fn command(words: &[&str]) -> Command {
    let mut command = Command::new("insula");
    command.args(words).stdin(Stdio::null());
    command
}

/// Runs `insula` to its end, whatever comes of it.
pub(super) fn ask(words: &[&str]) -> Result<Answer, Finding> {
    Ok(Answer::new(words, &command(words).output()?))
}

/// Runs `insula`; it must succeed. Answers what it printed.
pub(super) fn insula(words: &[&str]) -> Result<String, Finding> {
    ask(words)?.succeeded()
}

/// Runs `insula`; it must succeed and print JSON.
pub(super) fn insula_json(words: &[&str]) -> Result<Value, Finding> {
    let text = insula(words)?;
    let named = |error| Finding::from(error).when(&format!("`insula {}`", words.join(" ")));
    serde_json::from_str(&text).map_err(named)
}

/// Looks at something again and again until it is there, at most [`PATIENCE`] long.
pub(super) fn wait_for<T>(
    what: &str,
    mut look: impl FnMut() -> Result<Option<T>, Finding>,
) -> Result<T, Finding> {
    let began = Instant::now();
    loop {
        let looked = Instant::now();
        if let Some(found) = look()? {
            return Ok(found);
        }
        let rest = INTERVAL.max(REST * looked.elapsed());
        let waited_s = began.elapsed().as_secs();
        Finding::unless(began.elapsed() < PATIENCE, || {
            format!("waited {waited_s} s in vain for {what}")
        })?;
        std::thread::sleep(rest);
    }
}

/// Fails unless both are equal.
pub(super) fn assert_equal<T: PartialEq + Debug>(
    what: &str,
    found: &T,
    wanted: &T,
) -> Result<(), Finding> {
    Finding::unless(found == wanted, || {
        format!("{what}: {found:?} instead of {wanted:?}")
    })
}

/// Plays a part and, however it ends, leaves no node, no image and no pool. When it fails, the
/// nodes' logs are shown first: there it says why a node did not do what it should.
pub(super) fn attended(part: impl FnOnce() -> Result<(), Finding>) -> Result<(), Finding> {
    let result = part();
    if result.is_err() {
        show_nodes();
    }
    let tidied = remove_all();
    result.and(tidied)
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

/// The names that a list holds.
pub(super) fn names(list: &[&str]) -> Result<Vec<String>, Finding> {
    let list = insula_json(list)?;
    let names = list.as_array().into_iter().flatten();
    Ok(names.map(|one| text(&one["name"])).collect())
}

/// A value that should be text.
pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A value that should be a list of numbers.
pub(super) fn numbers(value: &Value) -> Vec<u32> {
    let numbers = value.as_array().into_iter().flatten();
    numbers
        .filter_map(|number| number.as_u64()?.try_into().ok())
        .collect()
}

/// What can still be learned goes to the output.
fn show_nodes() {
    let show = |words: &[&str]| match ask(words) {
        Ok(answer) => println!("{}{}", answer.output, answer.complaint),
        Err(finding) => println!("{finding}"),
    };
    show(&["ps", "--all"]);
    for name in names(&["ps", "--all", "--json"]).unwrap_or_default() {
        println!("The log of {name} ends:");
        show(&["logs", "--tail", RECORDS_SHOWN, &name]);
    }
}
