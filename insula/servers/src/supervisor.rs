//! The supervisor: the process of the base that keeps a server running on its node.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::state::Lock;
use insula_driver::name::Name;
use insula_driver::{Driver, name};
use insula_node::Handle;
use insula_node::policy::retry_delay;
use insula_privilege::{detach, die_with_parent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::on_node;
use super::output::Output;
use super::placer::Placer;
use super::record::{self, Place, ServerRecord};

/// Run time after which a server counts as started successfully.
const STABLE_AFTER: Duration = Duration::from_secs(60);
/// Interval at which a node is looked at that does not run.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time that a server has to end when it is asked to.
const GRACE: Duration = Duration::from_secs(5);
/// Longest rest of a server that ends again and again: its clients wait for another one, for a minute at most.
const REST_MAX: Duration = Duration::from_secs(10);
/// Time for which others may have the supervisor's lock to look whether there is one.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Starts the supervisor of a server that has a record, if it has none.
pub(crate) fn ensure(root: &Root, node_id: u32, name: &Name) -> Result<(), Error> {
    let is_missing = record::try_lock(root, node_id, name)?.is_some();
    if is_missing {
        spawn(node_id, name)?;
    }
    Ok(())
}

/// Starts the supervisor of a server that has a record.
pub(crate) fn spawn(node_id: u32, name: &Name) -> Result<(), Error> {
    let words = ["servers", "supervise", &node_id.to_string(), name.as_str()];
    let mut command = on_node::command(&words.map(OsString::from));
    command
        .current_dir("/")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    detach(&mut command);
    let spawned = command.spawn();
    spawned.map(drop).map_err(|error| not_kept(name, error))
}

/// Keeps a server running, as the process that was started for that, until its record or its node is
/// removed. Returns at once if another process does so.
///
/// # Errors
/// When the record cannot be read, or nothing can be waited for.
pub fn supervise(driver: Driver, root: &Root, node_id: u32, name: &Name) -> Result<(), Error> {
    let Some(_lock) = own_lock(root, node_id, name)? else {
        return Ok(());
    };
    // Closed before the lock is: who waits for that may want to unload the module.
    let driver = driver;
    let failed = |error: io::Error| not_kept(name, error);
    let changes = watch_records(root).map_err(failed)?;
    let output = Output::create(&record::log(root, node_id, name)).map_err(failed)?;
    let mut server = SupervisedServer::new(output);
    let mut placer = None;
    while let Some(record) = record::read(root, node_id, name)? {
        let Some(node) = node_of(&driver, node_id)? else {
            return record::remove(root, node_id, name);
        };
        placer = match record.spec.place {
            Place::Fixed => None,
            Place::Auto => placer.or_else(|| Placer::start(root, node_id).ok()),
        };
        let timeout = server.update(&record, &node);
        server.wait(&changes, timeout).map_err(failed)?;
    }
    server.end();
    Ok(())
}

/// The node of an id; none if it was removed.
pub(crate) fn node_of(driver: &Driver, id: u32) -> Result<Option<Handle>, Error> {
    let all = insula_node::all(driver)?;
    Ok(all.into_iter().find(|node| node.info.id == id))
}

/// The supervisor's lock, unless another process has it for longer than a look takes.
fn own_lock(root: &Root, node_id: u32, name: &Name) -> Result<Option<Lock>, Error> {
    let began = Instant::now();
    loop {
        match record::try_lock(root, node_id, name)? {
            None if began.elapsed() < LOOK_TIMEOUT => thread::sleep(LOOK_INTERVAL),
            found => return Ok(found),
        }
    }
}

/// A descriptor that can be read when a record was written or removed.
fn watch_records(root: &Root) -> io::Result<OwnedFd> {
    let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    let watched = inotify::WatchFlags::DELETE | inotify::WatchFlags::MOVED_TO;
    inotify::add_watch(&changes, record::folder(root), watched)?;
    Ok(changes)
}

/// The server's process, started again whenever it has ended.
struct SupervisedServer {
    output: Output,
    running: Option<Running>,
    /// Processes that ended soon, one after the other.
    failures: u32,
    /// When the next one may be started.
    not_before: Instant,
}

struct Running {
    child: Child,
    process: OwnedFd,
    since: Instant,
}

impl SupervisedServer {
    fn new(output: Output) -> Self {
        Self {
            output,
            running: None,
            failures: 0,
            not_before: Instant::now(),
        }
    }

    /// Starts it if it does not run, the node does, and it is not to rest. Returns how long nothing is to be
    /// done unless something happens.
    fn update(&mut self, record: &ServerRecord, node: &Handle) -> Option<Duration> {
        self.reap();
        if self.running.is_some() {
            return None;
        }
        if !node.is_running() || node.is_paused() {
            return Some(INTERVAL);
        }
        let rest = self.not_before.saturating_duration_since(Instant::now());
        if !rest.is_zero() {
            return Some(rest);
        }
        match Running::start(record, node, &self.output) {
            Ok(running) => {
                self.running = Some(running);
                None
            }
            Err(error) => Some(self.rest(&format!("it cannot be started: {error}"))),
        }
    }

    /// Notices that it has ended.
    fn reap(&mut self) {
        let Some(running) = &mut self.running else {
            return;
        };
        let ended = match running.child.try_wait() {
            Ok(None) => return,
            Ok(Some(status)) => format!("it has ended: {status}"),
            Err(error) => format!("it cannot be waited for: {error}"),
        };
        if running.since.elapsed() > STABLE_AFTER {
            self.failures = 0;
        }
        self.running = None;
        self.rest(&ended);
    }

    /// Has the next one wait. Returns how long.
    fn rest(&mut self, why: &str) -> Duration {
        let delay = retry_delay(self.failures).min(REST_MAX);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Instant::now() + delay;
        let line = format!("insula: {why}; it is started again in {delay:?}");
        let _ = self.output.line(line.as_bytes());
        delay
    }

    /// Waits until it has ended, a record has changed, or the time is over.
    fn wait(&self, changes: &OwnedFd, timeout: Option<Duration>) -> io::Result<()> {
        let process = self.running.as_ref().map(|running| &running.process);
        let waited = [Some(changes), process].into_iter().flatten();
        let mut waited: Vec<_> = waited.map(|one| PollFd::new(one, PollFlags::IN)).collect();
        let timeout = timeout.map(|time| Timespec {
            tv_sec: time.as_secs().cast_signed(),
            tv_nsec: time.subsec_nanos().into(),
        });
        match poll(&mut waited, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // What has changed is looked at anyway.
        let mut events = [0; 4096];
        while rustix::io::read(changes, &mut events).is_ok_and(|bytes| bytes > 0) {}
        Ok(())
    }

    /// Ends it.
    fn end(&mut self) {
        if let Some(running) = self.running.take() {
            running.end();
        }
    }
}

impl Running {
    fn start(record: &ServerRecord, node: &Handle, output: &Output) -> io::Result<Self> {
        let mut command = command(record, node)?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        die_with_parent(&mut command);
        let mut child = command.spawn()?;
        if let Some(printed) = child.stdout.take() {
            output.take(printed);
        }
        if let Some(printed) = child.stderr.take() {
            output.take(printed);
        }
        let pid = Pid::from_child(&child);
        Ok(Self {
            process: pidfd_open(pid, PidfdFlags::empty())?,
            child,
            since: Instant::now(),
        })
    }

    /// Asks it to end, and kills it if it does not.
    fn end(mut self) {
        end_process(&self.process);
        let _ = self.child.wait();
    }
}

/// Asks a process to end, and kills it if it does not in time.
pub(crate) fn end_process(process: &OwnedFd) {
    let asked = pidfd_send_signal(process, Signal::TERM);
    let grace = Timespec {
        tv_sec: GRACE.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    if asked.is_ok() {
        // It is killed below if this fails.
        let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&grace));
    }
    // It may have ended.
    let _ = pidfd_send_signal(process, Signal::KILL);
}

/// The command that runs the server's program on its node.
fn command(record: &ServerRecord, node: &Handle) -> io::Result<Command> {
    let spec = &record.spec;
    let named = name::text(&node.info.name);
    let named: Name = named.parse().map_err(io::Error::other)?;
    let mut words: Vec<OsString> = match &spec.cpus.0[..] {
        [] => ["exec", named.as_str(), "--"].map(OsString::from).into(),
        _ => {
            let here = ["exec", &spec.cpus.to_string(), "--"];
            on_node::words(&named, &here).map_err(io::Error::other)?
        }
    };
    words.extend(spec.command.iter().map(OsString::from));
    Ok(on_node::command(&words))
}

fn not_kept(name: &Name, error: io::Error) -> Error {
    Error::new(format!("the server '{name}' is not kept running")).because(error)
}
