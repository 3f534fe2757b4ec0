//! Published ports of containers: a process of the base for each container that has some, which accepts
//! connections and forwards them to the container's address. That goes with the container, so nothing
//! changes for it when the container is moved.
//!
//! It ends when the container's record is removed, or says another container.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::state::{self, Lock};
use insula_driver::name::Name;
use insula_node::attachment::Publish;
use insula_privilege::detach;
use insula_virtio::PublishedPorts;
use rustix::fs::inotify;

use super::record::{ContainerRecord, folder, read};

/// This program, even if its file has been replaced.
const PROGRAM: &str = "/proc/self/exe";
/// What the process tells when all ports are open; anything else is the reason why not.
const OPEN: &str = "open";
/// Time that the process has to end once its record is removed, time for which others may have its lock to
/// look whether it is there, and the interval of looks.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_millis(10);

/// Checks that a container can have these ports.
pub(super) fn check(ports: &[Publish], has_network: bool) -> Result<(), Error> {
    if !ports.is_empty() && !has_network {
        return Err(
            Error::new("the node has no network, so no port leads to its containers")
                .about("publish")
                .untouched()
                .hint("start it with --network"),
        );
    }
    ports.iter().try_for_each(|port| {
        port.check()
            .map_err(|error| insula_node::cannot_publish(*port, error))
    })
}

/// Opens the ports of a container, which has a record already.
pub(super) fn open(record: &ContainerRecord) -> Result<(), Error> {
    if record.publish.is_empty() {
        return Ok(());
    }
    let mut command = Command::new(PROGRAM);
    command
        .arg0("insula")
        .args(["publish", record.name.as_str()])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    detach(&mut command);
    let failed = |error: io::Error| not_open(&record.name).because(error);
    let mut child = command.spawn().map_err(failed)?;
    let mut told = String::new();
    if let Some(output) = &mut child.stdout {
        output.read_to_string(&mut told).map_err(failed)?;
    }
    match told.as_str() {
        OPEN => Ok(()),
        "" => Err(failed(io::ErrorKind::UnexpectedEof.into())),
        reason => Err(not_open(&record.name).because(reason.to_owned())),
    }
}

/// Opens the ports of those containers again whose process was killed. Returns the failures.
pub(super) fn ensure(root: &Root, records: &[ContainerRecord]) -> Vec<Error> {
    let published = records.iter().filter(|record| !record.publish.is_empty());
    let closed = published.filter(|record| matches!(lock(root, &record.name), Ok(Some(_))));
    closed.filter_map(|record| open(record).err()).collect()
}

/// Waits until the ports of a container are closed whose record was removed.
pub(super) fn closed(root: &Root, record: &ContainerRecord) {
    if record.publish.is_empty() {
        return;
    }
    let began = Instant::now();
    while matches!(lock(root, &record.name), Ok(None)) && began.elapsed() < END_TIMEOUT {
        thread::sleep(INTERVAL);
    }
    // It may have been killed.
    if let Some(address) = record.address {
        let _ = PublishedPorts::forget(address);
    }
}

/// Forwards connections to a container, as the process that was started for that. Tells by `tell` when all
/// ports are open, and returns when its record is gone.
///
/// # Errors
/// When there is no such record, or a port cannot be opened.
pub fn serve_ports(
    root: &Root,
    name: &Name,
    mut tell: impl Write,
    close: impl FnOnce() -> io::Result<()>,
) -> Result<(), Error> {
    let failed = |error: io::Error| not_open(name).because(error);
    let Some(record) = read(root, name)? else {
        return Err(not_open(name).because("it is not there".to_owned()));
    };
    let Some(_lock) = own_lock(root, name).map_err(failed)? else {
        // Another process has opened them.
        return told(&mut tell).map_err(failed);
    };
    let flags = inotify::CreateFlags::CLOEXEC;
    let changes = inotify::init(flags).map_err(|error| failed(error.into()))?;
    let watched = inotify::WatchFlags::DELETE | inotify::WatchFlags::MOVED_TO;
    inotify::add_watch(&changes, folder(root), watched).map_err(|error| failed(error.into()))?;
    let address = record.address.ok_or_else(|| not_open(name))?;
    let _ports = PublishedPorts::open(&record.publish, address).map_err(failed)?;
    told(&mut tell).and_then(|()| close()).map_err(failed)?;
    while is_of(root, &record) {
        let mut event = [0; 4096];
        match rustix::io::read(&changes, &mut event) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed(error.into())),
        }
    }
    Ok(())
}

/// Tells that all ports are open.
fn told(tell: &mut impl Write) -> io::Result<()> {
    tell.write_all(OPEN.as_bytes())?;
    tell.flush()
}

/// Whether a record still says that container, wherever it is.
fn is_of(root: &Root, record: &ContainerRecord) -> bool {
    let same = |now: ContainerRecord| {
        (now.created_unix_s, now.address, &now.publish)
            == (record.created_unix_s, record.address, &record.publish)
    };
    match read(root, &record.name) {
        Ok(now) => now.is_some_and(same),
        // One that cannot be read now is looked at again at the next change.
        Err(_) => true,
    }
}

/// The lock of a container's ports; none while they are open.
fn lock(root: &Root, name: &Name) -> io::Result<Option<Lock>> {
    state::try_lock(root, &format!("ports-{name}.lock"))
}

/// The lock of a container's ports, unless another process keeps it for longer than a look takes.
fn own_lock(root: &Root, name: &Name) -> io::Result<Option<Lock>> {
    let began = Instant::now();
    loop {
        match lock(root, name)? {
            None if began.elapsed() < LOOK_TIMEOUT => thread::sleep(INTERVAL),
            found => return Ok(found),
        }
    }
}

fn not_open(name: &Name) -> Error {
    Error::new(format!("the ports of the container '{name}' are not open"))
        .hint("`insula ps` opens them again")
}
