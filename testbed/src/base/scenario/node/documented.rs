//! The documentation's examples, run as they are written: each command of each block of README, guide, containers and compose, as
//! root in a shell. What they print begins their lines with the words that the documentation shows.

mod pages;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::base::support::insula_command::{tell, with_cleanup};
use crate::base::support::terminal::on_terminal;
use crate::base::support::virtio_modules::{NETWORK_MODULES, SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;
use pages::{PAGES, Page};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "documented",
    proves: "the documentation's examples do what it says",
    machine: Shape {
        cpus: 8,
        memory_mib: 6144,
        emulator: Emulator::Backports,
        thread_per_core: true,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(1500),
    soak_limit: None,
    play,
};

/// Prepares the machine for all of them, in [`FOLDER`], where they are run.
const PREPARE: &str = include_str!("documented/prepare.sh");
const FOLDER: &str = "/run/documented";
/// Modules of containers' cards on the base.
const CARD_MODULES: [&str; 2] = ["macvlan", "veth"];
/// Removes what examples leave.
const CLEAN: &str = "insula rm --force --all && insula prune && insula image prune";
/// Time that a command has to end, and one that follows a log.
const LIMIT_S: &str = "120";
const FOLLOW_S: &str = "5";
/// Status of what has not ended in time (timeout(1)).
const TIMED_OUT: i32 = 124;
/// Time that an earlier command in the background gets until a later one succeeds, and the interval of attempts.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// What is known of a block: in what situation it is, and how its commands end.
#[derive(Clone, Copy, Debug)]
struct Example {
    /// Commands of its situation, before it and after it.
    before: &'static str,
    after: &'static str,
    /// Whether what it leaves stays, for the next one.
    goes_on: bool,
    /// For commands that have the first word: what is awaited on their terminal, and typed then.
    typed: &'static [(&'static str, Typed)],
    /// Commands with these words are told to fail.
    refused: &'static [&'static str],
    /// Commands with these words depend on one in the background.
    retried: &'static [&'static str],
    /// Commands with these words go on until they are left.
    followed: &'static [&'static str],
    /// Commands with these words are left out, for a reason.
    left_out: &'static [(&'static str, &'static str)],
}

/// Pairs of what is awaited on a terminal, and what is typed then.
type Typed = &'static [(&'static str, &'static str)];

/// One of which there is nothing to know.
const PLAIN: Example = Example {
    before: "",
    after: "",
    goes_on: false,
    typed: &[],
    refused: &[],
    retried: &[],
    followed: &[],
    left_out: &[],
};

/// A command of a block, and the lines that it is said to print.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Step {
    command: String,
    output: Vec<String>,
}

fn play(_: &Context) -> Result<(), Finding> {
    load_sockets()?;
    fs::create_dir(FOLDER)?;
    shell(PREPARE)?;
    let played = with_cleanup(|| PAGES.iter().try_for_each(play_page));
    shell("umount /srv/web; rm -r /srv/debian /srv/web /srv/shop")?;
    fs::remove_dir_all(FOLDER)?;
    played?;
    unload(&CARD_MODULES)?;
    unload(&NETWORK_MODULES)?;
    unload(&SOCKET_MODULES)
}

fn play_page(page: &Page) -> Result<(), Finding> {
    let blocks = blocks(page.text);
    Finding::unless(blocks.len() == page.examples.len(), || {
        let (found, known) = (blocks.len(), page.examples.len());
        format!(
            "{} has {found} examples, of which {known} are known: pages.rs",
            page.name
        )
    })?;
    for (number, (block, example)) in (1..).zip(blocks.iter().zip(page.examples)) {
        let began = Instant::now();
        let what = format!("{}, example {number}", page.name);
        play_example(block, example).map_err(|finding| finding.when(&what))?;
        tell(began, &what);
    }
    Ok(())
}

fn play_example(block: &[Step], example: &Example) -> Result<(), Finding> {
    shell(example.before)?;
    for step in block {
        println!("  # {}", step.command);
        let outcome = example.play(step);
        outcome.map_err(|finding| finding.when(&format!("`{}`", step.command)))?;
    }
    shell(example.after)?;
    match example.goes_on {
        true => Ok(()),
        false => shell(CLEAN),
    }
}

impl Example {
    fn play(&self, step: &Step) -> Result<(), Finding> {
        let command = step.command.as_str();
        let has = |words: &[&str]| words.iter().any(|word| command.contains(word));
        if let Some((_, reason)) = self.left_out.iter().find(|(word, _)| has(&[word])) {
            println!("  left out: {reason}");
            return Ok(());
        }
        let found = self.typed.iter().find(|(word, _)| has(&[word]));
        let (status, output) = match found {
            Some((_, typed)) => on_terminal(&["bash", "-c", command], typed)?,
            None if has(self.followed) => run(command, FOLLOW_S)?,
            None if has(self.retried) => until_it_succeeds(command)?,
            None => run(command, LIMIT_S)?,
        };
        let expected = match () {
            () if has(self.followed) => Some(TIMED_OUT),
            () if has(self.refused) => Some(1),
            () => Some(0),
        };
        Finding::unless(status == expected, || {
            format!("it has ended with {status:?}: {output}")
        })?;
        let missing = step.words().find(|word| !output.contains(word));
        Finding::unless(missing.is_none(), || {
            format!("`{}` is not in {output}", missing.unwrap_or_default())
        })
    }
}

impl Step {
    /// The words that begin the lines of its output, without figures, which differ.
    fn words(&self) -> impl Iterator<Item = &str> {
        let words = self
            .output
            .iter()
            .filter_map(|line| line.split_whitespace().next());
        words.filter(|word| word.bytes().all(|byte| byte.is_ascii_alphanumeric()))
    }
}

fn until_it_succeeds(command: &str) -> Result<(Option<i32>, String), Finding> {
    let began = Instant::now();
    loop {
        let ended = run(command, LIMIT_S)?;
        if ended.0 == Some(0) || began.elapsed() > RETRY_TIMEOUT {
            return Ok(ended);
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
}

/// Runs a command line. Returns its status, and what it has printed; what goes on in the background prints nothing.
fn run(command: &str, limit_s: &str) -> Result<(Option<i32>, String), Finding> {
    let in_background = command.trim_end().ends_with('&');
    let (words, to) = match in_background {
        true => (
            format!(
                "({}) > /dev/null 2>&1 &",
                command.trim_end().trim_end_matches('&')
            ),
            "",
        ),
        false => (command.to_owned(), "exec 2>&1; "),
    };
    let ended = Command::new("timeout")
        .args([limit_s, "bash", "-c", &format!("{to}{words}")])
        .current_dir(FOLDER)
        .stdin(Stdio::null())
        .output()?;
    let output = String::from_utf8_lossy(&ended.stdout).into_owned();
    Ok((ended.status.code(), output))
}

fn shell(script: &str) -> Result<(), Finding> {
    let mut bash = Command::new("bash");
    let ended = bash.args(["-ec", script]).current_dir(FOLDER).output()?;
    Finding::unless(ended.status.success(), || {
        format!("{script}: {}", String::from_utf8_lossy(&ended.stderr))
    })
}

/// The blocks of a page whose lines are commands and what they print.
fn blocks(text: &str) -> Vec<Vec<Step>> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line == "```console" {
            let block: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push(steps(&block));
        }
    }
    blocks
}

fn steps(lines: &[&str]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut goes_on = false;
    for line in lines {
        let command = line.strip_prefix("# ").or_else(|| goes_on.then_some(line));
        match (command, steps.last_mut()) {
            (Some(part), last) => {
                let part = without_comment(part);
                let (part, more) = match part.strip_suffix('\\') {
                    Some(part) => (part, true),
                    None => (part, false),
                };
                match last.filter(|_| goes_on) {
                    Some(step) => step.command.push_str(part.trim_start()),
                    None => steps.push(Step {
                        command: part.to_owned(),
                        output: Vec::new(),
                    }),
                }
                goes_on = more;
            }
            (None, Some(step)) => step.output.push((*line).to_owned()),
            (None, None) => {}
        }
    }
    steps
}

/// A command without what is said of it, behind two spaces and a number sign.
fn without_comment(command: &str) -> &str {
    command
        .split_once("  #")
        .map_or(command, |(command, _)| command)
        .trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_commands_and_what_they_print() {
        let text = "Text.\n\n```console\n# one --a  \\\n      -- 'b  c'     # why\nNAME  STATE\n\n# two  # x\n```\n\
                    ```sh\nother\n```\n```console\n# three &\n```\n";
        let step = |command: &str, output: &[&str]| Step {
            command: command.to_owned(),
            output: output.iter().map(ToString::to_string).collect(),
        };
        let first = vec![
            step("one --a  -- 'b  c'", &["NAME  STATE", ""]),
            step("two", &[]),
        ];
        assert_eq!(blocks(text), [first, vec![step("three &", &[])]]);
    }

    #[test]
    fn all_examples_are_known() {
        for page in PAGES {
            assert_eq!(
                blocks(page.text).len(),
                page.examples.len(),
                "{}",
                page.name
            );
        }
    }
}
