//! Serving a node's devices for as long as it runs.

use std::io;
use std::mem::offset_of;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use insula_abi::Reason;
use insula_abi::channel::{self as abi, CHANNEL_VIRTIO, Ends, area_size};
use insula_abi::virtio::MESSAGE_MAX;
use insula_agent::options;
use insula_channel::{Message, Received};
use nix::errno::Errno;
use vmm_sys_util::eventfd::EventFd;

use super::bus::{Bus, TooMany};
use super::device::{BackEnd, StartError};
use super::disk::Disk;
use super::files::Files;
use super::keeper::Trouble;
use super::message::Nonsense;
use super::network::{Network, Networking};
use super::notes::Notes;
use super::post::Post;
use super::publish::{self, Published};
use super::storage_daemon::DiskFile;
use super::vhost::Events;
use super::vsock::{Vsock, VsockError};
use crate::channel::{AttachError, ChannelError, End, SLOTS, Side};
use crate::driver::{CallError, Channel, Node};

/// A node's drivers take their answers at once.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a node may take to leave an old session.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
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

/// Why devices are served no more though the node runs.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error(transparent)]
    Vsock(#[from] VsockError),
    #[error("the disk {}: {source}", path.display())]
    Disk { path: PathBuf, source: StartError },
    #[error(transparent)]
    TooMany(#[from] TooMany),
    #[error("duplicating a descriptor: {0}")]
    Duplicate(#[from] io::Error),
}

/// Why a session with the node's drivers has ended before the node left it, or has not begun.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error(transparent)]
    Nonsense(#[from] Nonsense),
    #[error(transparent)]
    Channel(ChannelError),
    #[error(transparent)]
    NoDevices(ServeError),
}

/// Which devices a node has.
#[derive(Clone, Debug)]
pub struct Devices {
    /// The node's id, by which it has addresses.
    pub id: u32,
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
        let owner: Arc<dyn Trouble> = Arc::new(Owner {
            node: Arc::clone(&node),
            complain,
        });
        let serve = move || {
            if let Err(error) = serve(&node, &devices, &owner) {
                owner.complain(&format!("virtio devices are not served: {error}"));
            }
        };
        let thread = thread::Builder::new().name("virtio".into()).spawn(serve)?;
        Ok(Self(thread))
    }

    /// Waits until nothing touches the memory of the node any more, which has ended.
    pub fn wait(self) {
        // If it has panicked, there is nobody either.
        let _ = self.0.join();
    }
}

/// Session after session, until the node has ended.
fn serve(
    node: &Arc<Node>,
    devices: &Devices,
    trouble: &Arc<dyn Trouble>,
) -> Result<(), ServeError> {
    let _published = publish(devices, trouble);
    let notes = Notes::of(devices.id, node.info()?.0.start_tsc);
    notes.forget_former();
    if let Some(root) = &devices.root
        && notes.device(options::ROOT_TAG).are_there()
    {
        let root = root.display();
        trouble.device_lost(&format!("folder {root}: whoever served it was killed"));
    }
    let served = serve_sessions(node, devices, &notes, trouble);
    if served.is_ok() {
        notes.forget();
    }
    served
}

fn serve_sessions(
    node: &Arc<Node>,
    devices: &Devices,
    notes: &Notes,
    trouble: &Arc<dyn Trouble>,
) -> Result<(), ServeError> {
    loop {
        let channel = match node.open_channel(CHANNEL_VIRTIO) {
            Ok(channel) => channel,
            Err(error) => match error.errno {
                Errno::EBUSY => {
                    thread::sleep(BUSY_PAUSE);
                    continue;
                }
                Errno::EPIPE | Errno::ENODEV => return Ok(()),
                _ => return Err(error.into()),
            },
        };
        let events = Arc::new(ChannelEvents(channel.try_clone()?));
        let make_bus = || bus(node, events, devices, notes, trouble);
        match session(&mut End::attach(channel, Side::Base)?, make_bus) {
            Err(SessionError::NoDevices(error)) => return Err(error),
            Err(error) => {
                trouble.complain(&format!(
                    "a session with the node's virtio drivers: {error}"
                ));
            }
            Ok(()) => {}
        }
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
    node: &Arc<Node>,
    events: Arc<dyn Events>,
    devices: &Devices,
    notes: &Notes,
    trouble: &Arc<dyn Trouble>,
) -> Result<Bus, ServeError> {
    let vsock = Vsock::new(Arc::clone(node), Arc::clone(&events), cid(devices.id))?;
    let mut back_ends: Vec<Box<dyn BackEnd>> = vec![Box::new(vsock)];
    let post = |name: &str| Post {
        node: Arc::clone(node),
        events: Arc::clone(&events) as _,
        notes: notes.device(name),
        trouble: Arc::clone(trouble),
        keeper: None,
    };
    if let Some(folder) = &devices.root {
        let tag = options::ROOT_TAG;
        back_ends.push(Box::new(Files::new(post(tag), tag, folder.clone())));
    }
    for (number, file) in devices.disks.iter().enumerate() {
        let disk = Disk::new(post(&format!("disk-{number}")), file.clone());
        let disk = disk.map_err(|source| ServeError::Disk {
            path: file.path.clone(),
            source,
        })?;
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
    Ok(Bus::new(back_ends)?)
}

/// Answers what the node's drivers ask until the node leaves the session. There is no device before
/// they ask: a node without them costs nothing.
fn session(
    end: &mut End,
    make_bus: impl FnOnce() -> Result<Bus, ServeError>,
) -> Result<(), SessionError> {
    let mut buffer = [0; MESSAGE_MAX];
    let Some(first) = receive(end, &mut buffer)? else {
        return Ok(());
    };
    let mut bus = make_bus().map_err(SessionError::NoDevices)?;
    let answered = answer_all(end, &mut bus, first, &mut buffer);
    bus.leave();
    answered
}

fn answer_all(
    end: &mut End,
    bus: &mut Bus,
    first: Received,
    buffer: &mut [u8],
) -> Result<(), SessionError> {
    let mut next = Some(first);
    while let Some(received) = next {
        let answer = bus.answer(received.bytes(buffer))?;
        match end.send(&Message::bytes(0, &answer), PATIENCE) {
            Err(ChannelError::HungUp) => return Ok(()),
            sent => sent.map_err(SessionError::Channel)?,
        }
        next = receive(end, buffer)?;
    }
    Ok(())
}

/// The next message, or `None` when the node has left.
fn receive(end: &mut End, buffer: &mut [u8]) -> Result<Option<Received>, SessionError> {
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
