//! `exec`: a further process of a container.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use insula_base::error::Error;
use insula_exec::IN_ROOT;
use serde_json::{Value, json};

use super::arguments::Arguments;
use super::config::{Process, User};
use super::passed::Passed;
use super::runtime::Runtime;
use super::started::Started;
use super::state::{Record, State};
use super::{engine_view, exit_code, own_words, pause, restrictions, rewrite, started};

/// Options that say what is to be run; the process's file says it for the ordinary runtime.
const REPLACED: [&str; 17] = [
    "--additional-gids",
    "-g",
    "--apparmor",
    "--cap",
    "-c",
    "--cgroup",
    "--cwd",
    "--env",
    "-e",
    "--no-new-privs",
    "--process",
    "-p",
    "--process-label",
    "--tty",
    "-t",
    "--user",
    "-u",
];
/// The option that names such a file.
pub(super) const PROCESS: [&str; 2] = ["--process", "-p"];
/// Keys of the container's process, in the file of the one that stands for it, and of the descriptor by which that tells that
/// it has been started.
const CONTAINER: &str = "container";
const STARTED: &str = "started";
/// The words for a terminal.
const TERMINAL: [&str; 2] = ["--tty", "-t"];

/// Runs a process in a container.
///
/// # Errors
/// Why it is refused.
pub(super) fn exec(
    arguments: &Arguments,
    runtime: &Runtime,
    record: &Record,
) -> Result<ExitCode, Error> {
    pause::check(record)?;
    let (found, process) = match described(arguments)? {
        Some(found) => found,
        None => of_options(arguments, record)?,
    };
    record.check_program(&process)?;
    restrictions::of(&process)?;
    let passed = Passed::of(arguments).and_another();
    let root = engine_view::root_of(record).map_err(|error| has_ended(record, error))?;
    let (started, writer) = Started::pipe().map_err(|error| no_pipe(record, error))?;
    let descriptors = passed.mappings(root, [writer])?;
    let file = ProcessFile::new(record)?;
    let own = own_words(&["exec", &record.id, &file.path.to_string_lossy()])?;
    let found = found.as_object().cloned().unwrap_or_default();
    let mut value = rewrite::process(&found, &process.env, &in_root(&passed, &own));
    value[CONTAINER] = json!(process);
    value[STARTED] = json!(passed.last());
    let announced = passed.announced(&arguments.with_id_only());
    let described = file.describe(&announced, &value, &REPLACED);
    let ran = described.and_then(|words| runtime.run_passing(&words.words(), descriptors, true));
    if is_in_background(arguments, &ran) {
        started.wait();
    }
    file.forget(arguments, &ran);
    Ok(exit_code(ran?))
}

/// The words by which these are executed with the root of what stands for the container.
fn in_root(passed: &Passed, words: &[String]) -> Vec<String> {
    let root = passed.number().to_string();
    let words = words.iter().map(String::as_str);
    let words: Vec<_> = [IN_ROOT, &root].into_iter().chain(words).collect();
    passed.words(&words)
}

/// A file that describes a process to the ordinary runtime.
pub(super) struct ProcessFile {
    file: File,
    path: PathBuf,
}

impl ProcessFile {
    pub(super) fn new(record: &Record) -> Result<Self, Error> {
        let (file, path) = State::of(&record.id).new_process_file()?;
        Ok(Self { file, path })
    }

    /// Writes it. Returns the command line that names it, in place of these options.
    pub(super) fn describe(
        &self,
        arguments: &Arguments,
        process: &Value,
        replaced: &[&str],
    ) -> Result<Arguments, Error> {
        serde_json::to_writer(&self.file, process)
            .map_err(|error| unreadable(&self.path, error))?;
        Ok(arguments.with_option(PROCESS[0], self.path.as_os_str(), replaced))
    }

    /// Removes it. A process that was started and not waited for has read it, or is about to.
    pub(super) fn forget(self, arguments: &Arguments, ran: &Result<ExitStatus, Error>) {
        if !is_in_background(arguments, ran) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether the process was started, and goes on.
fn is_in_background(arguments: &Arguments, ran: &Result<ExitStatus, Error>) -> bool {
    arguments.has(&["--detach", "-d"]) && ran.as_ref().is_ok_and(ExitStatus::success)
}

/// The process of the file that the command line names, if it names one.
///
/// # Errors
/// When it cannot be read.
pub(super) fn described(arguments: &Arguments) -> Result<Option<(Value, Process)>, Error> {
    let file = arguments.value(&PROCESS);
    file.map(|file| read(Path::new(file))).transpose()
}

/// The process of a file that [`exec`] has written, which is removed; and where it is told that it has been started.
///
/// # Errors
/// When it cannot be read.
pub(super) fn take(path: &Path) -> Result<(Process, File), Error> {
    let bytes = fs::read(path).map_err(|error| unreadable(path, error))?;
    let _ = fs::remove_file(path);
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| unreadable(path, error))?;
    let damaged = |error| unreadable(path, error);
    let process = serde_json::from_value(value[CONTAINER].clone()).map_err(damaged)?;
    let number = serde_json::from_value(value[STARTED].clone()).map_err(damaged)?;
    let started = started::inherited(number).map_err(|error| unreadable(path, error))?;
    Ok((process, started))
}

fn read(path: &Path) -> Result<(Value, Process), Error> {
    let bytes = fs::read(path).map_err(|error| unreadable(path, error))?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| unreadable(path, error))?;
    let process: Process =
        serde_json::from_value(value.clone()).map_err(|error| unreadable(path, error))?;
    match process.args.is_empty() {
        true => Err(no_program()),
        false => Ok((value, process)),
    }
}

/// The process that the command line describes: as the container's first one where nothing is said.
fn of_options(arguments: &Arguments, record: &Record) -> Result<(Value, Process), Error> {
    let text = |word: &std::ffi::OsStr| word.to_string_lossy().into_owned();
    let mut process = record.process.clone();
    process.args = arguments.operands().skip(1).map(text).collect();
    if process.args.is_empty() {
        return Err(no_program());
    }
    let variables = arguments.values(&["--env", "-e"]);
    process.env.extend(variables.into_iter().map(text));
    if let Some(folder) = arguments.value(&["--cwd"]) {
        process.cwd = folder.into();
    }
    if let Some(user) = arguments.value(&["--user", "-u"]) {
        process.user = user_of(&text(user))?;
    }
    process.terminal = arguments.has(&TERMINAL);
    Ok((json!({"terminal": process.terminal}), process))
}

/// A user as `UID[:GID]`.
fn user_of(text: &str) -> Result<User, Error> {
    let (uid, gid) = text.split_once(':').unwrap_or((text, "0"));
    match (uid.parse(), gid.parse()) {
        (Ok(uid), Ok(gid)) => Ok(User {
            uid,
            gid,
            additional_gids: Vec::new(),
            umask: None,
        }),
        _ => {
            let what = format!("'{text}' is no user");
            Err(Error::new(what).untouched().hint("give numbers: UID[:GID]"))
        }
    }
}

fn has_ended(record: &Record, error: io::Error) -> Error {
    Error::new(format!("the container '{}' has ended", record.id))
        .because(error)
        .untouched()
}

fn no_pipe(record: &Record, error: io::Error) -> Error {
    Error::new(format!("no process can join the container '{}'", record.id))
        .because(error)
        .untouched()
}

fn no_program() -> Error {
    Error::new("no program is given").untouched()
}

fn unreadable(path: &Path, error: impl Into<insula_base::error::Source>) -> Error {
    Error::new(format!("the process of {} cannot be read", path.display()))
        .because(error)
        .untouched()
}
