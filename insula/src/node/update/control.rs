//! Giving orders to our module in a node, by the node's channel for them.

use std::thread::sleep;
use std::time::{Duration, Instant};

use insula_abi as abi;
use insula_abi::channel::CHANNEL_ORDERS;
use insula_abi::order::{Answer, Order, OrderKind};
use insula_channel::Message;
use nix::errno::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::UpdateError;
use crate::channel::{ChannelError, End, Side};
use crate::driver::{CallError, Node};
use crate::name::Name;
use crate::units::Size;

/// How long the module may take to answer at all.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// How long an order may take: memory that is to go is moved first.
const ORDER_PATIENCE: Duration = Duration::from_secs(120);
/// How often it is tried to begin a session, while the node leaves the last one.
const OPEN_INTERVAL: Duration = Duration::from_millis(5);

/// Who obeys orders.
pub(super) trait Obeys {
    /// Gives one, and waits until it has been obeyed.
    fn obey(&mut self, step: &Step) -> Result<(), UpdateError>;
}

/// A session with the module in a node.
pub(super) struct Control<'a> {
    name: &'a Name,
    end: End,
    about: Answer,
}

impl<'a> Control<'a> {
    /// Begins one. Nothing is touched.
    pub(super) fn open(node: &Node, name: &'a Name) -> Result<Self, UpdateError> {
        let end = open_end(node).map_err(|error| match error.errno {
            Errno::EBUSY => UpdateError::Busy(name.clone()),
            Errno::ENOENT => UpdateError::NoModule(name.clone()),
            Errno::EPIPE => UpdateError::NotRunning(name.clone()),
            _ => UpdateError::Driver(error.into()),
        })?;
        let mut control = Self {
            name,
            end: End::attach(end, Side::Base)?,
            about: Answer::default(),
        };
        let asked = control.ask(OrderKind::ABOUT, Order::default(), HELLO_PATIENCE);
        control.about = asked.map_err(|error| match error {
            ChannelError::TimedOut(_) => UpdateError::NoModule(name.clone()),
            error => control.broken(error),
        })?;
        if !control.memory_block().is_power_of_two() || control.memory_block() < abi::GRANULE {
            return Err(UpdateError::Nonsense(name.clone()));
        }
        Ok(control)
    }

    /// What the node's kernel takes and gives memory in, in bytes: a power of two.
    pub(super) fn memory_block(&self) -> u64 {
        self.about.memory_block
    }

    fn ask(
        &mut self,
        kind: OrderKind,
        order: Order,
        patience: Duration,
    ) -> Result<Answer, ChannelError> {
        let message = Message::bytes(kind.0, order.as_bytes());
        self.end.send(&message, patience)?;
        let mut buffer = [0; size_of::<Answer>()];
        let received = self.end.receive(&mut buffer, patience)?;
        let answer = Answer::read_from_bytes(received.bytes(&buffer));
        // A module that answers something else understands nothing of what we say.
        Ok(answer.unwrap_or(Answer {
            error: -(Errno::EPROTO as i32),
            ..Answer::default()
        }))
    }

    fn broken(&self, error: ChannelError) -> UpdateError {
        let name = self.name.clone();
        match error {
            ChannelError::HungUp => UpdateError::HungUp(name),
            source => UpdateError::Channel { name, source },
        }
    }
}

fn open_end(node: &Node) -> Result<crate::driver::Channel, CallError> {
    let began = Instant::now();
    loop {
        match node.open_channel(CHANNEL_ORDERS) {
            Err(error) if error.errno == Errno::EBUSY && began.elapsed() < HELLO_PATIENCE => {
                sleep(OPEN_INTERVAL);
            }
            opened => return opened,
        }
    }
}

impl Obeys for Control<'_> {
    fn obey(&mut self, step: &Step) -> Result<(), UpdateError> {
        let name = self.name.clone();
        let what = step.to_string();
        let answer = match self.ask(step.kind, step.order, ORDER_PATIENCE) {
            Ok(answer) => answer,
            Err(ChannelError::TimedOut(_)) => return Err(UpdateError::Silent { name, what }),
            Err(error) => return Err(self.broken(error)),
        };
        match answer.error {
            0 => Ok(()),
            error => Err(UpdateError::Refused {
                name,
                what,
                why: Errno::from_raw(error.wrapping_neg()),
            }),
        }
    }
}

/// An order, and how it is undone should a later one fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    kind: OrderKind,
    order: Order,
    undone: bool,
}

impl Step {
    pub(super) fn cpu(kind: OrderKind, apic_id: u32) -> Self {
        let order = Order {
            apic_id,
            ..Order::default()
        };
        Self {
            kind,
            order,
            undone: false,
        }
    }

    pub(super) fn memory(kind: OrderKind, chunk: abi::Chunk) -> Self {
        let order = Order {
            start: chunk.start,
            size: chunk.size,
            ..Order::default()
        };
        Self {
            kind,
            order,
            undone: false,
        }
    }

    /// One that is to be undone.
    pub(super) fn undone_by_opposite(self) -> Self {
        Self {
            undone: true,
            ..self
        }
    }

    fn undo(self) -> Option<Self> {
        let kind = match self.kind {
            OrderKind::CPU_ON => OrderKind::CPU_OFF,
            OrderKind::CPU_OFF => OrderKind::CPU_ON,
            OrderKind::MEMORY_ADD => OrderKind::MEMORY_REMOVE,
            OrderKind::MEMORY_REMOVE => OrderKind::MEMORY_ADD,
            _ => return None,
        };
        self.undone.then_some(Self { kind, ..self })
    }
}

impl std::fmt::Display for Step {
    /// What the node's kernel is to do, as words that follow "to".
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Order {
            apic_id,
            start,
            size,
            ..
        } = self.order;
        let size = Size(size);
        match self.kind {
            OrderKind::CPU_ON => write!(f, "bring the core with APIC id {apic_id} online"),
            OrderKind::CPU_OFF => write!(f, "take the core with APIC id {apic_id} offline"),
            OrderKind::MEMORY_ADD => write!(f, "use {size} of memory at {start:#x}"),
            _ => write!(f, "let go of {size} of memory at {start:#x}"),
        }
    }
}

/// Has all steps done, in order; when one is refused, those before are undone.
pub(super) fn all_or_none(who: &mut impl Obeys, steps: &[Step]) -> Result<(), UpdateError> {
    for (index, step) in steps.iter().enumerate() {
        let Err(error) = who.obey(step) else {
            continue;
        };
        if !error.is_undone() {
            return Err(error);
        }
        undo(who, &steps[..index])?;
        return Err(error);
    }
    Ok(())
}

/// Has steps that were done undone, as far as they are to be.
pub(super) fn undo(who: &mut impl Obeys, steps: &[Step]) -> Result<(), UpdateError> {
    for step in steps.iter().rev().filter_map(|step| step.undo()) {
        who.obey(&step).map_err(UpdateError::not_undone)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node of which some orders are not to the liking.
    struct Node {
        refuses: Vec<OrderKind>,
        done: Vec<(OrderKind, u32)>,
    }

    impl Obeys for Node {
        fn obey(&mut self, step: &Step) -> Result<(), UpdateError> {
            if self.refuses.contains(&step.kind) {
                return Err(UpdateError::Refused {
                    name: "web".parse().unwrap(),
                    what: step.to_string(),
                    why: Errno::EBUSY,
                });
            }
            self.done.push((step.kind, step.order.apic_id));
            Ok(())
        }
    }

    fn node(refuses: &[OrderKind]) -> Node {
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
            Step::cpu(OrderKind::CPU_ON, 1),
            Step::cpu(OrderKind::CPU_ON, 2).undone_by_opposite(),
            Step::memory(OrderKind::MEMORY_ADD, chunk).undone_by_opposite(),
        ]
    }

    #[test]
    fn all_is_done_in_order() {
        let mut node = node(&[]);
        all_or_none(&mut node, &steps()).unwrap();
        let (on, add) = (OrderKind::CPU_ON, OrderKind::MEMORY_ADD);
        assert_eq!(node.done, [(on, 1), (on, 2), (add, 0)]);
    }

    #[test]
    fn what_was_done_before_a_refusal_is_undone_unless_it_was_so_before() {
        let mut node = node(&[OrderKind::MEMORY_ADD]);
        let error = all_or_none(&mut node, &steps()).unwrap_err();
        assert!(error.is_undone());
        let (on, off) = (OrderKind::CPU_ON, OrderKind::CPU_OFF);
        assert_eq!(node.done, [(on, 1), (on, 2), (off, 2)]);
    }

    #[test]
    fn what_cannot_be_undone_is_told() {
        let mut node = node(&[OrderKind::MEMORY_ADD, OrderKind::CPU_OFF]);
        let error = all_or_none(&mut node, &steps()).unwrap_err();
        assert!(!error.is_undone());
        insta::assert_snapshot!(error);
    }
}
