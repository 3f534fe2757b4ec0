//! Finding nodes and showing their state.

use std::net::Ipv4Addr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use insula_abi as abi;
use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_base::units::CpuList;
use insula_driver::name::{self, Missing, Name};
use insula_driver::{CallError, Driver, Node};
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::NodeRecord;
use super::created::{created_names, has_file, not_started};
use super::findings::{NodeFinding, findings};
use crate::attachment::{self, DeviceFailure};
use crate::label::Label;
use crate::monitor_state::violation;

/// An open node: its descriptor and its state when last read.
#[derive(Debug)]
pub struct Handle {
    /// The module's descriptor.
    pub node: Node,
    /// State in the module.
    pub info: abi::NodeInfo,
    /// Its cores, the boot core first.
    pub cpus: Vec<abi::Cpu>,
    /// Its record; `None` if another version of the command wrote it.
    pub record: Option<NodeRecord>,
}

impl Handle {
    /// Reads the node's state.
    ///
    /// # Errors
    /// The module's error; `ENODEV` if the node was removed.
    pub fn of(node: Node) -> Result<Self, CallError> {
        let (info, cpus) = node.info()?;
        let record = NodeRecord::read(&node.description()?);
        Ok(Self {
            node,
            info,
            cpus,
            record,
        })
    }

    /// Reads the state again.
    ///
    /// # Errors
    /// The module's error; `ENOENT` or `ENODEV` if the node was removed.
    pub fn refresh(&mut self) -> Result<(), CallError> {
        (self.info, self.cpus) = self.node.info()?;
        Ok(())
    }

    /// Opens the node by another descriptor. It is found by its name, which it may have exchanged with
    /// another node since, or exchange meanwhile.
    ///
    /// # Errors
    /// The module's error; `ENODEV` if the node was removed.
    pub fn open_again(&self, driver: &Driver) -> Result<Node, CallError> {
        loop {
            let (own, _) = self.node.info()?;
            match driver.open_node(&own.name) {
                Err(error) if error.errno == Errno::ENOENT => {}
                opened => {
                    let opened = opened?;
                    if opened.info()?.0.id == own.id {
                        return Ok(opened);
                    }
                }
            }
        }
    }

    /// Whether it runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.info.state == abi::State::RUNNING
    }

    /// Whether it runs, but its monitor has paused it.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.has(abi::NODE_PAUSED)
    }

    /// The snapshot that it was copied from, if it is a copy.
    #[must_use]
    pub fn snapshot(&self) -> Option<&str> {
        let copy = self.record.as_ref()?.copy.as_ref()?;
        Some(&copy.snapshot)
    }

    /// Local APIC ids by which its kernel knows its cores, in their order.
    #[must_use]
    pub fn known_apic_ids(&self) -> Vec<u32> {
        let copy = self.record.as_ref().and_then(|record| record.copy.as_ref());
        match copy {
            Some(copy) => copy.known_cpus.clone(),
            None => self.cpus.iter().map(|cpu| cpu.apic_id).collect(),
        }
    }

    /// Whether it has crashed.
    #[must_use]
    pub fn is_crashed(&self) -> bool {
        self.info.reason == abi::Reason::CRASHED
    }

    /// Whether it was stopped because it hung.
    #[must_use]
    pub fn is_hung(&self) -> bool {
        self.info.reason == abi::Reason::HUNG
    }

    /// Whether it was confined, and its monitor has ended it.
    #[must_use]
    pub fn has_violated(&self) -> bool {
        self.info.reason == abi::Reason::VIOLATION
    }

    /// Whether it is stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.info.state == abi::State::STOPPED
    }

    /// Whether it has a supervisor.
    #[must_use]
    pub fn is_supervised(&self) -> bool {
        self.has(abi::NODE_SUPERVISED)
    }

    /// Whether it should have a supervisor but has none.
    #[must_use]
    pub fn is_unsupervised(&self) -> bool {
        let finished = self.has(abi::NODE_RETIRED) && !self.is_running();
        self.record.is_some() && self.info.starts > 0 && !self.is_supervised() && !finished
    }

    /// Whether its supervisor is about to restart it: it keeps the cores, or retries after a failed
    /// attempt.
    #[must_use]
    pub fn is_restarting(&self) -> bool {
        let policy = self.record.as_ref().map(|record| record.restart.policy);
        let wanted = policy.is_some_and(|policy| policy.keep_cpus() & self.info.reason.bit() != 0);
        self.is_stopped() && (self.has(abi::NODE_CPUS_KEPT) || wanted && self.may_restart())
    }

    /// Whether it is stopped, but not for good.
    #[must_use]
    pub fn may_restart(&self) -> bool {
        self.is_stopped() && self.is_supervised() && !self.has(abi::NODE_RETIRED)
    }

    /// Whether it is being restarted right now.
    #[must_use]
    pub fn is_being_restarted(&self) -> bool {
        let started = self.is_running() || self.is_stopped();
        !started && self.info.starts > 0
    }

    /// Bytes of its memory that it does not share.
    fn own_memory(&self) -> u64 {
        match self.snapshot() {
            // One that is removed meanwhile has none.
            Some(_) => self
                .node
                .memory()
                .and_then(|memory| memory.usage())
                .map_or(0, |used| used.own),
            None => self.info.memory_size,
        }
    }

    fn has(&self, flag: u32) -> bool {
        self.info.flags & flag != 0
    }

    /// Its state for users.
    #[must_use]
    pub fn view(&self) -> NodeView {
        NodeView::new(self, boot_time())
    }
}

/// Finds the node with this name.
///
/// # Errors
/// [`Kind::NoNode`], [`Kind::NotRunning`] of one that was only created, or the module's error.
pub fn find(driver: &Driver, name: &Name) -> Result<Handle, Error> {
    let node = driver
        .open_node(&name.to_abi())
        .map_err(|error| match error.errno {
            Errno::ENOENT if has_file(&Root::default(), name) => not_started(name),
            Errno::ENOENT => unknown(&missing(driver, name)),
            _ => unreadable(error),
        })?;
    Handle::of(node).map_err(|error| match is_gone(error) {
        true => unknown(&Missing::among(name.as_str(), [])),
        false => unreadable(error),
    })
}

/// The error of a name that no node has.
#[must_use]
pub fn unknown(missing: &Missing) -> Error {
    let what = format!("there is no node '{}'", missing.name());
    let hint = format!("{}`insula ps -a` lists all nodes", missing.hint());
    Error::of(Kind::NoNode, what).untouched().hint(hint)
}

/// The error of nodes that the module does not show.
#[must_use]
pub fn unreadable(error: CallError) -> Error {
    Error::new("the nodes cannot be read")
        .because(error)
        .untouched()
}

/// An unknown name, with suggestions.
fn missing(driver: &Driver, name: &Name) -> Missing {
    // On failure there are just no suggestions.
    let nodes = driver.node_names().unwrap_or_default();
    let created = created_names(&Root::default()).into_iter();
    let all = nodes.iter().map(name::text);
    Missing::among(name.as_str(), all.chain(created.map(|one| one.to_string())))
}

/// All nodes, oldest first. Nodes removed meanwhile are left out.
///
/// # Errors
/// [`Kind::NoNode`], or the module's error.
pub fn all(driver: &Driver) -> Result<Vec<Handle>, Error> {
    let opened = driver
        .node_names()
        .map_err(unreadable)?
        .into_iter()
        .map(|name| driver.open_node(&name));
    let handles = opened.map(|node| Handle::of(node?));
    let there = handles.filter(|handle| !matches!(handle, Err(error) if is_gone(*error)));
    there.collect::<Result<_, CallError>>().map_err(unreadable)
}

/// Whether the module's error means that the node was removed.
pub(super) fn is_gone(error: CallError) -> bool {
    matches!(error.errno, Errno::ENOENT | Errno::ENODEV | Errno::ENODATA)
}

/// State of a node for users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Its id; 0 before its first start.
    pub id: u32,
    /// State, in OCI's terms; or `paused`, as podman says.
    pub state: &'static str,
    /// Why it is stopped.
    pub reason: Option<&'static str>,
    /// What it accessed that is not its own, if that ended it: see `insula inspect` for more.
    pub violation: Option<String>,
    /// Whether it has a supervisor.
    pub supervised: bool,
    /// Whether it runs, but its first core takes no interrupts.
    pub unresponsive: bool,
    /// Whether it is stopped and about to be restarted.
    pub restarting: bool,
    /// Its failed virtio devices. They are retried.
    pub failed_devices: Vec<DeviceFailure>,
    /// Whether it is watched.
    pub watched: bool,
    /// What is wrong with its kernel, as its watcher finds; of a stopped one, what was.
    pub findings: Vec<NodeFinding>,
    /// Number of starts.
    pub starts: u64,
    /// Its cores by the base's numbers, the boot core first; if stopped, its last ones.
    pub cpus: CpuList,
    /// Their local APIC ids.
    pub apic_ids: Vec<u32>,
    /// Size of its memory in bytes.
    pub memory_bytes: u64,
    /// Bytes of it that are its own; fewer in a copy, which shares what it has not written.
    pub own_memory_bytes: u64,
    /// Its address on the network of nodes and base, if any.
    pub address: Option<Ipv4Addr>,
    /// Its labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<Label>,
    /// The image it was started from.
    pub image: Option<String>,
    /// Its kernel's release.
    pub release: Option<String>,
    /// Time of its last start, in seconds since 1970.
    pub started_unix_s: Option<u64>,
    /// Time of its end, in the same way.
    pub ended_unix_s: Option<u64>,
    /// Duration of its present or last run, in nanoseconds.
    pub ran_ns: u64,
}

impl NodeView {
    fn new(handle: &Handle, now: Duration) -> Self {
        let (info, record) = (&handle.info, handle.record.as_ref());
        let given = |time: u64| Some(time).filter(|&time| time > 0);
        let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let (started_ns, ended_ns) = (given(info.started_ns), given(info.ended_ns));
        Self {
            name: name::text(&info.name),
            id: info.id,
            state: match handle.is_paused() {
                true => "paused",
                false => state_name(info.state),
            },
            reason: reason_name(info.reason),
            violation: match handle.has_violated() {
                true => violation(handle),
                false => None,
            },
            supervised: handle.is_supervised(),
            unresponsive: handle.has(abi::NODE_UNRESPONSIVE),
            restarting: handle.is_restarting(),
            failed_devices: match handle.is_running() {
                true => attachment::failures(info.id, info.start_tsc),
                false => Vec::new(),
            },
            watched: record.is_some_and(|record| record.restart.watch.is_some()),
            findings: findings(&Root::default(), info.id, info.start_tsc),
            starts: info.starts,
            cpus: CpuList(handle.cpus.iter().map(|cpu| cpu.cpu).collect()),
            apic_ids: handle.cpus.iter().map(|cpu| cpu.apic_id).collect(),
            memory_bytes: info.memory_size,
            own_memory_bytes: handle.own_memory(),
            address: record
                .and_then(|record| record.network.as_ref())
                .map(|network| network.address(info.id)),
            labels: record.map_or_else(Vec::new, |record| record.spec.label.clone()),
            image: record.and_then(|record| Some(record.spec.image.as_ref()?.to_string())),
            release: record.map(|record| record.release.clone()),
            started_unix_s: started_ns.and_then(unix_s),
            ended_unix_s: ended_ns.and_then(unix_s),
            ran_ns: started_ns.map_or(0, |began| ended_ns.unwrap_or(now_ns).saturating_sub(began)),
        }
    }
}

/// When that was in nanoseconds of `CLOCK_BOOTTIME`, by the base's clock of now; `None` of a time to come.
pub(super) fn wall_time(boot_ns: u64) -> Option<SystemTime> {
    let ago = boot_time().checked_sub(Duration::from_nanos(boot_ns))?;
    SystemTime::now().checked_sub(ago)
}

fn unix_s(boot_ns: u64) -> Option<u64> {
    let since_epoch = wall_time(boot_ns)?.duration_since(UNIX_EPOCH).ok()?;
    Some(since_epoch.as_secs())
}

fn state_name(state: abi::State) -> &'static str {
    match state {
        abi::State::CREATING => "creating",
        abi::State::CREATED => "created",
        abi::State::RUNNING => "running",
        abi::State::STOPPED => "stopped",
        _ => "unknown",
    }
}

fn reason_name(reason: abi::Reason) -> Option<&'static str> {
    match reason {
        abi::Reason::NONE => None,
        abi::Reason::POWER_OFF => Some("power-off"),
        abi::Reason::RESET => Some("reset"),
        abi::Reason::STOPPED => Some("stopped"),
        abi::Reason::KILLED => Some("killed"),
        abi::Reason::CRASHED => Some("crashed"),
        abi::Reason::BASE => Some("base-went-down"),
        abi::Reason::HALTED => Some("halted"),
        abi::Reason::HUNG => Some("unresponsive"),
        abi::Reason::DEVICE_LOST => Some("device-lost"),
        abi::Reason::VIOLATION => Some("violation"),
        abi::Reason::FINDING => Some("finding"),
        _ => Some("unknown"),
    }
}

/// `CLOCK_BOOTTIME`.
pub(crate) fn boot_time() -> Duration {
    // Every Linux since 2.6.39 has this clock.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_reasons_have_words() {
        let states = [0, 1, 2, 3, 99].map(|state| state_name(abi::State(state)));
        assert_eq!(
            states,
            ["creating", "created", "running", "stopped", "unknown"]
        );
        let reasons = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 99]
            .map(|reason| reason_name(abi::Reason(reason)));
        let words = [
            "power-off",
            "reset",
            "stopped",
            "killed",
            "crashed",
            "base-went-down",
            "halted",
            "unresponsive",
            "device-lost",
            "violation",
            "finding",
            "unknown",
        ];
        assert_eq!(reasons[0], None);
        assert_eq!(reasons[1..], words.map(Some));
    }
}
