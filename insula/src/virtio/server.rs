//! Serving a node's devices for as long as it runs.

use std::io;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use insula_abi::Reason;
use insula_abi::channel::{self as abi, CHANNEL_VIRTIO, Ends, area_size};
use insula_abi::virtio::MESSAGE_MAX;
use insula_agent::options;
use insula_channel::{Message, Received};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use vmm_sys_util::eventfd::EventFd;

use super::bus::{Bus, TooMany};
use super::device::{BackEnd, StartError};
use super::disk::Disk;
use super::files::Files;
use super::keeper::{Served, Trouble};
use super::memory::ServedNode;
use super::message::Nonsense;
use super::network::{Network, Networking};
use super::notes::Notes;
use super::pause::Pause;
use super::post::Post;
use super::publish::{self, Published};
use super::resize::Resizing;
use super::state::Failures;
use super::storage_daemon::DiskFile;
use super::vhost::Events;
use super::vsock::Vsock;
use crate::channel::{AttachError, ChannelError, End, SLOTS, Side};
use crate::driver::{CallError, Channel, Node};

/// A node's drivers take their answers at once.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a node may take to leave an old session.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// How long it may take before the node's user is told that it does not.
const BUSY_LIMIT: Duration = Duration::from_secs(10);
/// How often what waits without a message is attended to.
const ATTEND_INTERVAL: Duration = Duration::from_millis(100);
/// How long all disks together may take until it is known what they are. A driver takes no answer that
/// comes after ten seconds.
const DISKS_LIMIT: Duration = Duration::from_secs(7);
/// A session of that length is one that was of use.
const SETTLED_AFTER: Duration = Duration::from_secs(10);
/// What all devices of a node share, for its user.
const ALL: &str = "all devices";
/// The first address of nodes' sockets: virtual machines get small ones.
const CID_FIRST: u32 = 0x4e00_0000;

/// The address of a node's sockets (`svm_cid` of `AF_VSOCK`), by the node's id.
#[must_use]
pub fn cid(node_id: u32) -> u32 {
    CID_FIRST.wrapping_add(node_id)
}

/// Whether a driver of the node waits for its devices: then it has published its doorbell on their
/// channel. `channels` is where the node's channels lie. Nothing is held for a node before.
#[must_use]
pub fn wanted(node: &Node, channels: u64) -> bool {
    let doorbell = channels
        + area_size(CHANNEL_VIRTIO, SLOTS)
        + (offset_of!(Ends, node) + offset_of!(abi::End, doorbell)) as u64;
    let read = || {
        let memory = node.memory().ok()?.map().ok()?;
        let mut word = [0; 8];
        memory
            .read(memory.offset_of(doorbell, 8).ok()?, &mut word)
            .ok()?;
        Some(u64::from_ne_bytes(word))
    };
    channels != 0 && read().is_some_and(|word| word != 0)
}

/// Why there is no session with the node's drivers though it runs.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    TooMany(#[from] TooMany),
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Why a session with the node's drivers has ended before the node left it, or has not begun.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error(transparent)]
    Nonsense(#[from] Nonsense),
    #[error(transparent)]
    Channel(ChannelError),
}

/// Which devices a node has.
#[derive(Clone, Debug)]
pub struct Devices {
    /// The node's id, by which it has addresses.
    pub id: u32,
    /// Chunks of memory that it was started with.
    pub chunks_started: usize,
    /// The folder of the base that is its root.
    pub root: Option<PathBuf>,
    /// Its disks, in the order in which it has them.
    pub disks: Vec<DiskFile>,
    /// Its network, if it has any.
    pub network: Option<Networking>,
}

/// The node that devices belong to, and who is told of them.
struct Owner<F> {
    node: Arc<Node>,
    complain: F,
    failures: Mutex<Failures>,
}

impl<F: Fn(&str) + Send + Sync> Trouble for Owner<F> {
    fn complain(&self, text: &str) {
        (self.complain)(text);
    }

    /// What waits for the device in the node would do so for ever.
    fn device_lost(&self, text: &str) {
        (self.complain)(text);
        match self.node.stop(Reason::DEVICE_LOST) {
            Ok(()) => {}
            // It has ended.
            Err(error) if error.errno == Errno::EALREADY => {}
            Err(error) => (self.complain)(&error.to_string()),
        }
    }

    fn set_failure(&self, device: &str, why: Option<&str>) {
        let failures = self.failures.lock();
        let mut failures = failures.unwrap_or_else(PoisonError::into_inner);
        if failures.set(device, why) {
            let text = why.map_or_else(
                || "works again".into(),
                |why| format!("does not work: {why}"),
            );
            (self.complain)(&format!("{device}: {text}"));
        }
    }
}

/// The devices of the session that there is, if any. Its own thread uses them most of the time.
#[derive(Clone, Default)]
struct Current(Arc<Mutex<Option<Bus>>>);

impl Current {
    fn lock(&self) -> MutexGuard<'_, Option<Bus>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has all devices work with so many chunks of the node's memory, or with what they had.
    fn resize(&self, node: &ServedNode, chunks: usize) -> Result<(), StartError> {
        let mut bus = self.lock();
        let before = node.limit(chunks);
        let changed = bus.as_mut().map_or(Ok(()), Bus::change_memory);
        if changed.is_err() {
            node.limit(before);
            // It was accepted before.
            let _ = bus.as_mut().map(Bus::change_memory);
        }
        changed
    }
}

/// A thread that serves the devices of a node until it runs no more.
#[derive(Debug)]
pub struct Server(JoinHandle<()>);

impl Server {
    /// Serves from now on. What goes wrong is told by `complain`, and the node goes on without.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start(
        node: Node,
        devices: Devices,
        complain: impl Fn(&str) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let node = Arc::new(node);
        let start_tsc = node.info().map_err(io::Error::other)?.0.start_tsc;
        let notes = Notes::of(devices.id, start_tsc);
        let owner: Arc<dyn Trouble> = Arc::new(Owner {
            node: Arc::clone(&node),
            complain,
            failures: Mutex::new(Failures::none(notes.clone())),
        });
        let serve = move || serve(&node, &devices, &notes, &owner);
        let thread = thread::Builder::new().name("virtio".into()).spawn(serve)?;
        Ok(Self(thread))
    }

    /// Whether it serves no more, as when the node has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits until nothing touches the memory of the node any more, which has ended.
    pub fn wait(self) {
        // If it has panicked, there is nobody either.
        let _ = self.0.join();
    }
}

/// Session after session, until the node has ended.
fn serve(node: &Arc<Node>, devices: &Devices, notes: &Notes, trouble: &Arc<dyn Trouble>) {
    let _published = publish(devices, trouble);
    notes.forget_former();
    let served = Arc::new(ServedNode::new(Arc::clone(node), devices.chunks_started));
    let current = Current::default();
    let _resizing = {
        let (current, served) = (current.clone(), Arc::clone(&served));
        let opened = Resizing::answer(devices.id, move |chunks| current.resize(&served, chunks));
        opened.map_err(|error| trouble.complain(&format!("its memory must stay as it is: {error}")))
    };
    let sessions = Sessions {
        node: served,
        devices,
        notes,
        current,
        trouble,
    };
    sessions.serve();
    notes.forget();
}

/// What sessions with a node's drivers have in common.
struct Sessions<'a> {
    node: Arc<ServedNode>,
    devices: &'a Devices,
    notes: &'a Notes,
    current: Current,
    trouble: &'a Arc<dyn Trouble>,
}

impl Sessions<'_> {
    /// One after the other, until the node has ended. If one fails, the next is tried after a pause, and
    /// the pauses grow.
    fn serve(&self) {
        let mut pause = Pause::new();
        while let Some(channel) = self.open(&mut pause) {
            let began = Instant::now();
            let ended = self.session(channel);
            if began.elapsed() >= SETTLED_AFTER {
                pause = Pause::new();
            }
            match ended {
                Ok(()) => {}
                Err(error) if self.has_failed(&error, &mut pause) => {}
                Err(_) => return,
            }
        }
    }

    /// The channel, as soon as the node is in no former session; none if the node has ended.
    fn open(&self, pause: &mut Pause) -> Option<Channel> {
        let began = Instant::now();
        loop {
            match self.node.node().open_channel(CHANNEL_VIRTIO) {
                Ok(channel) => {
                    self.find_lost();
                    return Some(channel);
                }
                Err(error) => match error.errno {
                    Errno::EBUSY => {
                        self.find_lost();
                        if began.elapsed() > BUSY_LIMIT {
                            let why = "the node's drivers do not leave the last session";
                            self.trouble.set_failure(ALL, Some(why));
                        }
                        thread::sleep(BUSY_PAUSE);
                    }
                    Errno::EPIPE | Errno::ENODEV => return None,
                    _ if self.has_failed(&error.into(), pause) => {}
                    _ => return None,
                },
            }
        }
    }

    /// A root that has been served, and is served no more, will not be again: what waits for it in the
    /// node would do so for ever.
    fn find_lost(&self) {
        let Some(root) = &self.devices.root else {
            return;
        };
        if self.notes.device(options::ROOT_TAG).are_there() {
            let text = format!("{}: whoever served it has ended", Files::name(root));
            self.trouble.device_lost(&text);
        }
    }

    /// Tells of it, and waits a while; false if the node has ended.
    fn has_failed(&self, error: &ServeError, pause: &mut Pause) -> bool {
        let mut polled = [PollFd::new(self.node.node().as_fd(), PollFlags::POLLIN)];
        let now = poll(&mut polled, PollTimeout::ZERO);
        if now.is_ok_and(|count| count > 0) {
            return false;
        }
        self.trouble.set_failure(ALL, Some(&error.to_string()));
        let mut polled = [PollFd::new(self.node.node().as_fd(), PollFlags::POLLIN)];
        let time = PollTimeout::try_from(pause.next()).unwrap_or(PollTimeout::MAX);
        !poll(&mut polled, time).is_ok_and(|count| count > 0)
    }

    fn session(&self, channel: Channel) -> Result<(), ServeError> {
        let events = Arc::new(ChannelEvents(channel.try_clone()?));
        let mut end = End::attach(channel, Side::Base)?;
        let mut buffer = [0; MESSAGE_MAX];
        let Some(first) = receive_first(&mut end, &mut buffer)? else {
            return Ok(());
        };
        *self.current.lock() = Some(bus(
            &self.node,
            events,
            self.devices,
            self.notes,
            self.trouble,
        )?);
        self.trouble.set_failure(ALL, None);
        let answered = answer_all(
            &mut end,
            &self.current,
            self.trouble.as_ref(),
            first,
            &mut buffer,
        );
        if let Some(mut bus) = self.current.lock().take() {
            bus.leave();
        }
        Ok(answered?)
    }
}

/// Opens the base's ports that lead to the node, as far as that can be.
fn publish(devices: &Devices, trouble: &Arc<dyn Trouble>) -> Vec<Published> {
    let Some(network) = &devices.network else {
        return Vec::new();
    };
    let address = network.address(devices.id);
    let limit = publish::limit();
    let opened = network.publish.iter().map(|one| {
        let (teller, port) = (Arc::clone(trouble), *one);
        let complain = move |text: &str| teller.complain(&format!("port {port}: {text}"));
        let opened = Published::open(one, address, &limit, complain);
        opened.map_err(|error| trouble.complain(&format!("port {one}: {error}")))
    });
    opened.filter_map(Result::ok).collect()
}

/// The devices of a node: every one has sockets.
fn bus(
    node: &Arc<ServedNode>,
    events: Arc<dyn Events>,
    devices: &Devices,
    notes: &Notes,
    trouble: &Arc<dyn Trouble>,
) -> Result<Bus, TooMany> {
    let vsock = Vsock::new(Arc::clone(node), Arc::clone(&events), cid(devices.id));
    let mut back_ends: Vec<Box<dyn BackEnd>> = vec![Box::new(vsock)];
    let post = |device: &str, name: String| Post {
        node: Arc::clone(node),
        events: Arc::clone(&events) as _,
        served: Served {
            name,
            notes: notes.device(device),
            trouble: Arc::clone(trouble),
        },
        keeper: None,
    };
    if let Some(folder) = &devices.root {
        let tag = options::ROOT_TAG;
        let post = post(tag, Files::name(folder));
        back_ends.push(Box::new(Files::new(post, tag, folder.clone())));
    }
    for disk in disks(&devices.disks, post) {
        back_ends.push(Box::new(disk));
    }
    if let Some(network) = &devices.network {
        let (id, address) = (devices.id, network.address(devices.id));
        back_ends.push(Box::new(Network::new(
            Arc::clone(node),
            events,
            id,
            address,
        )));
    }
    Bus::new(back_ends)
}

/// All disks, whose daemons begin at the same time. One that says nothing costs the others no more than
/// that their size may be known a moment later.
fn disks(files: &[DiskFile], post: impl Fn(&str, String) -> Post) -> Vec<Disk> {
    let began = Instant::now();
    let make = |(number, file): (usize, &DiskFile)| {
        let post = post(&format!("disk-{number}"), Disk::name(file));
        Disk::new(post, file.clone())
    };
    let mut disks: Vec<_> = files.iter().enumerate().map(make).collect();
    let count = disks.len() as u32;
    for (asked, disk) in (0..).zip(&mut disks) {
        let left = DISKS_LIMIT.saturating_sub(began.elapsed());
        disk.ask(left / (count - asked).min(2));
    }
    disks
}

/// Answers what the node's drivers ask until the node leaves the session.
fn answer_all(
    end: &mut End,
    current: &Current,
    trouble: &dyn Trouble,
    first: Received,
    buffer: &mut [u8],
) -> Result<(), SessionError> {
    let mut next = Some(first);
    loop {
        let mut messages = Vec::new();
        let waits = {
            let mut bus = current.lock();
            let Some(bus) = bus.as_mut() else {
                return Ok(());
            };
            if let Some(received) = next.take() {
                messages.push(bus.answer(received.bytes(buffer))?);
            }
            messages.extend(bus.attend(Instant::now()));
            for (device, why) in bus.take_news() {
                trouble.set_failure(&device, why.as_deref());
            }
            bus.waits()
        };
        for message in messages {
            match end.send(&Message::bytes(0, &message), PATIENCE) {
                Err(ChannelError::HungUp) => return Ok(()),
                sent => sent.map_err(SessionError::Channel)?,
            }
        }
        match end.receive(buffer, if waits { ATTEND_INTERVAL } else { PATIENCE }) {
            Ok(received) => next = Some(received),
            Err(ChannelError::TimedOut(_)) => {}
            Err(ChannelError::HungUp) => return Ok(()),
            Err(error) => return Err(SessionError::Channel(error)),
        }
    }
}

/// The first message, or `None` when the node has left. There is no device before: a node without
/// drivers costs nothing.
fn receive_first(end: &mut End, buffer: &mut [u8]) -> Result<Option<Received>, SessionError> {
    loop {
        match end.receive(buffer, PATIENCE) {
            Ok(received) => return Ok(Some(received)),
            Err(ChannelError::TimedOut(_)) => {}
            Err(ChannelError::HungUp) => return Ok(None),
            Err(error) => return Err(SessionError::Channel(error)),
        }
    }
}

/// The events of a channel, by the module.
struct ChannelEvents(Channel);

impl Events for ChannelEvents {
    fn bind(&self, event: u32, kick: &EventFd, call: &EventFd) -> Result<(), CallError> {
        self.0.bind_event(event, Some((kick, call)))
    }

    fn unbind(&self, event: u32) {
        // Only a bad number is refused, and that was bound.
        let _ = self.0.bind_event(event, None);
    }
}
