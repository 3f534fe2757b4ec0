//! The process that stands for a container on the base: it starts the container's node, has the container's
//! process run there, with its own input, output, terminal and signals, and ends with its status.
//!
//! The node ends with it, whatever ends it: a second process, the guard, waits for that.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use insula_agent::restrictions::Restrictions;
use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_exec::agent::{self, AgentExec, Begins, DetachKeys, Location};
use insula_exec::container::processes_at;
use insula_node::{self as node, Handle, NodeLog};
use insula_privilege::detach;
use insula_servers::remove_node;
use insula_supervisor as supervisor;

use super::config::{Process, User};
use super::node::{self as container_node, Network};
use super::pod::Member;
use super::state::{Record, State};
use super::{
    delegated, engine_view, exec, mount_points, mounts, namespaces, network, restrictions,
    shared_root,
};

/// This program, even if its file has been replaced.
const PROGRAM: &str = "/proc/self/exe";
/// Time a node gets to power off when its container's process has ended: it writes what is in its memory to
/// the container's files.
const POWER_OFF_TIMEOUT: Duration = Duration::from_secs(10);
/// Time until a container that was started has a node: it may wait for another one's cores and memory.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Time until the end of a node is known whose connections have ended.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_millis(20);
/// Records shown of the log of a node that has failed.
const RECORDS: usize = 30;

/// Stands for a container until its process has ended. `began_tsc` is the time stamp counter at the start of this
/// process.
///
/// # Errors
/// Why it has failed; its node is gone.
pub fn run(id: &str, began_tsc: u64) -> Result<ExitCode, Error> {
    let mut record = record_of(id)?;
    if record.member.is_none() {
        // It would cover what is mounted there.
        shared_root::make_place()?;
    }
    record.inside.view.volumes = mount_points::place(Path::new(mounts::ROOTFS), &record.mounts)?;
    engine_view::show(&record.inside.view.volumes)?;
    let driver = Driver::open()?;
    let guard = start_guard(&record)?;
    let ended = match &record.member {
        Some(member) => run_in_pod(&driver, &record, member),
        None => run_on_node(&driver, &record, began_tsc),
    };
    drop(guard);
    ended
}

/// Runs the container in the node of its sandbox.
fn run_in_pod(driver: &Driver, record: &Record, member: &Member) -> Result<ExitCode, Error> {
    wait_for_node(driver, &record.node)?;
    let root = shared_root::attach(member)?;
    let ended = run_first(driver, record, &root);
    shared_root::detach(member);
    ended
}

/// Runs the container on a node of its own.
fn run_on_node(driver: &Driver, record: &Record, began_tsc: u64) -> Result<ExitCode, Error> {
    let ended = run_process(driver, record, began_tsc);
    end_node(driver, record, ended.is_ok());
    ended
}

/// Runs a further process of a container, which the file describes.
///
/// # Errors
/// Why it has failed.
pub fn join(id: &str, file: &Path) -> Result<ExitCode, Error> {
    let (process, started) = exec::take(file)?;
    let record = record_of(id)?;
    let driver = Driver::open()?;
    wait_for_node(&driver, &record.node)?;
    wait_for_container(&driver, &record);
    let restrictions = restrictions::of(&process)?;
    let later = Enters::Later(&started);
    execute(&driver, &record, (&process, &restrictions), later)
}

/// Waits for the node of a container that has just been started, or created.
fn wait_for_node(driver: &Driver, name: &Name) -> Result<(), Error> {
    let began = Instant::now();
    loop {
        let found = node::find(driver, name);
        let is_to_come = match &found {
            Ok(handle) => !handle.is_running() && !handle.is_stopped(),
            Err(error) => error.kind == Kind::NoNode,
        };
        if !is_to_come || began.elapsed() > START_TIMEOUT {
            return found.map(drop);
        }
        sleep(INTERVAL);
    }
}

/// Waits for a container that has just been started in a node.
fn wait_for_container(driver: &Driver, record: &Record) {
    let (began, at) = (Instant::now(), Location::Node(record.node.clone()));
    // What is missing then is reported by who asks for it.
    while processes_at(driver, &at, &record.name).is_err() && began.elapsed() < START_TIMEOUT {
        sleep(INTERVAL);
    }
}

/// Waits until the process that stands for a container, or is it, has ended, then removes its node, if it has left one.
///
/// # Errors
/// When the node cannot be removed.
pub fn guard(id: &str) -> Result<(), Error> {
    let record = record_of(id)?;
    let driver = Driver::open()?;
    // Nothing is ever written: it ends with the last process that could.
    let _ = io::stdin().read(&mut [0]);
    if record.is_delegated() {
        delegated::wait_for_end(&record);
    }
    remove_own(&driver, &record)
}

/// Removes the node of a container that was deleted, if there is still one, and what was kept of it. The calling process may be
/// in the container's network namespace then.
///
/// # Errors
/// When the node cannot be removed.
pub fn forget(id: &str) -> Result<(), Error> {
    let state = State::of(id);
    let Some(record) = state.record()? else {
        return Ok(());
    };
    if let Network::OfAnEngine(path) = &record.network {
        // What the node had there goes with it: the namespace may outlive the container. If it has not, all is gone.
        let _ = namespaces::enter_network(path);
    }
    remove_own(&Driver::open()?, &record)?;
    state.remove(Some(&record));
    Ok(())
}

fn record_of(id: &str) -> Result<Record, Error> {
    let record = State::of(id).record()?;
    record.ok_or_else(|| Error::new(format!("there is no container '{id}'")).untouched())
}

/// Starts the guard. It ends its wait when the returned descriptor is closed.
pub(super) fn start_guard(record: &Record) -> Result<OwnedFd, Error> {
    let failed = |error: io::Error| {
        let what = format!("the container '{}' cannot be guarded", record.id);
        Error::new(what).because(error).untouched()
    };
    let (reader, writer) = io::pipe().map_err(failed)?;
    let mut guard = Command::new(PROGRAM);
    guard
        .args(["oci", "guard", &record.id])
        .current_dir("/")
        .stdin(reader)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    detach(&mut guard);
    guard.spawn().map_err(failed)?;
    Ok(writer.into())
}

/// Starts the container's node, and runs its process there.
fn run_process(driver: &Driver, record: &Record, began_tsc: u64) -> Result<ExitCode, Error> {
    let request = container_node::request(&record.spec, record.kernel.as_ref(), &record.node)?;
    let started = supervisor::run(driver, &Root::default(), &request, began_tsc)?;
    if let Some(why) = started.unsupervised {
        return Err(Error::new(why).nothing_kept());
    }
    if started.is_copy {
        agent::rename(driver, &record.node)?;
        node::store_written_set(driver, &record.node);
    }
    if let Network::OfAnEngine(_) = record.network {
        let address = address(&node::find(driver, &record.node)?);
        network::lead_to(address.ok_or_else(|| no_network(&record.node))?)?;
    }
    run_first(driver, record, "")
}

/// Runs the container's first process, with this root; says why its node has ended, if that is why it fails.
fn run_first(driver: &Driver, record: &Record, root: &str) -> Result<ExitCode, Error> {
    let inside = &record.inside;
    let begins = Begins {
        name: &record.name,
        root,
        own: &inside.own,
        view: &inside.view,
        share: inside.share,
    };
    let first = (&record.process, &inside.restrictions);
    match execute(driver, record, first, Enters::First(begins)) {
        // Who reads the output has left, as with `podman run | head`.
        Err(error) if error.kind == Kind::Output => Err(error),
        Err(error) => Err(end_of(driver, &record.node).unwrap_or(error)),
        ended => ended,
    }
}

/// The address of a node on its bridge, if it has a network.
fn address(handle: &Handle) -> Option<Ipv4Addr> {
    let network = handle.record.as_ref()?.network.as_ref()?;
    Some(network.address(handle.info.id))
}

fn no_network(name: &Name) -> Error {
    Error::new(format!("the node '{name}' has no network")).nothing_kept()
}

/// How a process comes into a container.
enum Enters<'a> {
    /// The container begins with it.
    First(Begins<'a>),
    /// It joins the others; a byte is written there when it has been started.
    Later(&'a File),
}

/// Runs a process of a container.
fn execute(
    driver: &Driver,
    record: &Record,
    (process, restrictions): (&Process, &Restrictions),
    enters: Enters<'_>,
) -> Result<ExitCode, Error> {
    let words: Vec<_> = process.args.iter().map(OsString::from).collect();
    let variables = process.env.iter().filter_map(|one| one.split_once('='));
    let variables: Vec<_> = variables
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    let user = user(&process.user);
    let at = Location::Node(record.node.clone());
    let folder = process.cwd.as_os_str();
    let (begins, started) = match enters {
        Enters::First(begins) => (Some(begins), None),
        Enters::Later(started) => (None, Some(started)),
    };
    let request = AgentExec {
        at: &at,
        container: Some(&record.name),
        begins,
        user: user.as_deref(),
        restrictions: Some(restrictions),
        words: &words,
        environment: &variables,
        directory: (!folder.is_empty()).then(|| folder.to_owned()),
        // Without a user at the other end it is empty anyway.
        interactive: true,
        terminal: process.terminal,
        detach_keys: DetachKeys::none(),
        started,
    };
    let ended = agent::exec(driver, &request)?;
    Ok(ExitCode::from(ended.status()))
}

/// A user as the agent takes it; root needs none.
fn user(user: &User) -> Option<String> {
    let others = user.additional_gids.iter().filter(|&&gid| gid != user.gid);
    let groups: Vec<_> = [user.gid]
        .iter()
        .chain(others)
        .map(u32::to_string)
        .collect();
    let is_root = user.uid == 0 && groups == ["0"];
    (!is_root).then(|| format!("{}:{}", user.uid, groups.join(",")))
}

/// The end of a node that has failed under its container's process, if it has. The end of its log is shown.
fn end_of(driver: &Driver, name: &Name) -> Option<Error> {
    let began = Instant::now();
    let mut handle = node::find(driver, name).ok()?;
    while !handle.is_stopped() && began.elapsed() < END_TIMEOUT {
        sleep(INTERVAL);
        handle.refresh().ok()?;
    }
    let reason = handle.is_stopped().then(|| handle.view().reason)?;
    for line in last_lines(&handle) {
        eprintln!("insula-oci: log: {line}");
    }
    let what = format!("the container's kernel, the node '{name}', has ended");
    let error = Error::new(what).nothing_kept();
    Some(error.because(reason.unwrap_or("it is not known why")))
}

fn last_lines(handle: &Handle) -> Vec<String> {
    let read = || {
        let log = NodeLog::open(handle).ok()?;
        log.last(log.locate()?, RECORDS).ok()
    };
    let records = read().unwrap_or_default();
    records.iter().map(node::LogRecord::text).collect()
}

/// Removes the container's node, after it has powered off if it is in order.
fn end_node(driver: &Driver, record: &Record, in_order: bool) {
    if in_order {
        // However it is stopped, it is removed.
        let _ = node::stop(driver, &record.node, POWER_OFF_TIMEOUT);
    }
    if let Err(error) = remove_own(driver, record) {
        eprintln!("insula-oci: {error}");
    }
}

/// Removes what is the container's: its node, or its root in that of its sandbox.
pub(super) fn remove_own(driver: &Driver, record: &Record) -> Result<(), Error> {
    if let Some(member) = &record.member {
        shared_root::detach(member);
        return Ok(());
    }
    let own = container_node::label(&record.id);
    let is_own = |handle: &Handle| {
        let record = handle.record.as_ref();
        record.is_some_and(|record| record.spec.label.contains(&own))
    };
    let removed = match node::find(driver, &record.node) {
        Ok(handle) if is_own(&handle) => {
            if let Network::OfAnEngine(_) = record.network {
                address(&handle).into_iter().for_each(network::leave);
            }
            // Its supervisor may have been killed with the container, and then has cleared nothing up.
            remove_node(driver, &Root::default(), &record.node, true)
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind == Kind::NoNode => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_those_of_the_agent() {
        let of = |uid, gid, additional_gids: &[u32]| {
            user(&User {
                uid,
                gid,
                additional_gids: additional_gids.to_vec(),
                umask: None,
            })
        };
        assert_eq!(of(0, 0, &[]), None);
        assert_eq!(of(0, 0, &[0]), None);
        assert_eq!(of(0, 0, &[4]).as_deref(), Some("0:0,4"));
        assert_eq!(
            of(1000, 100, &[100, 4, 27]).as_deref(),
            Some("1000:100,4,27")
        );
    }
}
