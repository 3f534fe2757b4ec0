//! `exec`: a further process of a container.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use insula_base::error::Error;
use serde_json::{Value, json};

use super::arguments::Arguments;
use super::config::{Process, User};
use super::runtime::Runtime;
use super::state::{Record, State};
use super::{exit_code, own_words, restrictions, rewrite};

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
/// Key of the container's process, in the file of the one that stands for it.
const CONTAINER: &str = "container";
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
    let (found, process) = match arguments.value(&["--process", "-p"]) {
        Some(file) => read(Path::new(file))?,
        None => of_options(arguments, record)?,
    };
    restrictions::of(&process)?;
    let state = State::of(&record.id);
    let (mut file, path) = state.new_process_file()?;
    let name = path.to_string_lossy();
    let words = own_words(&["exec", &record.id, &name])?;
    let found = found.as_object().cloned().unwrap_or_default();
    let mut value = rewrite::process(&found, &process.env, &words);
    value[CONTAINER] = json!(process);
    let written = serde_json::to_writer(&mut file, &value);
    let ran = written
        .map_err(|error| unreadable(&path, error))
        .and_then(|()| {
            let passed = arguments.with_id_only();
            let passed = passed.with_option("--process", path.as_os_str(), &REPLACED);
            runtime.run_with_signals(&passed.words())
        });
    // A process that was started has read it, or is about to.
    let is_detached = arguments.has(&["--detach", "-d"]);
    if !is_detached || !ran.as_ref().is_ok_and(std::process::ExitStatus::success) {
        let _ = fs::remove_file(&path);
    }
    Ok(exit_code(ran?))
}

/// The process of a file that [`exec`] has written, which is removed.
///
/// # Errors
/// When it cannot be read.
pub(super) fn take(path: &Path) -> Result<Process, Error> {
    let bytes = fs::read(path).map_err(|error| unreadable(path, error))?;
    let _ = fs::remove_file(path);
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| unreadable(path, error))?;
    let process = serde_json::from_value(value[CONTAINER].clone());
    process.map_err(|error| unreadable(path, error))
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

fn no_program() -> Error {
    Error::new("no program is given").untouched()
}

fn unreadable(path: &Path, error: impl Into<insula_base::error::Source>) -> Error {
    Error::new(format!("the process of {} cannot be read", path.display()))
        .because(error)
        .untouched()
}
