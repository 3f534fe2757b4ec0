//! Listing servers, and starting, moving, restarting and stopping them.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_base::units::CpuList;
use insula_driver::name::Name;
use insula_driver::{Driver, name};
use insula_node::Handle;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::ServerView;
use super::on_node::{self, ServedEndpoint};
use super::record::{self, Place, ServerRecord, ServerSpec};
use super::supervisor::{self, end_process};

/// Time that a server has to serve after its start, and to end when it is stopped.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const END_TIMEOUT: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(100);

/// All servers of some nodes, or of all nodes of the lightweight kernel. Supervisors that were killed are started
/// again, and records of nodes that were removed are removed.
///
/// # Errors
/// When there is no such node, or one cannot be asked.
pub fn list(driver: &Driver, root: &Root, nodes: &[Name]) -> Result<Vec<ServerView>, Error> {
    let nodes = match nodes {
        [] => insula_node::all(driver)?
            .into_iter()
            .filter(is_lightweight)
            .collect(),
        names => names
            .iter()
            .map(|name| find(driver, name))
            .collect::<Result<Vec<_>, _>>()?,
    };
    let records = record::all(root)?;
    ensure_kept(root, &records)?;
    let mut views = Vec::new();
    for node in &nodes {
        views.extend(of_node(node, &records)?);
    }
    Ok(views)
}

/// Starts supervisors that are missing.
fn ensure_kept(root: &Root, records: &[ServerRecord]) -> Result<(), Error> {
    for ServerRecord { node_id, name, .. } in records {
        supervisor::ensure(root, *node_id, name)?;
    }
    Ok(())
}

/// The servers of a node.
fn of_node(node: &Handle, records: &[ServerRecord]) -> Result<Vec<ServerView>, Error> {
    let name = node_name(node)?;
    let is_running = node.is_running() && !node.is_paused();
    let endpoints = match is_running {
        true => on_node::endpoints(&name)?,
        false => Vec::new(),
    };
    let own: Vec<_> = records
        .iter()
        .filter(|one| one.node_id == node.info.id)
        .collect();
    let kept = |endpoint: &str| own.iter().find(|one| one.name.as_str() == endpoint);
    let view =
        |name: &str, endpoint: Option<&ServedEndpoint>, kept: Option<&ServerSpec>| ServerView {
            node: node_text(node),
            name: name.to_owned(),
            state: state(is_running, endpoint, kept.is_some()),
            endpoint: endpoint.cloned(),
            kept: kept.cloned(),
        };
    let served = endpoints.iter();
    let served = served.map(|one| view(&one.name, Some(one), kept(&one.name).map(|it| &it.spec)));
    let is_served = |one: &ServerRecord| endpoints.iter().any(|it| it.name == one.name.as_str());
    let unserved = own.iter().filter(|one| !is_served(one));
    let unserved = unserved.map(|one| view(one.name.as_str(), None, Some(&one.spec)));
    let mut views: Vec<_> = served.chain(unserved).collect();
    views.sort_by(|one, two| one.name.cmp(&two.name));
    Ok(views)
}

fn state(is_running: bool, endpoint: Option<&ServedEndpoint>, is_kept: bool) -> &'static str {
    match endpoint {
        _ if !is_running => "stopped",
        Some(endpoint) if endpoint.pid.is_some() => "running",
        _ if is_kept => "starting",
        _ => "waiting",
    }
}

/// Starts a server, and keeps it running until it is stopped or its node is removed. It may belong to a
/// project, whose file describes it.
///
/// # Errors
/// When the node does not run, has a server of that name, or the server does not serve in time: then it is
/// kept running nevertheless.
pub fn start(
    driver: &Driver,
    root: &Root,
    (node, name): (&Name, &Name),
    spec: ServerSpec,
    project: Option<&Name>,
) -> Result<(), Error> {
    let found = find(driver, node)?;
    let changes = record::lock_changes(root)?;
    let is_kept = record::read(root, found.info.id, name)?.is_some();
    if is_kept || pid(node, name)?.is_some() {
        let what = format!("the node '{node}' has a server '{name}' already");
        return Err(Error::new(what).untouched().hint("stop it first"));
    }
    let record = ServerRecord {
        node_id: found.info.id,
        name: name.clone(),
        spec,
        project: project.cloned(),
    };
    record::write(root, &record)?;
    supervisor::spawn(record.node_id, name)?;
    drop(changes);
    wait_until_served(node, name, None)
}

/// Puts a server on other cores, now and whenever it is started again. It stays there: no other core is chosen for it.
///
/// # Errors
/// When there is no such server, or the node has none of these cores.
pub fn move_to(
    driver: &Driver,
    root: &Root,
    (node, name): (&Name, &Name),
    cpus: &CpuList,
) -> Result<(), Error> {
    let found = find(driver, node)?;
    on_node::place(node, name, cpus)?;
    let _changes = record::lock_changes(root)?;
    match record::read(root, found.info.id, name)? {
        Some(mut record) => {
            record.spec.cpus = cpus.clone();
            record.spec.place = Place::Fixed;
            record::write(root, &record)
        }
        None => Ok(()),
    }
}

/// Ends a server that is kept running, so that it is started again, and waits until it serves.
///
/// # Errors
/// When it is not kept running, or does not serve again in time.
pub fn restart(driver: &Driver, root: &Root, node: &Name, name: &Name) -> Result<(), Error> {
    kept(driver, root, node, name)?;
    let Some(old) = pid(node, name)? else {
        return wait_until_served(node, name, None);
    };
    let process = open_process(old).map_err(|error| not_kept(node, name).because(error))?;
    // Its number may be another process' now: that of a server is listed again.
    if pid(node, name)? == Some(old) {
        end_process(&process);
    }
    wait_until_served(node, name, Some(old))
}

fn open_process(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(io::ErrorKind::InvalidData)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Ends a server that is kept running.
///
/// # Errors
/// When it is not kept running, or does not end.
pub fn stop(driver: &Driver, root: &Root, node: &Name, name: &Name) -> Result<(), Error> {
    let record = kept(driver, root, node, name)?;
    record::remove(root, record.node_id, name)?;
    wait_until_ended(root, record.node_id, name)
}

/// Waits until the supervisor of a server that has no record any more has ended, and the server with it.
pub(crate) fn wait_until_ended(root: &Root, node_id: u32, name: &Name) -> Result<(), Error> {
    let began = Instant::now();
    while record::try_lock(root, node_id, name)?.is_none() {
        if began.elapsed() > END_TIMEOUT {
            return Err(Error::new(format!("the server '{name}' does not end")));
        }
        thread::sleep(INTERVAL);
    }
    Ok(())
}

/// The last of what a server that is kept running has printed, and how it has ended.
///
/// # Errors
/// When it is not kept running, or that cannot be read.
pub fn log(driver: &Driver, root: &Root, node: &Name, name: &Name) -> Result<Vec<u8>, Error> {
    let record = kept(driver, root, node, name)?;
    let read = fs::read(record::log(root, record.node_id, name));
    read.map_err(|error| Error::new("what it has printed cannot be read").because(error))
}

/// The record of a server that is kept running.
fn kept(driver: &Driver, root: &Root, node: &Name, name: &Name) -> Result<ServerRecord, Error> {
    let found = find(driver, node)?;
    record::read(root, found.info.id, name)?.ok_or_else(|| not_kept(node, name))
}

/// A node of the lightweight kernel.
pub(crate) fn find(driver: &Driver, name: &Name) -> Result<Handle, Error> {
    let node = insula_node::find(driver, name)?;
    match is_lightweight(&node) {
        true => Ok(node),
        false => {
            let what = format!("the node '{name}' has no servers: it runs Linux");
            Err(Error::new(what).untouched())
        }
    }
}

fn is_lightweight(node: &Handle) -> bool {
    node.record
        .as_ref()
        .is_some_and(|record| !record.is_linux())
}

fn node_text(node: &Handle) -> String {
    name::text(&node.info.name)
}

fn node_name(node: &Handle) -> Result<Name, Error> {
    let text = node_text(node);
    text.parse()
        .map_err(|error| Error::new(format!("the node '{text}'")).because(error))
}

/// Process id of a server of a node; none if it has none of that name.
fn pid(node: &Name, name: &Name) -> Result<Option<u32>, Error> {
    let endpoints = on_node::endpoints(node)?;
    let found = endpoints.iter().find(|one| one.name == name.as_str());
    Ok(found.and_then(|one| one.pid))
}

/// Waits until a name has a server, another one than the old one.
fn wait_until_served(node: &Name, name: &Name, old: Option<u32>) -> Result<(), Error> {
    let began = Instant::now();
    while began.elapsed() < START_TIMEOUT {
        if pid(node, name)?.is_some_and(|pid| Some(pid) != old) {
            return Ok(());
        }
        thread::sleep(INTERVAL);
    }
    Err(Error::of(
        Kind::Unavailable,
        format!("the server '{name}' does not serve yet"),
    )
    .leaving("it is started again and again until it does")
    .hint(format!(
        "`insula servers logs {node} {name}` shows what it prints"
    )))
}

fn not_kept(node: &Name, name: &Name) -> Error {
    Error::new(format!(
        "no server '{name}' of the node '{node}' is kept running"
    ))
    .untouched()
    .hint("`insula servers start` does that")
}
