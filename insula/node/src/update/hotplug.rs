//! Hotplug requests to the module in a node, through the node's hotplug channel.

use std::thread::sleep;
use std::time::{Duration, Instant};

use insula_abi as abi;
use insula_abi::channel::CHANNEL_HOTPLUG;
use insula_abi::hotplug::{HotplugKind, HotplugReply, HotplugRequest};
use insula_base::error::Error;
use insula_base::units::Size;
use insula_channel::Message;
use insula_driver::channel::{ChannelError, End, Side};
use insula_driver::name::Name;
use insula_driver::{CallError, Node};
use nix::errno::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::error::{self, StepError};
use crate::Handle;
use crate::view::boot_time;

/// Timeout of the first answer.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a node has after its start until its module answers.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of a request: pages are migrated before memory is removed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval of attempts to open a session while the node leaves the last one.
const OPEN_INTERVAL: Duration = Duration::from_millis(5);

/// Executes hotplug steps.
pub(super) trait HotplugTarget {
    /// Executes one step and waits for its end.
    fn execute(&mut self, step: &Step) -> Result<(), StepError>;
}

/// A session with the module in a node.
pub(super) struct HotplugSession<'a> {
    name: &'a Name,
    end: End,
    info: HotplugReply,
}

impl<'a> HotplugSession<'a> {
    /// Opens a session, without changing the node, which may still boot.
    pub(super) fn open(handle: &Handle, name: &'a Name) -> Result<Self, Error> {
        let end = open_channel(&handle.node).map_err(|refusal| match refusal.errno {
            Errno::EBUSY => error::busy(name),
            Errno::ENOENT => error::no_module(name),
            Errno::EPIPE => error::not_running(name),
            _ => error::module_failed(refusal),
        })?;
        let mut hotplug = Self {
            name,
            end: End::attach(end, Side::Base).map_err(error::unusable_channel)?,
            info: HotplugReply::default(),
        };
        let running = boot_time().saturating_sub(Duration::from_nanos(handle.info.started_ns));
        let timeout = HELLO_TIMEOUT.max(BOOT_TIMEOUT.saturating_sub(running));
        let answer = hotplug.call(HotplugKind::QUERY, HotplugRequest::default(), timeout);
        hotplug.info = answer.map_err(|failure| match failure {
            ChannelError::TimedOut(_) => error::no_module(name),
            failure => error::channel(name, failure),
        })?;
        if !hotplug.memory_block().is_power_of_two() || hotplug.memory_block() < abi::GRANULE {
            return Err(error::protocol_error(name));
        }
        Ok(hotplug)
    }

    /// Size of the node's hotplug memory blocks in bytes, a power of two.
    pub(super) fn memory_block(&self) -> u64 {
        self.info.memory_block
    }

    fn call(
        &mut self,
        kind: HotplugKind,
        request: HotplugRequest,
        timeout: Duration,
    ) -> Result<HotplugReply, ChannelError> {
        let message = Message::bytes(kind.0, request.as_bytes());
        self.end.send(&message, timeout)?;
        let mut buffer = [0; size_of::<HotplugReply>()];
        let received = self.end.receive(&mut buffer, timeout)?;
        let answer = HotplugReply::read_from_bytes(received.bytes(&buffer));
        // Another size means another version of the protocol.
        Ok(answer.unwrap_or(HotplugReply {
            error: -(Errno::EPROTO as i32),
            ..HotplugReply::default()
        }))
    }
}

fn open_channel(node: &Node) -> Result<insula_driver::Channel, CallError> {
    let began = Instant::now();
    loop {
        match node.open_channel(CHANNEL_HOTPLUG) {
            Err(error) if error.errno == Errno::EBUSY && began.elapsed() < HELLO_TIMEOUT => {
                sleep(OPEN_INTERVAL);
            }
            opened => return opened,
        }
    }
}

impl HotplugTarget for HotplugSession<'_> {
    fn execute(&mut self, step: &Step) -> Result<(), StepError> {
        let (name, what) = (self.name, step.to_string());
        let answer = self.call(step.kind, step.request, REQUEST_TIMEOUT);
        let answer = answer.map_err(|failure| match failure {
            ChannelError::TimedOut(_) => error::timed_out(name, &what),
            failure => error::channel(name, failure),
        })?;
        match Errno::from_raw(answer.error.wrapping_neg()) {
            _ if answer.error == 0 => Ok(()),
            why => Err(StepError::refused(name, &what, why)),
        }
    }
}

/// A request, and whether it is reverted if a later one fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    kind: HotplugKind,
    request: HotplugRequest,
    revertible: bool,
}

impl Step {
    pub(super) fn cpu(kind: HotplugKind, apic_id: u32) -> Self {
        let request = HotplugRequest {
            apic_id,
            ..HotplugRequest::default()
        };
        Self {
            kind,
            request,
            revertible: false,
        }
    }

    pub(super) fn memory(kind: HotplugKind, chunk: abi::Chunk) -> Self {
        let request = HotplugRequest {
            start: chunk.start,
            size: chunk.size,
            ..HotplugRequest::default()
        };
        Self {
            kind,
            request,
            revertible: false,
        }
    }

    /// The same step, to be reverted if a later one fails.
    pub(super) fn revertible(self) -> Self {
        Self {
            revertible: true,
            ..self
        }
    }

    fn inverse(self) -> Option<Self> {
        let kind = match self.kind {
            HotplugKind::CPU_ONLINE => HotplugKind::CPU_OFFLINE,
            HotplugKind::CPU_OFFLINE => HotplugKind::CPU_ONLINE,
            HotplugKind::MEMORY_ADD => HotplugKind::MEMORY_REMOVE,
            HotplugKind::MEMORY_REMOVE => HotplugKind::MEMORY_ADD,
            _ => return None,
        };
        self.revertible.then_some(Self { kind, ..self })
    }
}

impl std::fmt::Display for Step {
    /// The action, as words that follow "to".
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let HotplugRequest {
            apic_id,
            start,
            size,
            ..
        } = self.request;
        let size = Size(size);
        match self.kind {
            HotplugKind::CPU_ONLINE => write!(f, "bring the core with APIC id {apic_id} online"),
            HotplugKind::CPU_OFFLINE => write!(f, "take the core with APIC id {apic_id} offline"),
            HotplugKind::MEMORY_ADD => write!(f, "use {size} of memory at {start:#x}"),
            _ => write!(f, "give up {size} of memory at {start:#x}"),
        }
    }
}

/// Executes all steps in order; if one is refused, reverts those before.
pub(super) fn execute_all(
    target: &mut impl HotplugTarget,
    steps: &[Step],
) -> Result<(), StepError> {
    for (index, step) in steps.iter().enumerate() {
        let Err(error) = target.execute(step) else {
            continue;
        };
        if !error.is_rolled_back {
            return Err(error);
        }
        revert(target, &steps[..index])?;
        return Err(error);
    }
    Ok(())
}

/// Reverts the revertible ones of executed steps.
pub(super) fn revert(target: &mut impl HotplugTarget, steps: &[Step]) -> Result<(), StepError> {
    for step in steps.iter().rev().filter_map(|step| step.inverse()) {
        target
            .execute(&step)
            .map_err(StepError::into_rollback_failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that refuses some kinds of requests.
    struct Node {
        refuses: Vec<HotplugKind>,
        done: Vec<(HotplugKind, u32)>,
    }

    impl HotplugTarget for Node {
        fn execute(&mut self, step: &Step) -> Result<(), StepError> {
            if self.refuses.contains(&step.kind) {
                let (name, what) = ("web".parse().unwrap(), step.to_string());
                return Err(StepError::refused(&name, &what, Errno::EBUSY));
            }
            self.done.push((step.kind, step.request.apic_id));
            Ok(())
        }
    }

    fn node(refuses: &[HotplugKind]) -> Node {
        Node {
            refuses: refuses.to_vec(),
            done: Vec::new(),
        }
    }

    fn steps() -> Vec<Step> {
        let chunk = abi::Chunk {
            start: 1 << 30,
            size: 128 << 20,
        };
        vec![
            Step::cpu(HotplugKind::CPU_ONLINE, 1),
            Step::cpu(HotplugKind::CPU_ONLINE, 2).revertible(),
            Step::memory(HotplugKind::MEMORY_ADD, chunk).revertible(),
        ]
    }

    #[test]
    fn steps_are_executed_in_order() {
        let mut node = node(&[]);
        execute_all(&mut node, &steps()).unwrap();
        let (on, add) = (HotplugKind::CPU_ONLINE, HotplugKind::MEMORY_ADD);
        assert_eq!(node.done, [(on, 1), (on, 2), (add, 0)]);
    }

    #[test]
    fn revertible_steps_before_a_refusal_are_reverted() {
        let mut node = node(&[HotplugKind::MEMORY_ADD]);
        let error = execute_all(&mut node, &steps()).unwrap_err();
        assert!(error.is_rolled_back);
        let (on, off) = (HotplugKind::CPU_ONLINE, HotplugKind::CPU_OFFLINE);
        assert_eq!(node.done, [(on, 1), (on, 2), (off, 2)]);
    }

    #[test]
    fn a_failed_rollback_is_reported() {
        let mut node = node(&[HotplugKind::MEMORY_ADD, HotplugKind::CPU_OFFLINE]);
        let error = execute_all(&mut node, &steps()).unwrap_err();
        assert!(!error.is_rolled_back);
        insta::assert_snapshot!(error.error);
    }
}
