//! Another kernel under the containers of a node: a new node is started beside it, the containers are
//! [moved](crate::container::move_to) one by one, the two nodes exchange their names, and the old one
//! is stopped and removed.
//!
//! Whatever fails before the exchange is undone: the containers are moved back, and the new node is
//! removed. Which of the two nodes is which is told by their names: [`beside`] is the name of the one
//! that is to go. So the next upgrade undoes, or completes, one whose command was killed.

mod beside;
mod event;
mod interrupt;
mod names;
mod plan;
mod undo;

use std::time::{Duration, Instant};

use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_base::state;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node as node;
use insula_supervisor as supervisor;

use crate::agent::to_agent;
use crate::container::{self, ContainerMove, Location, PreCopy};

pub use beside::beside;
pub use event::{Observer, UpgradeEvent};
use interrupt::Interrupt;
use plan::Plan;
pub use plan::Planned;

/// Name of the lock held during an upgrade.
const LOCK: &str = "upgrades.lock";

/// An upgrade to make.
#[derive(Clone, Copy, Debug)]
pub struct UpgradeRequest<'a> {
    /// The node.
    pub node: &'a Name,
    /// The image of the node that takes its place.
    pub image: &'a Name,
    /// Time that a node has to power off before it is killed.
    pub stop_timeout: Duration,
    /// The time stamp counter at the start of this process.
    pub began_tsc: u64,
}

/// Checks whether an upgrade can be made, as far as that can be told before, and says what it would
/// do.
///
/// # Errors
/// What is in the way; nothing was touched.
pub fn check(driver: &Driver, root: &Root, request: &UpgradeRequest<'_>) -> Result<Planned, Error> {
    Ok(Plan::make(driver, root, request)?.planned)
}

/// Makes an upgrade.
///
/// # Errors
/// Why it was not made. Everything is as before, unless the error says otherwise.
pub fn upgrade(
    driver: &Driver,
    root: &Root,
    request: &UpgradeRequest<'_>,
    observer: Observer<'_>,
) -> Result<(), Error> {
    let lock = state::lock(root, LOCK);
    let _lock = lock.map_err(|error| Error::new("an upgrade cannot begin").because(error))?;
    let upgrade = Upgrade {
        driver,
        root,
        request,
        beside: beside(request.node)?,
        observer,
        interrupt: Interrupt::begin()?,
    };
    upgrade.undo_earlier()?;
    let plan = Plan::make(driver, root, request)?;
    upgrade.replace(&plan).map_err(|error| {
        observer(&UpgradeEvent::Failed {
            error: &error.failure(),
        });
        let context = format!("the node '{}' was not upgraded", request.node);
        let error = error.context(context);
        match upgrade.undo() {
            Ok(left) => error.leaving(left),
            Err(undo) => undo.context(error.failure()),
        }
    })?;
    upgrade.remove_old()
}

/// An upgrade in progress.
struct Upgrade<'a> {
    driver: &'a Driver,
    root: &'a Root,
    request: &'a UpgradeRequest<'a>,
    /// Name of the node beside, which is the new one until it has the name of the old one.
    beside: Name,
    observer: Observer<'a>,
    interrupt: Interrupt,
}

impl Upgrade<'_> {
    /// Starts the new node, moves all containers to it, and has it take the old one's name.
    fn replace(&self, plan: &Plan) -> Result<(), Error> {
        let started = supervisor::run(
            self.driver,
            self.root,
            &plan.request,
            self.request.began_tsc,
        )?;
        self.tell(&UpgradeEvent::Started {
            node: &self.beside,
            cpus: &started.cpus,
        });
        let began = Instant::now();
        to_agent(self.driver, &self.beside)?;
        self.tell(&UpgradeEvent::Ready {
            node: &self.beside,
            after: began.elapsed(),
        });
        let ends = [self.request.node, &self.beside].map(|node| Location::Node(node.clone()));
        container::check_nodes(self.driver, &ends[0], &ends[1])?;
        loop {
            self.move_all(self.request.node, &self.beside)?;
            self.interrupt.check()?;
            // One may have been started there meanwhile.
            if names::exchange_if_empty(self)? {
                self.tell(&UpgradeEvent::Named {
                    node: self.request.node,
                    old: &self.beside,
                });
                return Ok(());
            }
        }
    }

    /// Moves all containers that run from one of the nodes to the other.
    fn move_all(&self, from: &Name, to: &Name) -> Result<(), Error> {
        let records = container::all(self.driver, self.root)?;
        let target = Location::Node(to.clone());
        for name in plan::running(self.driver, &records, from)? {
            self.interrupt.check()?;
            let request = ContainerMove {
                name: &name,
                target: &target,
                pre_copy: PreCopy::Auto,
            };
            let moved = container::move_to(self.driver, self.root, &request)?;
            self.tell(&UpgradeEvent::Moved {
                container: &name,
                node: to,
                moved,
            });
        }
        Ok(())
    }

    /// Stops and removes the old node, which has the name of the node beside by now.
    fn remove_old(&self) -> Result<(), Error> {
        self.remove(&self.beside).map_err(|error| {
            let what = format!(
                "the node '{}' was upgraded, but the old one was not removed",
                self.request.node
            );
            let hint = format!("remove it with `insula rm --force {}`", self.beside);
            error.context(what).hint(hint)
        })
    }

    /// Stops and removes a node.
    fn remove(&self, name: &Name) -> Result<(), Error> {
        if node::find(self.driver, name)?.is_running() {
            let stopped = node::stop(self.driver, name, self.request.stop_timeout)?;
            self.tell(&UpgradeEvent::Stopped {
                node: name,
                by_force: matches!(stopped, node::Stopped::ByForce { .. }),
            });
        }
        match node::remove(self.driver, name, true) {
            // Its supervisor was first (`insula run --rm`).
            Err(error) if error.kind != Kind::NoNode => return Err(error),
            _ => {}
        }
        self.tell(&UpgradeEvent::Removed { node: name });
        Ok(())
    }

    fn tell(&self, event: &UpgradeEvent<'_>) {
        (self.observer)(event);
    }
}
