//! What is done on the node itself: `insula servers here`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::iter;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use insula_base::error::{Error, Kind};
use insula_server::EndpointState;
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

/// Puts a server of this node on those cores: if it has shards, it and each of these on one of them, in turn.
///
/// # Errors
/// As of [`place`].
pub fn place_with_shards(name: &str, cores: &[u32]) -> Result<(), Error> {
    let endpoints =
        insula_server::endpoints().map_err(|error| failed("cannot be listed", error))?;
    let shards = shards_of(&endpoints, name);
    if shards.is_empty() {
        return place(name, cores);
    }
    let all = iter::once(name).chain(shards);
    let mut placed = all.zip(cores.iter().cycle());
    placed.try_for_each(|(one, core)| place(one, &[*core]))
}

/// The names of a server's shards, in their order.
fn shards_of<'a>(endpoints: &'a [EndpointState], name: &str) -> Vec<&'a str> {
    let numbered = endpoints
        .iter()
        .filter_map(|one| Some((shard_number(&one.name, name)?, one)));
    let mut shards: Vec<_> = numbered.map(|(number, one)| (number, &*one.name)).collect();
    shards.sort_unstable();
    shards.into_iter().map(|(_, shard)| shard).collect()
}

/// The number of a shard of a server; none if the name is not one's.
pub(crate) fn shard_number(shard: &str, server: &str) -> Option<u32> {
    shard.strip_prefix(server)?.strip_prefix('.')?.parse().ok()
}

/// Puts a server of this node, or a shard of one, on those cores.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_have_the_name_of_their_server_and_a_number() {
        let names = [
            "a", "file", "file.1", "file.10", "file.2", "file.x", "file2.1",
        ];
        let endpoint = |name: &&str| EndpointState {
            name: (*name).to_owned(),
            server: Some(7),
            threads: 1,
            waiting: 0,
            queued: 0,
            served: 0,
            received: 0,
            crossings: 0,
            interrupts: 0,
            busy: Duration::ZERO,
            cores: vec![0],
        };
        let endpoints: Vec<_> = names.iter().map(endpoint).collect();
        assert_eq!(
            shards_of(&endpoints, "file"),
            ["file.1", "file.2", "file.10"]
        );
        assert_eq!(shards_of(&endpoints, "a"), [""; 0]);
    }
}
