//! Programs that do a device's work for a node (vhost-user back ends).

#![allow(
    unsafe_code,
    reason = "what a child does before it becomes the program is unsafe to say"
)]

use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};
use vm_memory::{Address, GuestMemoryRegion, GuestRegionMmap};

use super::command;
use super::device::StartError;
use super::keeper::Served;
use super::memory::NodeMemory;
use super::said;
use super::vhost::failed;
use crate::state::RUN;

/// How long a program may take to end what it has begun.
const PATIENCE: Duration = Duration::from_secs(6);
/// How long the last one may take to end that has served the same device, and how often it is looked
/// whether it has.
const FORMER_LIMIT: Duration = Duration::from_millis(500);
const INTERVAL: Duration = Duration::from_millis(5);
/// How long a program may take until it has done what it was told, its start included.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(8);

/// A process that serves one connection. It is ended with this value, by force.
pub(super) struct Program {
    /// Until somebody else waits for its end.
    child: Option<Child>,
    served: Served,
}

impl Program {
    /// Starts a program that serves who connects to its standard input, and connects to it. It does
    /// not outlive this thread, however that ends.
    pub(super) fn start(mut command: Command, served: &Served) -> io::Result<(Self, UnixStream)> {
        let lock = lock(served)?;
        let (listener, stream) = connect()?;
        command
            .stdin(OwnedFd::from(listener))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let own = nix::unistd::getpid();
        let prepare = move || {
            // It has the lock as long as it lives, with all that it starts.
            fcntl(&lock, FcntlArg::F_SETFD(FdFlag::empty()))?;
            end_with(own)
        };
        // SAFETY: between fork and exec only system calls are made: nothing is allocated, and no lock
        // is taken that a thread of the parent may have held.
        unsafe { command.pre_exec(prepare) };
        let mut child = command.spawn()?;
        if let Some(stderr) = child.stderr.take() {
            said::pass_on(stderr, &served.name, &served.trouble);
        }
        let program = Self {
            child: Some(child),
            served: served.clone(),
        };
        Ok((program, stream))
    }

    /// Asks it to end; whether that was possible.
    fn ask(&self) -> bool {
        let id = self.child.as_ref().map(|child| i32::try_from(child.id()));
        let id = id.and_then(Result::ok).map(Pid::from_raw);
        id.is_some_and(|id| kill(id, Signal::SIGTERM).is_ok())
    }

    /// Until it has ended, but not for ever.
    fn await_end(&mut self) {
        if let Some(child) = &mut self.child {
            command::ends_within(child, PATIENCE);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.child.take().is_none_or(command::end) {
            let text = "its program was killed, and has not ended yet: it waits for its storage";
            self.served.complain(text);
        }
    }
}

/// What says that no other program serves the device. One that was killed ends soon, or, if it waits
/// for its storage, long after; until then it may write to the node's memory.
fn lock(served: &Served) -> io::Result<File> {
    let began = Instant::now();
    loop {
        match served.notes.lock() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if began.elapsed() > FORMER_LIMIT => {
                let text = "the program before was killed, and has not ended yet";
                return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
            }
            Err(_) => thread::sleep(INTERVAL),
            locked => return locked,
        }
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

/// Feature bit of a program that knows the protocol's own features.
const PROTOCOL_FEATURES: u64 = 1 << 30;

/// A program that was started, and the connection by which it is told what to do. With this value
/// it is ended.
pub(super) struct Connected {
    pub(super) front_end: Frontend,
    /// The front end's connection, to be polled.
    stream: UnixStream,
    program: Program,
    ends: Ends,
    /// Whether it takes the node's memory in regions, one at a time.
    takes_regions: bool,
}

impl Connected {
    /// Starts it, for a device of so many virtqueues.
    pub(super) fn start(
        command: Command,
        queues: usize,
        ends: Ends,
        served: &Served,
    ) -> io::Result<Self> {
        let (program, stream) = Program::start(command, served)?;
        Ok(Self {
            front_end: Frontend::from_stream(stream.try_clone()?, queues as u64),
            stream,
            program,
            ends,
            takes_regions: false,
        })
    }

    /// Does what makes it wait for the program's answers. If that takes longer than `limit`, the
    /// connection is cut: the program is of no use any more.
    ///
    /// # Errors
    /// Those of `work`.
    pub(super) fn within<T>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> Result<T, StartError>,
    ) -> Result<T, StartError> {
        let (done, is_done) = mpsc::channel::<()>();
        let stream = &self.stream;
        let cut_off = move || {
            let late = is_done.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            late.then(|| stream.shutdown(Shutdown::Both)).is_some()
        };
        thread::scope(|scope| {
            let watch = thread::Builder::new().name("limit".into());
            let watch = watch
                .spawn_scoped(scope, cut_off)
                .map_err(failed("starting a thread"))?;
            let worked = work();
            drop(done);
            match watch.join() {
                Ok(true) => {
                    let text = format!("its program did not answer within {limit:?}");
                    Err(StartError::BackEnd(text))
                }
                _ => worked,
            }
        })
    }

    /// Agrees on how to talk: what is `needed`, and where it can be had an answer to every message and
    /// memory in regions. Answers the device's features.
    ///
    /// # Errors
    /// What the program answered; `Unsupported` if it lacks what is needed.
    pub(super) fn agree(
        &mut self,
        needed: VhostUserProtocolFeatures,
        limit: Duration,
    ) -> Result<u64, StartError> {
        let agreed = self.within(limit, || {
            let agreed = agree(&mut self.front_end.clone(), needed);
            agreed.map_err(failed("asking its program"))
        });
        let (features, protocol) = agreed?;
        self.takes_regions = protocol.contains(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS);
        Ok(features)
    }

    /// Tells of the node's memory, of which it knows nothing yet.
    pub(super) fn tell_of_memory(&self, memory: &NodeMemory) -> Result<(), StartError> {
        self.change_regions(&[], &regions(memory))
    }

    /// Tells what has changed of the node's memory. It goes on meanwhile with what stays; what goes it
    /// reaches no more when this returns.
    pub(super) fn change_memory(
        &self,
        old: &NodeMemory,
        new: &NodeMemory,
    ) -> Result<(), StartError> {
        self.change_regions(&regions(old), &regions(new))
    }

    fn change_regions(
        &self,
        old: &[VhostUserMemoryRegionInfo],
        new: &[VhostUserMemoryRegionInfo],
    ) -> Result<(), StartError> {
        self.within(ANSWER_LIMIT, || self.tell_regions(old, new))
    }

    fn tell_regions(
        &self,
        old: &[VhostUserMemoryRegionInfo],
        new: &[VhostUserMemoryRegionInfo],
    ) -> Result<(), StartError> {
        let mut front_end = self.front_end.clone();
        let told = match self.takes_regions {
            true => without(old, new)
                .try_for_each(|gone| front_end.remove_mem_region(gone))
                .and_then(|()| {
                    without(new, old).try_for_each(|more| front_end.add_mem_region(more).map(drop))
                }),
            false => front_end.set_mem_table(new).map(drop),
        };
        // Whoever answers this has heard of the memory.
        told.and_then(|()| front_end.get_features().map(drop))
            .map_err(failed("telling it of the node's memory"))
    }

    /// The program's process.
    #[cfg(test)]
    pub(super) fn id(&self) -> u32 {
        self.program.child.as_ref().map_or(0, Child::id)
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
fn regions(memory: &NodeMemory) -> Vec<VhostUserMemoryRegionInfo> {
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

/// Those of `regions` that are not among the others.
fn without<'a>(
    regions: &'a [VhostUserMemoryRegionInfo],
    others: &'a [VhostUserMemoryRegionInfo],
) -> impl Iterator<Item = &'a VhostUserMemoryRegionInfo> {
    let place = |region: &VhostUserMemoryRegionInfo| {
        let VhostUserMemoryRegionInfo {
            guest_phys_addr,
            memory_size,
            mmap_offset,
            ..
        } = *region;
        (guest_phys_addr, memory_size, mmap_offset)
    };
    let is_among = move |region: &VhostUserMemoryRegionInfo| {
        others.iter().any(|other| place(other) == place(region))
    };
    regions.iter().filter(move |region| !is_among(region))
}

/// The device's features, and what was agreed on besides.
fn agree(
    front_end: &mut Frontend,
    needed: VhostUserProtocolFeatures,
) -> Result<(u64, VhostUserProtocolFeatures), vhost::Error> {
    let features = front_end.get_features()?;
    let mut known = VhostUserProtocolFeatures::empty();
    if features & PROTOCOL_FEATURES != 0 {
        known = front_end.get_protocol_features()?;
    }
    if !known.contains(needed) {
        let lacking = io::Error::from(io::ErrorKind::Unsupported);
        return Err(vhost::Error::IOError(lacking));
    }
    let wanted = VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | needed;
    let agreed = known & wanted;
    if !agreed.is_empty() {
        front_end.set_protocol_features(agreed)?;
    }
    if agreed.contains(VhostUserProtocolFeatures::REPLY_ACK) {
        front_end.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    }
    Ok((features, agreed))
}
