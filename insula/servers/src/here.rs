//! What is done on the node itself: `insula servers here`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use insula_base::error::{Error, Kind};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::on_node::ServedEndpoint;

/// Time between two lines of [`watch`].
const INTERVAL: Duration = Duration::from_secs(1);

/// Lists the endpoints of this node.
///
/// # Errors
/// When this is no node of the lightweight kernel.
pub fn list() -> Result<Vec<ServedEndpoint>, Error> {
    let listed = insula_server::endpoints().map_err(|error| failed("cannot be listed", error))?;
    Ok(listed.into_iter().map(ServedEndpoint::from).collect())
}

/// Tells the endpoints of this node once a second, as JSON, a line for each time, as long as somebody reads that.
///
/// # Errors
/// As of [`list`], or that nobody reads it any more.
pub fn watch() -> Result<(), Error> {
    loop {
        let told = serde_json::to_string(&list()?).map_err(io::Error::from);
        let told = told.and_then(|line| writeln!(io::stdout(), "{line}"));
        told.map_err(|error| Error::new("servers cannot be told").because(error))?;
        thread::sleep(INTERVAL);
    }
}

/// Puts a server of this node on those cores.
///
/// # Errors
/// When there is no such server, the node has none of these cores, or this is no node.
pub fn place(name: &str, cores: &[u32]) -> Result<(), Error> {
    insula_server::place(name, cores).map_err(|error| failed("cannot be moved", error))
}

/// Becomes a program on those cores, whose threads start there.
///
/// # Errors
/// When the node has none of these cores, or the program cannot be executed. It does not return else.
pub fn become_program(cores: &[u32], words: &[OsString]) -> Error {
    let mut set = CpuSet::new();
    let added = cores.iter().try_for_each(|core| set.set(*core as usize));
    if let Err(error) = added.and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)) {
        return Error::new("it cannot run on these cores").because(io::Error::from(error));
    }
    let [program, arguments @ ..] = words else {
        return Error::of(Kind::NoProgram, "no program is named");
    };
    let error = Command::new(program).args(arguments).exec();
    let what = format!("{} cannot be executed", program.display());
    Error::of(Kind::NoProgram, what).because(error)
}

fn failed(what: &str, error: insula_server::Error) -> Error {
    Error::new(format!("servers {what}"))
        .because(error)
        .untouched()
}
