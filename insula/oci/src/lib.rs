//! The OCI runtime `insula-oci`: each container on a kernel of its own.
//!
//! Engines (podman, containerd) give a runtime a *bundle*: a folder with a root and a `config.json` that says
//! what is to run in it, and how. Cgroups, namespaces, hooks, consoles and states are the same for a container on a
//! kernel of its own; so these are left to the ordinary runtime, crun or runc, which is given a rewritten bundle.
//! Its process *stands for* the container: it starts a node whose root is the container's, and runs the container's
//! process there.
//!
//! | module | concept |
//! |---|---|
//! | `arguments`, `config` | what an engine says: the command line, a bundle's configuration |
//! | `create`, `start`, `exec`, `kill`, `pause`, `update` | the verbs that are not just passed on |
//! | `namespaces` | which of them are refused |
//! | `node`, `mounts`, `rewrite` | what becomes of a configuration: a node, its files, another configuration |
//! | `restrictions`, `view` | what the node's agent makes of it: a process, and what that sees of the kernel |
//! | `pod`, `shared_root` | containers that share a node |
//! | `delegated` | containers on the lightweight kernel, whose processes become its programs' proxies |
//! | `hooks` | what its engine has called when it is created, started and deleted |
//! | `state` | what is kept of a container |
//! | `stand_in`, `mount_points`, `network` | the process that stands for it |
//! | `engine_view`, `passed` | what engines see of the container at that process, and how they get further ones there |
//! | `runtime`, `report` | the ordinary runtime; errors as engines read them |

mod arguments;
mod config;
mod create;
mod delegated;
mod engine_view;
mod exec;
mod executable;
mod hooks;
mod kill;
mod mount_points;
mod mounts;
mod namespaces;
mod network;
mod node;
mod passed;
mod pause;
mod pod;
mod pod_limits;
mod report;
mod restrictions;
mod rewrite;
mod runtime;
mod shared_root;
mod stand_in;
mod start;
mod started;
mod state;
mod update;
mod view;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::process::{ExitCode, ExitStatus};

use insula_base::error::Error;
use serde_json::{Value, json};

use arguments::Arguments;
use report::Report;
use runtime::Runtime;
use state::{Record, State};

pub use hooks::call as call_hooks;
pub use stand_in::{forget, guard, join, run};

/// Name of the program that is this runtime: a link to `insula`.
const NAME: &str = "insula-oci";

/// States of a container.
const RUNNING: &str = "running";
const PAUSED: &str = "paused";

/// Whether a program that was started by this name is to be the runtime.
#[must_use]
pub fn is_meant(program: &OsStr) -> bool {
    Path::new(program).file_name() == Some(OsStr::new(NAME))
}

/// Executes a command line, without the program's name. Failures are reported.
pub fn main(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = Arguments::parse(words);
    match execute(&arguments) {
        Ok(status) => status,
        Err(error) => {
            Report::of(&arguments).error(&error);
            ExitCode::FAILURE
        }
    }
}

fn execute(arguments: &Arguments) -> Result<ExitCode, Error> {
    let runtime = Runtime::find()?;
    let verb = arguments.verb.as_str();
    if matches!(verb, "create" | "run") {
        return create::create(arguments, &runtime);
    }
    if verb.is_empty() {
        // Engines show it before what the ordinary runtime says.
        println!("{NAME} version {}", env!("CARGO_PKG_VERSION"));
    }
    match (verb, record_of(arguments)?) {
        ("start", Some(record)) if !record.is_delegated() => {
            start::start(arguments, &runtime, &record)
        }
        ("exec", Some(record)) if record.is_delegated() => {
            delegated::exec(arguments, &runtime, &record)
        }
        ("exec", Some(record)) => exec::exec(arguments, &runtime, &record),
        ("state", Some(record)) => show_state(arguments, &runtime, &record),
        ("delete", Some(record)) => delete(arguments, &runtime, &record),
        ("kill", Some(record)) if !record.is_delegated() => {
            kill::kill(arguments, &runtime, &record)
        }
        ("pause", Some(record)) if !record.is_delegated() => pause::pause(&record),
        ("resume", Some(record)) if !record.is_delegated() => pause::resume(&record),
        ("update", Some(record)) if !record.is_delegated() => {
            update::update(arguments, &runtime, &record)
        }
        ("checkpoint" | "pause" | "restore" | "resume" | "update", Some(record)) => {
            Err(cannot(verb, &record))
        }
        // Of nothing, or of a container that is not on a kernel of its own.
        _ => Err(runtime.exec(&arguments.words())),
    }
}

/// The record of the container that the command line is about; `None` if it is about none of this runtime's. Its id is
/// an operand, but values of options that only the ordinary runtime knows look the same.
fn record_of(arguments: &Arguments) -> Result<Option<Record>, Error> {
    // What follows is a program's.
    let most = if arguments.verb == "exec" {
        1
    } else {
        usize::MAX
    };
    let words = arguments.operands().take(most);
    let ids = words.map(OsStr::to_string_lossy);
    let mut ids = ids.filter(|id| state::check_id(id).is_ok());
    ids.find_map(|id| State::of(&id).record().transpose())
        .transpose()
}

/// Shows a container's state: it has the bundle that the engine has given.
fn show_state(
    arguments: &Arguments,
    runtime: &Runtime,
    record: &Record,
) -> Result<ExitCode, Error> {
    let answer = runtime.output(&arguments.words())?;
    let text = match serde_json::from_slice::<Value>(&answer.stdout) {
        Ok(mut state) if state.is_object() => {
            state["bundle"] = json!(record.bundle);
            if state["status"] == RUNNING && State::of(&record.id).is_paused() {
                state["status"] = json!(PAUSED);
            }
            format!("{state:#}\n").into_bytes()
        }
        _ => answer.stdout,
    };
    let written = io::stdout().write_all(&text);
    written.map_err(|error| Error::new("the state cannot be written").because(error))?;
    Ok(exit_code(answer.status))
}

/// Deletes a container. The ordinary runtime's hook forgets it; if that knew it no more, this does.
fn delete(arguments: &Arguments, runtime: &Runtime, record: &Record) -> Result<ExitCode, Error> {
    let status = runtime.run(&arguments.words())?;
    if status.success() {
        forget(&record.id)?;
    }
    Ok(exit_code(status))
}

/// The words by which this program is called in one of its parts.
fn own_words(part: &[&str]) -> Result<Vec<String>, Error> {
    let program = env::current_exe().map_err(|error| {
        Error::new("this program's own path is not known")
            .because(error)
            .untouched()
    })?;
    let program = program.to_string_lossy().into_owned();
    let part = ["oci"].iter().chain(part).map(ToString::to_string);
    Ok([program].into_iter().chain(part).collect())
}

/// The exit status of a process that has ended, for this one.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

fn no_id() -> Error {
    Error::new("no container is named").untouched()
}

fn cannot(verb: &str, record: &Record) -> Error {
    let node = &record.node;
    let hint = match verb {
        "pause" | "resume" => format!(
            "with the annotation `run.insula.isolation=vmm`, `insula {verb} {node}` does that to its kernel"
        ),
        _ => String::new(),
    };
    let what = format!("{verb} is not possible for a container on a kernel of its own");
    Error::new(what).unchanged().hint(hint)
}
