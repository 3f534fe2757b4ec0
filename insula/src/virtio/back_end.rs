//! Programs that do a device's work for a node (vhost-user back ends).

#![allow(
    unsafe_code,
    reason = "what a child does before it becomes the program is unsafe to say"
)]

use std::fs::{self, DirBuilder};
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};
use vhost::VhostUserMemoryRegionInfo;
use vhost::vhost_user::Frontend;
use vm_memory::{Address, GuestMemoryRegion, GuestRegionMmap};

use super::memory::NodeMemory;
use crate::state::RUN;

/// How long a program may take to end what it has begun.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether it has.
const INTERVAL: Duration = Duration::from_millis(5);

/// A process that serves one connection. It is ended with this value, by force.
#[derive(Debug)]
pub(super) struct Program(Child);

impl Program {
    /// Starts a program that serves who connects to its standard input, and connects to it. It does
    /// not outlive this thread, however that ends.
    pub(super) fn start(mut command: Command) -> io::Result<(Self, UnixStream)> {
        let (listener, stream) = connect()?;
        command
            .stdin(OwnedFd::from(listener))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let own = nix::unistd::getpid();
        // SAFETY: between fork and exec only system calls are made: nothing is allocated, and no lock
        // is taken that a thread of the parent may have held.
        unsafe { command.pre_exec(move || end_with(own)) };
        Ok((Self(command.spawn()?), stream))
    }

    /// Asks it to end; whether that was possible.
    fn ask(&self) -> bool {
        let id = i32::try_from(self.0.id()).map(Pid::from_raw);
        id.is_ok_and(|id| kill(id, Signal::SIGTERM).is_ok())
    }

    /// Until it has ended, but not for ever.
    fn await_end(&mut self) {
        let began = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) && began.elapsed() < PATIENCE {
            thread::sleep(INTERVAL);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A socket on which a program will listen, and a connection to it. Nobody else can have one.
fn connect() -> io::Result<(UnixListener, UnixStream)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let socket = format!("back-end-{}-{number}", std::process::id());
    let socket = PathBuf::from(RUN).join(socket);
    DirBuilder::new().recursive(true).mode(0o700).create(RUN)?;
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket)?;
    let stream = UnixStream::connect(&socket);
    fs::remove_file(&socket)?;
    Ok((listener, stream?))
}

/// Has this process killed as soon as its parent, which has this id, is no more.
fn end_with(parent: Pid) -> io::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    // It may have been too late for that.
    match getppid() == parent {
        true => Ok(()),
        false => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

/// When a program ends that is not killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// With its connection.
    ByItself,
    /// When it gets SIGTERM.
    WhenAsked,
}

/// A program that was started, and the connection by which it is told what to do. With this value
/// it is ended.
pub(super) struct Connected {
    pub(super) front_end: Frontend,
    /// The front end's connection, to be polled.
    stream: UnixStream,
    program: Program,
    ends: Ends,
}

impl Connected {
    /// Starts it, for a device of so many virtqueues.
    pub(super) fn start(command: Command, queues: usize, ends: Ends) -> io::Result<Self> {
        let (program, stream) = Program::start(command)?;
        Ok(Self {
            front_end: Frontend::from_stream(stream.try_clone()?, queues as u64),
            stream,
            program,
            ends,
        })
    }

    /// The program's process.
    #[cfg(test)]
    pub(super) fn id(&self) -> u32 {
        self.program.0.id()
    }

    /// Ends it when it has done what it has begun, or by force if that takes long.
    pub(super) fn end(mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        let waits = match self.ends {
            Ends::ByItself => true,
            Ends::WhenAsked => self.program.ask(),
        };
        if waits {
            self.program.await_end();
        }
    }
}

impl AsFd for Connected {
    /// Hangs up when the program has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The node's memory, for a program to map. Addresses of ours, by which virtqueues are told, are made
/// the node's own.
pub(super) fn regions(memory: &NodeMemory) -> Vec<VhostUserMemoryRegionInfo> {
    let region = |region: &GuestRegionMmap| {
        let offset = region.file_offset()?;
        Some(VhostUserMemoryRegionInfo {
            guest_phys_addr: region.start_addr().raw_value(),
            memory_size: region.len(),
            userspace_addr: region.start_addr().raw_value(),
            mmap_offset: offset.start(),
            mmap_handle: offset.file().as_raw_fd(),
        })
    };
    memory.regions().filter_map(region).collect()
}
