//! What is known of nodes.

use std::net::Ipv4Addr;
use std::time::Duration;

use insula_abi as abi;
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::NodeRecord;
use crate::driver::{CallError, Driver, Node};
use crate::name::{self, Missing, Name};
use crate::units::CpuList;
use crate::virtio::{self, DeviceFailure};

/// Why a node cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// There is none of that name.
    #[error(
        "there is no node '{}'; nothing was touched\n\
         {}`insula ps -a` lists those there are", .0.name(), .0.hint()
    )]
    Unknown(Missing),
    /// The module failed.
    #[error("the nodes cannot be read: {0}; nothing was touched")]
    Call(#[from] CallError),
}

/// A node at hand: its descriptor and what it said when it was opened.
#[derive(Debug)]
pub struct Handle {
    /// The module's descriptor of it.
    pub node: Node,
    /// What the module knew.
    pub info: abi::NodeInfo,
    /// Its cores, the first boots.
    pub cpus: Vec<abi::Cpu>,
    /// What is kept beside it; `None` when another version of the command wrote it.
    pub record: Option<NodeRecord>,
}

impl Handle {
    /// Asks the module for all that it knows.
    ///
    /// # Errors
    /// What it answered; `ENODEV` when the node is gone.
    pub fn of(node: Node) -> Result<Self, CallError> {
        let (info, cpus) = node.info()?;
        let record = serde_json::from_slice(&node.description()?).ok();
        Ok(Self {
            node,
            info,
            cpus,
            record,
        })
    }

    /// Asks the module anew.
    ///
    /// # Errors
    /// What the module answered; `ENOENT` or `ENODEV` when the node is gone.
    pub fn refresh(&mut self) -> Result<(), CallError> {
        (self.info, self.cpus) = self.node.info()?;
        Ok(())
    }

    /// Whether its cores execute it.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.info.state == abi::State::RUNNING
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

    /// Whether it runs no more.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.info.state == abi::State::STOPPED
    }

    /// Whether a supervisor looks after it.
    #[must_use]
    pub fn is_supervised(&self) -> bool {
        self.has(abi::NODE_SUPERVISED)
    }

    /// Whether a supervisor should look after it, and none does.
    #[must_use]
    pub fn is_unsupervised(&self) -> bool {
        let finished = self.has(abi::NODE_RETIRED) && !self.is_running();
        self.record.is_some() && self.info.starts > 0 && !self.is_supervised() && !finished
    }

    /// Whether its supervisor waits to start it again: with its cores, or for what it could not have
    /// at the first attempt.
    #[must_use]
    pub fn is_restarting(&self) -> bool {
        let policy = self.record.as_ref().map(|record| record.life.policy);
        let wanted = policy.is_some_and(|policy| policy.hold() & self.info.reason.bit() != 0);
        self.is_stopped() && (self.has(abi::NODE_HELD) || wanted && self.may_come_back())
    }

    /// Whether it is stopped, and its supervisor has not let that be for good.
    #[must_use]
    pub fn may_come_back(&self) -> bool {
        self.is_stopped() && self.is_supervised() && !self.has(abi::NODE_RETIRED)
    }

    /// Whether it is just being started, not for the first time.
    #[must_use]
    pub fn is_being_restarted(&self) -> bool {
        let started = self.is_running() || self.is_stopped();
        !started && self.info.starts > 0
    }

    fn has(&self, flag: u32) -> bool {
        self.info.flags & flag != 0
    }

    /// What a user sees of it.
    #[must_use]
    pub fn view(&self) -> NodeView {
        NodeView::new(self, boot_time())
    }
}

/// The node of that name.
///
/// # Errors
/// [`FindError`].
pub fn find(driver: &Driver, name: &Name) -> Result<Handle, FindError> {
    let node = driver
        .open_node(&name.to_abi())
        .map_err(|error| match error.errno {
            Errno::ENOENT => FindError::Unknown(missing(driver, name)),
            _ => FindError::Call(error),
        })?;
    Handle::of(node).map_err(|error| match is_gone(error) {
        true => FindError::Unknown(Missing::among(name.as_str(), [])),
        false => FindError::Call(error),
    })
}

/// A name that no node has.
fn missing(driver: &Driver, name: &Name) -> Missing {
    // Without them there is only nothing to suggest.
    let nodes = driver.node_names().unwrap_or_default();
    Missing::among(name.as_str(), nodes.iter().map(name::text))
}

/// All nodes, oldest first. One that goes meanwhile is left out.
///
/// # Errors
/// [`FindError`].
pub fn all(driver: &Driver) -> Result<Vec<Handle>, FindError> {
    let opened = driver
        .node_names()?
        .into_iter()
        .map(|name| driver.open_node(&name));
    let handles = opened.map(|node| Handle::of(node?));
    let there = handles.filter(|handle| !matches!(handle, Err(error) if is_gone(*error)));
    Ok(there.collect::<Result<_, CallError>>()?)
}

/// Whether the module's answer means that the node was removed meanwhile.
fn is_gone(error: CallError) -> bool {
    matches!(error.errno, Errno::ENOENT | Errno::ENODEV | Errno::ENODATA)
}

/// A node as users see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: u32,
    /// OCI's word for its state.
    pub state: &'static str,
    /// Why it is stopped.
    pub reason: Option<&'static str>,
    /// Whether a supervisor looks after it.
    pub supervised: bool,
    /// Whether it runs and gives no sign.
    pub unresponsive: bool,
    /// Whether it is stopped and about to be started again.
    pub restarting: bool,
    /// Its virtio devices that do not work. They are tried again.
    pub failed_devices: Vec<DeviceFailure>,
    /// How often it was started.
    pub starts: u64,
    /// Its cores by the base's numbers, the first boots; if stopped, those it had.
    pub cpus: CpuList,
    /// The ids of their local APICs.
    pub apic_ids: Vec<u32>,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Its address on the network of nodes and base, if it is on it.
    pub address: Option<Ipv4Addr>,
    /// The image it was started from.
    pub image: Option<String>,
    /// Its kernel's release.
    pub release: Option<String>,
    /// When it was last started, in nanoseconds of `CLOCK_BOOTTIME`.
    pub started_ns: Option<u64>,
    /// When it ended, in the same.
    pub ended_ns: Option<u64>,
    /// How long it has run, or did, in nanoseconds.
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
            state: state_word(info.state),
            reason: reason_word(info.reason),
            supervised: handle.is_supervised(),
            unresponsive: handle.has(abi::NODE_UNRESPONSIVE),
            restarting: handle.is_restarting(),
            failed_devices: match handle.is_running() {
                true => virtio::failures(info.id, info.start_tsc),
                false => Vec::new(),
            },
            starts: info.starts,
            cpus: CpuList(handle.cpus.iter().map(|cpu| cpu.cpu).collect()),
            apic_ids: handle.cpus.iter().map(|cpu| cpu.apic_id).collect(),
            memory_bytes: info.memory_size,
            address: record
                .and_then(|record| record.network.as_ref())
                .map(|network| network.address(info.id)),
            image: record.and_then(|record| record.image.clone()),
            release: record.map(|record| record.release.clone()),
            started_ns,
            ended_ns,
            ran_ns: started_ns.map_or(0, |began| ended_ns.unwrap_or(now_ns).saturating_sub(began)),
        }
    }
}

fn state_word(state: abi::State) -> &'static str {
    match state {
        abi::State::CREATING => "creating",
        abi::State::CREATED => "created",
        abi::State::RUNNING => "running",
        abi::State::STOPPED => "stopped",
        _ => "unknown",
    }
}

fn reason_word(reason: abi::Reason) -> Option<&'static str> {
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
        _ => Some("unknown"),
    }
}

fn boot_time() -> Duration {
    // The clock is there on every Linux since 2.6.39.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_reasons_have_words() {
        let states = [0, 1, 2, 3, 99].map(|state| state_word(abi::State(state)));
        assert_eq!(
            states,
            ["creating", "created", "running", "stopped", "unknown"]
        );
        let reasons =
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 99].map(|reason| reason_word(abi::Reason(reason)));
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
            "unknown",
        ];
        assert_eq!(reasons[0], None);
        assert_eq!(reasons[1..], words.map(Some));
    }
}
