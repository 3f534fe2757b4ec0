//! Processes that serve a node's device: vhost-user backends.

#![allow(
    unsafe_code,
    reason = "code between fork and exec is unsafe to register"
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
use super::memory::NodeMemory;
use super::monitor::DeviceContext;
use super::stderr;
use super::vhost::failed;

/// The folder of the sockets, which exist only for a moment.
#[cfg(not(test))]
const FOLDER: &str = insula_base::state::RUN;
#[cfg(test)]
const FOLDER: &str = "/tmp/insula-back-ends";

/// Time a process gets to finish its work and exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(6);
/// Time the device's previous process gets to exit, and the interval at which that is polled.
const PREDECESSOR_TIMEOUT: Duration = Duration::from_millis(500);
const INTERVAL: Duration = Duration::from_millis(5);
/// Time a process gets to handle a message, its start included.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(8);

/// A process that serves one connection. Dropping it kills the process.
pub(super) struct Process {
    /// `None` once another thread reaps it.
    child: Option<Child>,
    context: DeviceContext,
}

impl Process {
    /// Starts a program whose standard input is a listening socket, and connects to it. The kernel
    /// kills the process when this thread ends.
    pub(super) fn start(
        mut command: Command,
        context: &DeviceContext,
    ) -> io::Result<(Self, UnixStream)> {
        let lock = lock(context)?;
        let (listener, stream) = connect()?;
        command
            .stdin(OwnedFd::from(listener))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let own = nix::unistd::getpid();
        let prepare = move || {
            // The process and its children hold the lock until the last of them exits.
            fcntl(&lock, FcntlArg::F_SETFD(FdFlag::empty()))?;
            die_with_parent(own)
        };
        // SAFETY: between fork and exec the closure only makes system calls: it allocates nothing
        // and takes no lock that a thread of the parent may hold.
        unsafe { command.pre_exec(prepare) };
        let mut child = command.spawn()?;
        if let Some(stderr) = child.stderr.take() {
            stderr::forward(stderr, &context.name, &context.device_events);
        }
        let process = Self {
            child: Some(child),
            context: context.clone(),
        };
        Ok((process, stream))
    }

    /// Sends SIGTERM; true if the process could be signalled.
    fn terminate(&self) -> bool {
        let id = self.child.as_ref().map(|child| i32::try_from(child.id()));
        let id = id.and_then(Result::ok).map(Pid::from_raw);
        id.is_some_and(|id| kill(id, Signal::SIGTERM).is_ok())
    }

    /// Waits for its exit, up to [`EXIT_TIMEOUT`].
    fn wait_exit(&mut self) {
        if let Some(child) = &mut self.child {
            command::exits_within(child, EXIT_TIMEOUT);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.child.take().is_none_or(command::kill) {
            let text = "its backend was killed but has not exited yet: it waits for its storage";
            self.context.report(text);
        }
    }
}

/// Takes the lock that only one backend of the device can hold. A killed process exits soon, or
/// much later if it waits for its storage; until then it may still write to the node's memory.
fn lock(context: &DeviceContext) -> io::Result<File> {
    let began = Instant::now();
    loop {
        match context.checkpoint.lock() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if began.elapsed() > PREDECESSOR_TIMEOUT => {
                let text = "the previous backend was killed but has not exited yet";
                return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
            }
            Err(_) => thread::sleep(INTERVAL),
            locked => return locked,
        }
    }
}

/// A listening socket for a program, and the only connection to it.
fn connect() -> io::Result<(UnixListener, UnixStream)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let socket = format!("backend-{}-{number}", std::process::id());
    let socket = PathBuf::from(FOLDER).join(socket);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(FOLDER)?;
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket)?;
    let stream = UnixStream::connect(&socket);
    fs::remove_file(&socket)?;
    Ok((listener, stream?))
}

/// Has the kernel kill this process when `parent` exits.
fn die_with_parent(parent: Pid) -> io::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The parent may have exited before prctl() took effect.
    match getppid() == parent {
        true => Ok(()),
        false => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

/// What makes a backend exit in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExitOn {
    /// The end of its connection.
    Disconnect,
    /// SIGTERM.
    Sigterm,
}

/// `VHOST_USER_F_PROTOCOL_FEATURES`.
const PROTOCOL_FEATURES: u64 = 1 << 30;

/// A running backend process and the vhost-user connection to it. Dropping it kills the process.
pub(super) struct VhostUserBackend {
    pub(super) frontend: Frontend,
    /// The frontend's connection, for poll().
    stream: UnixStream,
    process: Process,
    exit_on: ExitOn,
    /// `VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS`: memory regions are added and removed one by
    /// one.
    has_mem_slots: bool,
}

impl VhostUserBackend {
    /// Starts it for a device with this number of virtqueues.
    pub(super) fn start(
        command: Command,
        queues: usize,
        exit_on: ExitOn,
        context: &DeviceContext,
    ) -> io::Result<Self> {
        let (process, stream) = Process::start(command, context)?;
        Ok(Self {
            frontend: Frontend::from_stream(stream.try_clone()?, queues as u64),
            stream,
            process,
            exit_on,
            has_mem_slots: false,
        })
    }

    /// Runs `work`, which waits for replies. After `limit` the connection is shut down: the backend
    /// cannot be used any more.
    ///
    /// # Errors
    /// Those of `work`.
    pub(super) fn with_timeout<T>(
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
                    let text = format!("its backend did not answer within {limit:?}");
                    Err(StartError::Backend(text))
                }
                _ => worked,
            }
        })
    }

    /// Negotiates protocol features: `needed`, and where available REPLY_ACK and memory slots.
    /// Returns the device's features.
    ///
    /// # Errors
    /// The backend's error; `Unsupported` if it lacks a needed feature.
    pub(super) fn negotiate(
        &mut self,
        needed: VhostUserProtocolFeatures,
        limit: Duration,
    ) -> Result<u64, StartError> {
        let negotiated = self.with_timeout(limit, || {
            let negotiated = negotiate(&mut self.frontend.clone(), needed);
            negotiated.map_err(failed("asking its backend"))
        });
        let (features, protocol) = negotiated?;
        self.has_mem_slots = protocol.contains(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS);
        Ok(features)
    }

    /// Sends the node's memory to a backend that has none yet.
    pub(super) fn set_memory(&self, memory: &NodeMemory) -> Result<(), StartError> {
        self.change_regions(&[], &regions(memory))
    }

    /// Sends the difference between two states of the node's memory. Regions in both stay in use
    /// meanwhile; removed regions are unmapped when this returns.
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
        self.with_timeout(REPLY_TIMEOUT, || self.send_regions(old, new))
    }

    fn send_regions(
        &self,
        old: &[VhostUserMemoryRegionInfo],
        new: &[VhostUserMemoryRegionInfo],
    ) -> Result<(), StartError> {
        let mut frontend = self.frontend.clone();
        let sent = match self.has_mem_slots {
            true => without(old, new)
                .try_for_each(|gone| frontend.remove_mem_region(gone))
                .and_then(|()| {
                    without(new, old).try_for_each(|more| frontend.add_mem_region(more).map(drop))
                }),
            false => frontend.set_mem_table(new).map(drop),
        };
        // A reply to a later message proves that the earlier ones were handled.
        sent.and_then(|()| frontend.get_features().map(drop))
            .map_err(failed("setting the node's memory"))
    }

    /// The process id.
    pub(super) fn id(&self) -> u32 {
        self.process.child.as_ref().map_or(0, Child::id)
    }

    /// Lets it finish and exit, and kills it if that takes too long.
    pub(super) fn end(mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        let waits = match self.exit_on {
            ExitOn::Disconnect => true,
            ExitOn::Sigterm => self.process.terminate(),
        };
        if waits {
            self.process.wait_exit();
        }
    }
}

impl AsFd for VhostUserBackend {
    /// Gets POLLHUP when the process has exited.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The node's memory as regions for a backend to map. Userspace addresses, in which virtqueue
/// addresses are given, equal the node's physical ones.
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

/// The `regions` that are not in `others`.
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

/// The device's features and the negotiated protocol features.
fn negotiate(
    frontend: &mut Frontend,
    needed: VhostUserProtocolFeatures,
) -> Result<(u64, VhostUserProtocolFeatures), vhost::Error> {
    let features = frontend.get_features()?;
    let mut known = VhostUserProtocolFeatures::empty();
    if features & PROTOCOL_FEATURES != 0 {
        known = frontend.get_protocol_features()?;
    }
    if !known.contains(needed) {
        let lacking = io::Error::from(io::ErrorKind::Unsupported);
        return Err(vhost::Error::IOError(lacking));
    }
    let wanted = VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | needed;
    let negotiated = known & wanted;
    if !negotiated.is_empty() {
        frontend.set_protocol_features(negotiated)?;
    }
    if negotiated.contains(VhostUserProtocolFeatures::REPLY_ACK) {
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    }
    Ok((features, negotiated))
}
