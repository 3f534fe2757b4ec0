//! Asking a node's kernel for its endpoints, by this program on the node.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use insula_base::error::{Error, Kind};
use insula_base::units::CpuList;
use insula_driver::name::Name;
use insula_server::EndpointState;
use serde::{Deserialize, Serialize};

/// This program, even if its file has been replaced.
const PROGRAM: &str = "/proc/self/exe";

/// An endpoint of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ServedEndpoint {
    /// Its name.
    pub name: String,
    /// Process id of its server; none if only clients wait there.
    pub pid: Option<u32>,
    /// Threads of that process that serve no other endpoint.
    pub threads: u32,
    /// Those that wait for requests.
    pub waiting: u32,
    /// Requests that nobody has received.
    pub queued: u32,
    /// Requests that the server has.
    pub served: u32,
    /// Requests that servers have received since there is the endpoint.
    pub received: u64,
    /// Those from another core than the server's.
    pub crossings: u64,
    /// Interrupts of devices that servers have received.
    pub interrupts: u64,
    /// Processor time of these threads, in ns.
    pub busy_ns: u64,
    /// Cores on which it may run, by the node's numbers.
    pub cpus: CpuList,
}

impl From<EndpointState> for ServedEndpoint {
    fn from(state: EndpointState) -> Self {
        Self {
            name: state.name,
            pid: state.server,
            threads: state.threads,
            waiting: state.waiting,
            queued: state.queued,
            served: state.served,
            received: state.received,
            crossings: state.crossings,
            interrupts: state.interrupts,
            busy_ns: u64::try_from(state.busy.as_nanos()).unwrap_or(u64::MAX),
            cpus: CpuList(state.cores),
        }
    }
}

/// The words that run this program's part on a node.
pub(crate) fn words(node: &Name, here: &[&str]) -> Result<Vec<OsString>, Error> {
    let own = std::env::current_exe();
    let own = own.map_err(|error| Error::new("this program's file is not known").because(error))?;
    let mut words: Vec<OsString> = ["exec", node.as_str(), "--"].map(OsString::from).into();
    words.push(own.into());
    words.extend(["servers", "here"].map(OsString::from));
    words.extend(here.iter().map(OsString::from));
    Ok(words)
}

/// The command that runs `insula` with these words.
pub(crate) fn command(words: &[OsString]) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(PROGRAM);
    command.arg0("insula").args(words).stdin(Stdio::null());
    command
}

/// The endpoints of a node.
///
/// # Errors
/// When the node cannot run programs of the base now.
pub(crate) fn endpoints(node: &Name) -> Result<Vec<ServedEndpoint>, Error> {
    let told = ask(node, &["ls"])?;
    serde_json::from_slice(&told).map_err(|error| not_asked(node).because(error))
}

/// Puts a server of a node on those cores: if it has shards, it and each of these on one of them, in turn.
///
/// # Errors
/// When there is no such server, or the node has none of these cores.
pub(crate) fn place(node: &Name, server: &Name, cpus: &CpuList) -> Result<(), Error> {
    ask(node, &["place", server.as_str(), &cpus.to_string()]).map(drop)
}

/// Puts a server, or a shard of one, on a core.
///
/// # Errors
/// As of [`place`].
pub(crate) fn place_alone(node: &Name, server: &str, core: u32) -> Result<(), Error> {
    ask(node, &["place", server, &core.to_string(), "--alone"]).map(drop)
}

fn ask(node: &Name, here: &[&str]) -> Result<Vec<u8>, Error> {
    let output = command(&words(node, here)?)
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| not_asked(node).because(error))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => {
            let told = String::from_utf8_lossy(&output.stderr);
            let told = told.trim().trim_start_matches("insula: ");
            Err(not_asked(node).because(told.to_owned()))
        }
    }
}

fn not_asked(node: &Name) -> Error {
    let what = format!("the servers of the node '{node}' cannot be reached");
    Error::of(Kind::Unavailable, what).unchanged()
}
