//! The agent of the base ([`insula_agent::base`]): started when a container comes to the base, and ended when there
//! are none there any more.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use insula_agent::Request;
use insula_agent::base::{FOLDER, LOCK, LOG_FILE, SOCKET};
use insula_agent::container::{ContainerAnswer, ContainerRequest};
use insula_agent::frame::{self, Reader};
use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::state;
use insula_driver::Driver;
use insula_node::current_network;
use insula_privilege::detach;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use socket2::{Domain, SockAddr, Socket, Type};

/// Its role among those of the agent's program.
const ROLE: &str = "base";
/// Name of the lock held while it is started or ended.
const START_LOCK: &str = "base-agent.lock";
/// Time that it has to be ready, and to end; the interval of looks.
const TIMEOUT: Duration = Duration::from_secs(20);
const INTERVAL: Duration = Duration::from_millis(5);

/// Connects to it. Starts it if it does not run.
///
/// # Errors
/// When it cannot be started.
pub(super) fn connect() -> Result<Socket, Error> {
    try_connect()
        .or_else(|_| {
            let _lock = state::lock(&Root::default(), START_LOCK)?;
            // Another command may have started it.
            try_connect().or_else(|_| start())
        })
        .map_err(|error| not_started().because(error))
}

fn try_connect() -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.connect(&SockAddr::unix(SOCKET)?)?;
    Ok(socket)
}

fn start() -> io::Result<Socket> {
    let network = Driver::open();
    let network = network.and_then(|driver| current_network(&driver, &Root::default(), None));
    let not_routed = insula_virtio::make_base_card(network.map_err(io::Error::other)?)?;
    start_program(not_routed).inspect_err(|_| {
        // Containers of an earlier agent still have theirs.
        if !Path::new(FOLDER).exists() {
            let _ = insula_virtio::remove_base_card();
        }
    })
}

/// Starts its program. `not_routed` is why containers reach no other hosts, if they do not.
fn start_program(not_routed: Option<io::Error>) -> io::Result<Socket> {
    let mut command = Command::new(insula_image::agent());
    command
        .arg(ROLE)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    detach(&mut command);
    let mut child = command.spawn()?;
    let mut told = String::new();
    if let Some(output) = &mut child.stderr {
        output.read_to_string(&mut told)?;
    }
    if !told.is_empty() {
        child.wait()?;
        return Err(io::Error::other(told.trim_end().to_owned()));
    }
    if let Some(error) = not_routed {
        let mut log = File::options().append(true).open(LOG_FILE)?;
        writeln!(log, "containers reach no other hosts: {error}")?;
    }
    let began = Instant::now();
    loop {
        match try_connect() {
            Err(_) if began.elapsed() < TIMEOUT => thread::sleep(INTERVAL),
            connected => return connected,
        }
    }
}

/// Ends it, unless it has containers.
///
/// # Errors
/// When it does not end, or what it had cannot be removed.
pub(crate) fn end() -> io::Result<()> {
    let _lock = state::lock(&Root::default(), START_LOCK)?;
    if let Some(socket) = connect_if_it_lives()? {
        if !ends(&socket)? {
            return Ok(());
        }
        drop(socket);
        wait_until_ended()?;
    }
    insula_virtio::remove_base_card()?;
    unmount(FOLDER, UnmountFlags::DETACH)?;
    fs::remove_dir(FOLDER)
}

/// Connects to it; none if it has ended. It may be about to start its server again.
fn connect_if_it_lives() -> io::Result<Option<Socket>> {
    let began = Instant::now();
    loop {
        match try_connect() {
            Ok(socket) => return Ok(Some(socket)),
            Err(_) if !lives()? => return Ok(None),
            Err(error) if began.elapsed() > TIMEOUT => return Err(error),
            Err(_) => thread::sleep(INTERVAL),
        }
    }
}

/// Waits until neither it nor its server is there.
fn wait_until_ended() -> io::Result<()> {
    let began = Instant::now();
    while lives()? || try_connect().is_ok() {
        if began.elapsed() > TIMEOUT {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(INTERVAL);
    }
    Ok(())
}

/// Whether it has its lock. Nobody starts one meanwhile.
fn lives() -> io::Result<bool> {
    let lock = match File::open(LOCK) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(true),
        locked => Ok(locked.map(|()| false)?),
    }
}

/// Tells it to end; false if it has containers.
fn ends(socket: &Socket) -> io::Result<bool> {
    socket.set_read_timeout(Some(TIMEOUT))?;
    frame::write(socket, &Request::Container(ContainerRequest::End))?;
    let answer = Reader::new(socket).read();
    Ok(matches!(answer, Ok(Some(ContainerAnswer::Done))))
}

fn not_started() -> Error {
    Error::new("the agent of the base, which has its containers, cannot be started").nothing_kept()
}
