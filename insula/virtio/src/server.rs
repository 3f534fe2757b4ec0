//! Serving a node's devices while it runs.

use std::io;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use insula_abi::channel::{self as abi, CHANNEL_VIRTIO, Endpoints, area_size};
use insula_abi::virtio::MESSAGE_MAX;
use insula_agent::options;
use insula_base::error::Source;
use insula_channel::{Message, Received};
use insula_driver::channel::{ChannelError, End, SLOTS, Side};
use insula_driver::{CallError, Channel, Node};
use insula_node::attachment::request::RequestKind;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use vmm_sys_util::eventfd::EventFd;

use super::backoff::Backoff;
use super::checkpoint::Checkpoints;
use super::current_bus::CurrentBus;
use super::devices::{Devices, bus};
use super::files::Files;
use super::memory::DeviceNode;
use super::monitor::DeviceEvents;
use super::nat::{Nat, NodePorts};
use super::node_events::NodeEvents;
use super::publish::{self, Published};
use super::request_listener::RequestListener;
use super::state::Failures;
use super::vhost::EventfdBinder;

/// Timeout of sending to and receiving from a node's drivers.
const IO_TIMEOUT: Duration = Duration::from_secs(10);
/// Intervals of retries while the node is still in the last session: a copy leaves it at once.
const BUSY_PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// Time after which that is reported.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of [`Bus::service`] while it is needed.
const SERVICE_INTERVAL: Duration = Duration::from_millis(100);
/// Length of a session after which the backoff is reset.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// Name for failures that concern all devices of a node.
const ALL_DEVICES: &str = "all devices";

/// Whether the node has a driver that waits for its devices, which then has published its doorbell
/// on their channel. `channels` is the address of the node's channels. No resource is held for a
/// node before.
#[must_use]
pub fn has_driver(node: &Node, channels: u64) -> bool {
    let doorbell = channels
        + area_size(CHANNEL_VIRTIO, SLOTS)
        + (offset_of!(Endpoints, node) + offset_of!(abi::EndpointState, doorbell)) as u64;
    let read = || {
        let memory = node.memory().ok()?.map_for_reading().ok()?;
        let mut word = [0; 8];
        memory
            .read(memory.offset_of(doorbell, 8).ok()?, &mut word)
            .ok()?;
        Some(u64::from_ne_bytes(word))
    };
    channels != 0 && read().is_some_and(|word| word != 0)
}

/// A thread that serves the devices of a node until the node ends.
#[derive(Debug)]
pub struct Server(JoinHandle<()>);

impl Server {
    /// Starts serving. Failures are reported to `report`.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(
        node: Node,
        devices: Devices,
        report: impl Fn(&str) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let node = Arc::new(node);
        let start_tsc = node.info().map_err(io::Error::other)?.0.start_tsc;
        let checkpoints = Checkpoints::of(devices.id, start_tsc);
        let device_events: Arc<dyn DeviceEvents> = Arc::new(NodeEvents {
            node: Arc::clone(&node),
            report,
            failures: Mutex::new(Failures::none(checkpoints.clone())),
        });
        let serve = move || serve(&node, &devices, &checkpoints, &device_events);
        let thread = thread::Builder::new().name("virtio".into()).spawn(serve)?;
        Ok(Self(thread))
    }

    /// Whether the thread has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits until nothing accesses the memory of the node, which has ended.
    pub fn wait(self) {
        // A thread that panicked has ended as well.
        let _ = self.0.join();
    }
}

/// Serves sessions until the node has ended.
fn serve(
    node: &Arc<Node>,
    devices: &Devices,
    checkpoints: &Checkpoints,
    device_events: &Arc<dyn DeviceEvents>,
) {
    let published = publish(devices, device_events);
    let ports = devices.network.as_ref().map(|network| NodePorts {
        address: network.address(devices.id),
        link: network.link(devices.id),
        published: published.iter().map(Published::port).collect(),
    });
    let nat = Arc::new(Nat::new(device_events, ports));
    nat.open();
    checkpoints.remove_earlier();
    let device_node = Arc::new(DeviceNode::new(Arc::clone(node), devices.chunks_started));
    let current = CurrentBus::default();
    let _listeners = listen(devices.id, &current, &device_node)
        .map_err(|error| device_events.report(&format!("commands cannot reach it: {error}")));
    let sessions = Sessions {
        node: device_node,
        devices,
        checkpoints,
        current,
        device_events,
        nat,
    };
    sessions.serve();
    checkpoints.remove();
}

/// Answers requests of commands.
fn listen(
    id: u32,
    current: &CurrentBus,
    node: &Arc<DeviceNode>,
) -> io::Result<[RequestListener; 2]> {
    let (resized, drained) = (current.clone(), current.clone());
    let [node, paused] = [(); 2].map(|()| Arc::clone(node));
    let resize = move |chunks| {
        let chunks = usize::try_from(chunks).unwrap_or(usize::MAX);
        resized.resize(&node, chunks).map(|()| String::new())
    };
    let drain = move |_| drained.drain(&paused).map(|drained| drained.to_string());
    Ok([
        RequestListener::start(RequestKind::Resize, id, resize)?,
        RequestListener::start(RequestKind::Drain, id, drain)?,
    ])
}

/// State common to all sessions with a node's drivers.
struct Sessions<'a> {
    node: Arc<DeviceNode>,
    devices: &'a Devices,
    checkpoints: &'a Checkpoints,
    current: CurrentBus,
    device_events: &'a Arc<dyn DeviceEvents>,
    nat: Arc<Nat>,
}

impl Sessions<'_> {
    /// Runs one session after the other until the node has ended, with growing pauses after
    /// failures.
    fn serve(&self) {
        let mut backoff = Backoff::new();
        while let Some(channel) = self.open(&mut backoff) {
            let began = Instant::now();
            let ended = self.session(channel);
            if began.elapsed() >= STABLE_AFTER {
                backoff = Backoff::new();
            }
            match ended {
                Ok(()) => {}
                Err(error) if self.report_and_wait(&error, &mut backoff) => {}
                Err(_) => return,
            }
        }
    }

    /// Opens the channel once the node has left the last session; `None` if the node has ended.
    fn open(&self, backoff: &mut Backoff) -> Option<Channel> {
        let began = Instant::now();
        let (mut pause, longest) = BUSY_PAUSES;
        loop {
            match self.node.node().open_channel(CHANNEL_VIRTIO) {
                Ok(channel) => {
                    self.check_root();
                    return Some(channel);
                }
                Err(error) => match error.errno {
                    Errno::EBUSY => {
                        self.check_root();
                        if began.elapsed() > BUSY_TIMEOUT {
                            let why = "the node's drivers do not leave the last session";
                            self.device_events.set_failure(ALL_DEVICES, Some(why));
                        }
                        thread::sleep(pause);
                        pause = (pause * 2).min(longest);
                    }
                    Errno::EPIPE | Errno::ENODEV => return None,
                    _ if self.report_and_wait(&error.into(), backoff) => {}
                    _ => return None,
                },
            }
        }
    }

    /// Reports a root lost whose backend has ended: it cannot be restarted, and requests of the
    /// node would never complete.
    fn check_root(&self) {
        let Some(root) = &self.devices.root else {
            return;
        };
        if self.checkpoints.device(options::ROOT_TAG).exists() {
            let text = format!("{}: its backend has ended", Files::name(root));
            self.device_events.device_lost(&text);
        }
    }

    /// Reports the failure and waits; false if the node has ended.
    fn report_and_wait(&self, error: &Source, backoff: &mut Backoff) -> bool {
        let mut polled = [PollFd::new(self.node.node().as_fd(), PollFlags::POLLIN)];
        let now = poll(&mut polled, PollTimeout::ZERO);
        if now.is_ok_and(|count| count > 0) {
            return false;
        }
        self.device_events
            .set_failure(ALL_DEVICES, Some(&error.to_string()));
        let mut polled = [PollFd::new(self.node.node().as_fd(), PollFlags::POLLIN)];
        let time = PollTimeout::try_from(backoff.next()).unwrap_or(PollTimeout::MAX);
        !poll(&mut polled, time).is_ok_and(|count| count > 0)
    }

    /// Serves one session with the running node's drivers, until they leave it.
    fn session(&self, channel: Channel) -> Result<(), Source> {
        let binder = Arc::new(ChannelBinder(channel.try_clone()?));
        let mut end = End::attach(channel, Side::Base)?;
        let mut buffer = [0; MESSAGE_MAX];
        let Some(first) = receive_first(&mut end, &mut buffer)? else {
            return Ok(());
        };
        *self.current.lock() = Some(bus(
            &self.node,
            binder,
            self.devices,
            self.checkpoints,
            self.device_events,
            &self.nat,
        )?);
        self.device_events.set_failure(ALL_DEVICES, None);
        let answered = handle_messages(
            &mut end,
            &self.current,
            self.device_events.as_ref(),
            first,
            &mut buffer,
        );
        if let Some(mut bus) = self.current.lock().take() {
            bus.disconnect();
        }
        answered
    }
}

/// Opens the node's published ports, and reports those that cannot be opened.
fn publish(devices: &Devices, device_events: &Arc<dyn DeviceEvents>) -> Vec<Published> {
    let Some(network) = &devices.network else {
        return Vec::new();
    };
    let address = network.address(devices.id);
    let limit = publish::limit(publish::NODE_TIMEOUT);
    let opened = network.publish.iter().map(|one| {
        let (events, port) = (Arc::clone(device_events), *one);
        let report = move |text: &str| events.report(&format!("port {port}: {text}"));
        let opened = Published::open(one, address, &limit, report);
        opened.map_err(|error| device_events.report(&format!("port {one}: {error}")))
    });
    opened.filter_map(Result::ok).collect()
}

/// Handles messages of the node's drivers until the node leaves the session.
fn handle_messages(
    end: &mut End,
    current: &CurrentBus,
    device_events: &dyn DeviceEvents,
    first: Received,
    buffer: &mut [u8],
) -> Result<(), Source> {
    let mut next = Some(first);
    loop {
        let mut messages = Vec::new();
        let needs_service = {
            let mut bus = current.lock();
            let Some(bus) = bus.as_mut() else {
                return Ok(());
            };
            if let Some(received) = next.take() {
                messages.push(bus.answer(received.bytes(buffer))?);
            }
            messages.extend(bus.service(Instant::now()));
            for (device, why) in bus.take_status_changes() {
                device_events.set_failure(&device, why.as_deref());
            }
            bus.needs_service()
        };
        for message in messages {
            match end.send(&Message::bytes(0, &message), IO_TIMEOUT) {
                Err(ChannelError::Disconnected) => return Ok(()),
                sent => sent?,
            }
        }
        match end.receive(
            buffer,
            if needs_service {
                SERVICE_INTERVAL
            } else {
                IO_TIMEOUT
            },
        ) {
            Ok(received) => next = Some(received),
            Err(ChannelError::TimedOut(_)) => {}
            Err(ChannelError::Disconnected) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits for the first message; `None` if the node has left. Devices are created after it, so that
/// a node without drivers costs nothing.
fn receive_first(end: &mut End, buffer: &mut [u8]) -> Result<Option<Received>, Source> {
    loop {
        match end.receive(buffer, IO_TIMEOUT) {
            Ok(received) => return Ok(Some(received)),
            Err(ChannelError::TimedOut(_)) => {}
            Err(ChannelError::Disconnected) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Binds the events of a channel by the module.
struct ChannelBinder(Channel);

impl EventfdBinder for ChannelBinder {
    fn bind(&self, event: u32, kick: &EventFd, call: &EventFd) -> Result<(), CallError> {
        self.0.bind_eventfds(event, Some((kick, call)))
    }

    fn unbind(&self, event: u32) {
        // Only fails for an invalid number, and this one was bound.
        let _ = self.0.bind_eventfds(event, None);
    }
}
