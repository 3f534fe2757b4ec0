//! A program that computes on a file's pages, and this process, which writes and reads the same file.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::taking_back::{Durations, Way};
use super::{NODE, PROBE};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, command, wait_for};
use crate::lwk::memory::answers::{ANSWER, END, PAGE, PATTERN, QUESTION, WORDS, WRONG, pattern};

/// Pages of the file.
pub(super) const PAGES: usize = 48;

/// Where the program runs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// On the base: what Linux takes for its own.
    Base,
    /// On the node.
    Node,
}

impl Place {
    /// The command that runs a probe there.
    pub(super) fn command(self, words: &[&str]) -> Command {
        match self {
            Place::Base => {
                let mut command = Command::new(PROBE);
                command.args(words);
                command
            }
            Place::Node => command(&[&["exec", NODE, "--", PROBE], words].concat()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Place::Base => "base",
            Place::Node => "node",
        })
    }
}

/// A file that a program has mapped, and the program.
pub(super) struct Sharing {
    pub(super) file: File,
    pub(super) program: Child,
}

impl Sharing {
    /// Makes the file and starts the program.
    pub(super) fn begin(path: &str, place: Place) -> Result<Self, Finding> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true);
        let file = file.open(path)?;
        file.set_len((PAGES * PAGE) as u64)?;
        let mut program = place.command(&["answers", path]);
        let mut program = program.stdout(Stdio::piped()).spawn()?;
        let output = program.stdout.take().map(BufReader::new);
        let mut line = String::new();
        output.map_or(Ok(0), |mut output| output.read_line(&mut line))?;
        assert_equal("the program's first line", &line.as_str(), &"answers\n")?;
        Ok(Self { file, program })
    }

    /// Asks, has the base take the pages back, and waits for the answers. Returns how long the base
    /// took.
    pub(super) fn play(mut self, rounds: impl Iterator<Item = u64>) -> Result<Durations, Finding> {
        let mut durations = Durations::default();
        for round in rounds {
            (0..PAGES).try_for_each(|page| self.ask(page, round))?;
            let way = Way::of_round(round);
            let begin = Instant::now();
            way.take_back(round, &self)?;
            durations.add(way, begin.elapsed());
            self.await_answers(round)?;
        }
        self.put(0, QUESTION, END)?;
        let status = wait_for("the program to end", || Ok(self.program.try_wait()?))?;
        assert_equal("its status", &status.code(), &Some(0))?;
        Ok(durations)
    }

    /// Writes a question's pattern, then the question.
    pub(super) fn ask(&self, page: usize, question: u64) -> Result<(), Finding> {
        let words: Vec<u8> = (PATTERN..WORDS)
            .flat_map(|place| pattern(question, page, place).to_le_bytes())
            .collect();
        self.file.write_all_at(&words, offset(page, PATTERN))?;
        self.put(page, QUESTION, question)
    }

    fn put(&self, page: usize, place: usize, word: u64) -> Result<(), Finding> {
        Ok(self
            .file
            .write_all_at(&word.to_le_bytes(), offset(page, place))?)
    }

    /// Waits until each page has the answer to a question.
    fn await_answers(&self, question: u64) -> Result<(), Finding> {
        for page in 0..PAGES {
            let found = wait_for("the program's answer", || {
                let mut bytes = [0; 8];
                self.file.read_exact_at(&mut bytes, offset(page, ANSWER))?;
                let answer = u64::from_le_bytes(bytes);
                Ok([question, WRONG].contains(&answer).then_some(answer))
            })?;
            assert_equal(&format!("the answer in page {page}"), &found, &question)?;
        }
        Ok(())
    }
}

fn offset(page: usize, place: usize) -> u64 {
    (page * PAGE + place * 8) as u64
}
