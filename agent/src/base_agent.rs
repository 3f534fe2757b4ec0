//! The agent of the base, for containers beside those of nodes.
//!
//! It is to them what the first process of a node is: it starts the server, and again if that is killed, and
//! waits for containers whose server was killed. It has what a node has, so that all else is as there: a
//! folder of its own as `/run/insula`, in memory, and a network namespace with a card on the bridge, which the
//! command has made (`insula_virtio::base_card`). Its processes are the base's, and containers outlive it.
//!
//! It ends when the command says so and there are no containers ([`ContainerRequest::End`]); the command then
//! removes folder and namespace.
//!
//! [`ContainerRequest::End`]: insula_agent::container::ContainerRequest::End

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use insula_agent::base::{FOLDER, LOCK, NETWORK, OWN_LOG};
use rustix::fs::{FlockOperation, Mode, flock};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, umask, wait};
use rustix::stdio::dup2_stderr;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::containers::{exit_status, keep_status};
use crate::log::{log, use_standard_error};
use crate::namespace::unshare;
use crate::program::SELF;
use crate::route::RouteSocket;
use crate::server;

/// Role of this program: the agent of the base.
pub(crate) const BASE: &str = "base";
/// What it sees its folder as, as in a node.
const OWN_FOLDER: &str = "/run/insula";
/// Where control groups are, and a file that the root of version 2 has.
const CGROUPS: &str = "/sys/fs/cgroup";
const CGROUP_FILE: &str = "/sys/fs/cgroup/cgroup.controllers";
/// Pause before a restart of the server.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs the agent of the base. Its standard error ends when all is set up, or tells why it is not.
pub(crate) fn run() -> ExitCode {
    use_standard_error();
    match set_up() {
        // It starts its server again, for which the command waits.
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(_lock)) => {
            supervise();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Sets up what a node has. Returns the lock that this process keeps; none if there is such a process already.
fn set_up() -> io::Result<Option<File>> {
    // Whatever the command's was.
    umask(Mode::from_raw_mode(0o022));
    set_child_subreaper(Some(getpid()))?;
    mount_folder().map_err(named(FOLDER))?;
    let lock = File::create(LOCK)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(None),
        locked => locked?,
    }
    unshare(UnshareFlags::NEWNS)?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private)?;
    mount_bind(FOLDER, OWN_FOLDER)?;
    mount_cgroups().map_err(named(CGROUPS))?;
    enter_network().map_err(named(NETWORK))?;
    let log = OpenOptions::new().create(true).append(true).open(OWN_LOG)?;
    dup2_stderr(log)?;
    Ok(Some(lock))
}

/// Mounts its folder in memory, for it has containers' images; there already after an agent that was killed.
fn mount_folder() -> io::Result<()> {
    fs::create_dir_all(FOLDER)?;
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev());
    let folder = Path::new(FOLDER);
    let outside = folder.parent().unwrap_or(folder);
    if device(folder)? != device(outside)? {
        return Ok(());
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount("tmpfs", FOLDER, "tmpfs", flags, Some(c"mode=700"))?)
}

/// Has version 2 of control groups where a node has it.
fn mount_cgroups() -> io::Result<()> {
    match Path::new(CGROUP_FILE).exists() {
        true => Ok(()),
        false => Ok(mount(
            "cgroup2",
            CGROUPS,
            "cgroup2",
            MountFlags::NOSUID,
            None,
        )?),
    }
}

/// Enters the network namespace that the command has made, and brings its card up, and the loopback interface, by
/// which CRIU tries the kernel.
fn enter_network() -> io::Result<()> {
    let namespace = File::open(NETWORK)?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    let socket = RouteSocket::open()?;
    for link in socket.links()?.iter().filter(|link| link.name == "lo") {
        socket.bring_up(link.index)?;
    }
    socket.bring_up(socket.node_card()?)
}

/// Has a server run until one ends in order, and reaps orphans.
fn supervise() {
    let mut server = start_server();
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if Some(pid) == server => match status.exit_status() {
                Some(0) => return,
                _ => {
                    log("the server has ended, and is started again");
                    thread::sleep(PAUSE);
                    server = start_server();
                }
            },
            // A container's first process, if the server was killed.
            Ok(Some((pid, status))) => keep_status(pid, exit_status(status)),
            Ok(None) | Err(Errno::INTR) => {}
            Err(_) => {
                thread::sleep(PAUSE);
                server = start_server();
            }
        }
    }
}

fn start_server() -> Option<Pid> {
    match Command::new(SELF).arg(server::SERVE_BASE).spawn() {
        Ok(child) => Some(Pid::from_child(&child)),
        Err(error) => {
            log(&format!("the server cannot be started: {error}"));
            None
        }
    }
}

fn named(what: &str) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}
