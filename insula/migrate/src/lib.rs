//! Moves a running process of the base onto a node of the lightweight kernel. The process becomes its own
//! proxy (`insula_proxy`), so that its files, sockets, id and parent stay as they are, while its threads go
//! on as those of a program on the node.
//!
//! All threads are stopped by ptrace(2). Then the process itself makes, by system calls that it is made
//! to call, the mappings that a proxy has; until the node's kernel is told to start, all of that can be
//! undone.

mod apart;
mod back;
mod descriptor;
mod failure;
mod group;
mod place;
mod proc;
mod ptrace;
mod restart;
mod setup;
mod state;
mod stopped;

use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use insula_abi::running::{Action, SIGNALS};
use insula_base::error::Error;
use insula_driver::name::Name;
use insula_driver::{Driver, OtherProxy};
use insula_exec::program;
use insula_node as node;

use apart::{Ended, done_apart};
use failure::Failure;
use proc::{Mapping, Process};
use setup::Setup;
use state::{ProcessState, ThreadState};
use stopped::{NotStopped, Stopped, VDSO};

pub use failure::Obstacle;
pub use group::{GroupMoved, Processes, check_group, group_to_base, group_to_node};

/// What every error leaves.
const UNCHANGED: &str = "it goes on where it was";
/// Each mapping and each hole becomes one: Linux' default limit is 65530.
const MAPPINGS_MAX: usize = 32_000;
/// A process that has just called execve(2) has no vDSO for a moment.
const EXEC_TIMEOUT: Duration = Duration::from_secs(1);
const EXEC_POLL: Duration = Duration::from_millis(5);
/// Components of the extended state that need a permission of their own: AMX.
const AMX: u64 = 3 << 17;

/// A process to be moved.
#[derive(Clone, Copy, Debug)]
pub struct MoveRequest<'a> {
    /// Its id.
    pub pid: i32,
    /// The node.
    pub node: &'a Name,
    /// Polls for a call before its proxy sleeps.
    pub polls: u64,
}

/// What a move took.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// Number of its threads.
    pub threads: usize,
    /// Time for which they were stopped.
    pub stopped_for: Duration,
}

/// Whether a process is the proxy of a program, which runs on a node.
///
/// # Errors
/// The process does not exist, or its mappings may not be read.
pub fn is_on_node(pid: i32) -> Result<bool, Error> {
    if !proc::exists(pid).unwrap_or(false) {
        return Err(no_process(pid));
    }
    let mappings = Process { pid }.mappings();
    let mappings = mappings.map_err(|failure| not_moved(pid, failure))?;
    Ok(has(&mappings, setup::MIRROR))
}

/// What speaks against moving a process, as far as it can be known without stopping it.
///
/// # Errors
/// The process does not exist, or its files in `/proc` may not be read.
pub fn obstacles(pid: i32) -> Result<Vec<Obstacle>, Error> {
    let process = Process { pid };
    if !proc::exists(pid).unwrap_or(false) {
        return Err(no_process(pid));
    }
    find_obstacles(process).map_err(|failure| not_moved(pid, failure))
}

fn find_obstacles(process: Process) -> Result<Vec<Obstacle>, Failure> {
    let mut found = process.status()?.obstacles();
    if process.pid == std::process::id().cast_signed() {
        found.push(Obstacle::Itself);
    }
    if !found.is_empty() {
        return Ok(found);
    }
    let deadline = Instant::now() + EXEC_TIMEOUT;
    let mut mappings = process.mappings()?;
    let is_proxy = has(&mappings, setup::MIRROR);
    while !has(&mappings, VDSO) && !is_proxy && Instant::now() < deadline {
        sleep(EXEC_POLL);
        mappings = process.mappings()?;
    }
    let has_vdso = has(&mappings, VDSO);
    let all = [
        (is_proxy, Obstacle::OnNode),
        (!has_vdso && !is_proxy, Obstacle::NoVdso),
        (process.has_address_limit()?, Obstacle::AddressLimit),
        (
            mappings.len() > MAPPINGS_MAX,
            Obstacle::Mappings(mappings.len()),
        ),
    ];
    let there = all.into_iter().filter(|(is_there, _)| *is_there);
    found.extend(there.map(|(_, obstacle)| obstacle));
    Ok(found)
}

fn has(mappings: &[Mapping], name: &str) -> bool {
    mappings.iter().any(|one| one.name.contains(name))
}

/// Checks that a process can be moved to a node.
///
/// # Errors
/// Why not; nothing was touched.
pub fn check(driver: &Driver, request: &MoveRequest<'_>) -> Result<(), Error> {
    has_no_obstacles(request.pid)?;
    create_mirror(driver, request.node).map(drop)
}

/// Checks that nothing speaks against moving a process.
fn has_no_obstacles(pid: i32) -> Result<(), Error> {
    let found: Vec<_> = obstacles(pid)?.iter().map(Obstacle::to_string).collect();
    match found.is_empty() {
        true => Ok(()),
        false => Err(not_moved(pid, found.join("; "))),
    }
}

/// Moves a process to a node. This process must be single-threaded.
///
/// # Errors
/// Why not; the process goes on where it was.
pub fn to_node(driver: &Driver, request: &MoveRequest<'_>) -> Result<Moved, Error> {
    let pid = request.pid;
    has_no_obstacles(pid)?;
    let mirror = create_mirror(driver, request.node)?;
    by_another(pid, || move_process(Process { pid }, mirror, request.polls))
}

/// Moves a process by another one than this, which may be killed meanwhile.
fn by_another(
    pid: i32,
    move_it: impl FnOnce() -> Result<usize, NotStopped>,
) -> Result<Moved, Error> {
    let began = Instant::now();
    match done_apart(move_it).map_err(|failure| not_moved(pid, failure))? {
        Ended::Moved(threads) => Ok(Moved {
            threads,
            stopped_for: began.elapsed(),
        }),
        Ended::Not(why) => Err(not_moved(pid, why)),
        Ended::Lost(why) => Err(not_moved(pid, why).leaving("it was killed")),
    }
}

/// Moves a program that was moved to a node back to the base. As [`to_node`] otherwise.
///
/// # Errors
/// Why not; the program goes on on its node, unless the error tells otherwise.
pub fn to_base(pid: i32) -> Result<Moved, Error> {
    if !proc::exists(pid).unwrap_or(false) {
        return Err(no_process(pid));
    }
    by_another(pid, || back::to_base(Process { pid }))
}

/// Moves a process to the node of a mirror. Returns the number of its threads.
fn move_process(
    process: Process,
    (mirror, slot): (OwnedFd, u32),
    polls: u64,
) -> Result<usize, NotStopped> {
    let mut stopped = Stopped::stop(process)?;
    let mut threads = thread_states(&stopped)?;
    threads[0].slot = slot;
    let state = process_state(&stopped)?;
    let size = state.size(threads.len(), threads[0].extended.len());
    let region = place::place(&state.vmas, size).ok_or(Obstacle::NoRoom)?;
    let proxy = OtherProxy {
        region,
        descriptor: 0,
    };
    let mut setup = Setup::new(&mut stopped, proxy, state, threads);
    setup.run(&mirror, polls)?;
    let (proxy, threads) = (setup.proxy, setup.threads);
    setup::enter(&proxy, stopped.threads, &threads);
    Ok(threads.len())
}

fn thread_states(stopped: &Stopped) -> Result<Vec<ThreadState>, NotStopped> {
    let of_each = stopped.threads.iter();
    let states: Result<Vec<_>, NotStopped> = of_each
        .map(|thread| {
            let extended = thread.extended()?;
            if uses_amx(&extended) {
                return Err(Obstacle::Amx.into());
            }
            let status = stopped.process.thread_status(thread.id())?;
            let id = status.id_in_namespace();
            let (cpu_time_ns, mut scheduling) = stopped.process.thread_scheduling(thread.id())?;
            scheduling.policy = thread.policy().unwrap_or(scheduling.policy);
            Ok(ThreadState {
                id: id.unwrap_or(thread.id() as u64),
                extended,
                robust_list: thread.robust_list()?,
                rseq: thread.rseq()?,
                cpu_time_ns,
                scheduling,
                ..Default::default()
            })
        })
        .collect();
    let states = states?;
    let size = states[0].extended.len();
    match states.iter().all(|state| state.extended.len() == size) {
        true => Ok(states),
        false => Err(Failure::invalid("reading its registers", "their sizes differ").into()),
    }
}

/// Whether a part of AMX is in use, by the header of the extended state.
fn uses_amx(extended: &[u8]) -> bool {
    const HEADER_AT: usize = 512;
    let header = extended.get(HEADER_AT..HEADER_AT + 8);
    let components = header.and_then(|bytes| bytes.try_into().ok().map(u64::from_ne_bytes));
    components.is_some_and(|components| components & AMX != 0)
}

/// The state of the process, but for what only itself is told.
fn process_state(stopped: &Stopped) -> Result<ProcessState, Failure> {
    let process = stopped.process;
    let stack = stopped.mappings.iter().find(|one| one.name == "[stack]");
    let heap_start = process.heap_start()?;
    Ok(ProcessState {
        vmas: stopped.mappings.iter().map(|one| one.vma).collect(),
        timers: process.timers()?,
        heap: (heap_start, heap_start),
        stack: stack.map_or((0, 0), |stack| (stack.vma.start, stack.vma.end)),
        signals_of_fds: process.signals_of_fds()?,
        actions: [Action::default(); SIGNALS],
        auxiliary: process.auxiliary_vector()?,
        path: process.executable(),
    })
}

/// Creates a mirror on a node, for a process that will become its proxy.
fn create_mirror(driver: &Driver, name: &Name) -> Result<(OwnedFd, u32), Error> {
    let handle = node::find(driver, name)?;
    if handle.is_paused() {
        return Err(node::is_paused(name));
    }
    let created = handle.node.create_mirror_for_other(OtherProxy::program());
    created.map_err(|error| program::no_mirror(name, error).leaving(UNCHANGED))
}

fn no_process(pid: i32) -> Error {
    Error::new(format!("there is no process {pid}")).untouched()
}

fn not_moved(pid: i32, why: impl Into<insula_base::error::Source>) -> Error {
    Error::new(format!("process {pid} cannot be moved"))
        .because(why)
        .leaving(UNCHANGED)
}
