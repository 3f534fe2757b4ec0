//! What a supervisor does from its first to its last moment.

use std::os::fd::AsFd;
use std::time::Duration;

use insula_abi as abi;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::journal::Journal;
use super::sight::{Found, Sight};
use crate::driver::{CallError, Driver, Node};
use crate::name;
use crate::node::{AgainError, Handle, Wish, again, note_crash, wait_for_last_words};
use crate::policy::{Ending, History, OnHang, Policy, Verdict, pause};
use crate::postmortem::{backtrace, keep_if_wanted};
use crate::privilege::{Needs, RestrictError, restrict_supervisor};
use crate::root::Root;
use crate::virtio::{self, Devices, Server, make_static_nodes};

/// How often a running node is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How likely the process is to be chosen when the base is out of memory: from -1000, never.
const OOM_SCORE: &str = "-900";

/// Why a node cannot be supervised. It was left as it is.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// The module failed, or the descriptor is no node's.
    #[error("the node cannot be supervised: {0}; it was left as it is")]
    Call(#[from] CallError),
    /// What is kept beside the node is not ours.
    #[error("the record of the node '{0}' cannot be understood; it was left as it is")]
    NoRecord(String),
    /// Nothing of a node is looked at with more privileges than it takes.
    #[error("the node '{name}' is not supervised: {source}; it was left as it is")]
    Restrict {
        /// The node.
        name: String,
        /// Why.
        source: RestrictError,
    },
}

/// What a supervisor works with.
struct Supervisor {
    driver: Driver,
    handle: Handle,
    policy: Policy,
    journal: Journal,
    unresponsive: bool,
    /// Who serves the running node's virtio devices.
    devices: Option<Server>,
    /// Which of the node's starts has last been seen to end in a crash or a hang.
    failed_start: u64,
}

/// Supervises a node, whose descriptor is its supervisor's already, until it has ended for good or
/// is gone.
///
/// # Errors
/// [`SuperviseError`].
pub fn supervise(driver: Driver, node: Node) -> Result<(), SuperviseError> {
    match supervise_present(driver, node) {
        // It was removed.
        Err(SuperviseError::Call(error)) if error.errno == Errno::ENODEV => Ok(()),
        other => other,
    }
}

fn supervise_present(driver: Driver, node: Node) -> Result<(), SuperviseError> {
    let handle = Handle::of(node)?;
    let name = name::text(&handle.info.name);
    let Some(record) = &handle.record else {
        return Err(SuperviseError::NoRecord(name));
    };
    let journal = Journal::open(name.clone());
    // As long as it may.
    prepare_process(&journal);
    make_static_nodes();
    let functions = !handle.node.devices()?.is_empty();
    restrict_supervisor(Needs::of(record, functions)).map_err(|source| {
        SuperviseError::Restrict {
            name: name.clone(),
            source,
        }
    })?;
    let mut supervisor = Supervisor {
        policy: record.life.policy,
        driver,
        handle,
        journal,
        unresponsive: false,
        devices: None,
        failed_start: 0,
    };
    supervisor.journal.tell_of_panics();
    supervisor.attend().map_err(|error| {
        if error.errno != Errno::ENODEV {
            supervisor.journal.complain(&error.to_string());
        }
        error.into()
    })
}

/// Makes this process, and those that it starts, one of the last to be killed when the base is short
/// of memory: the node ends with a root that they serve. And lets it have as many descriptors as it
/// may, for the connections that it passes on.
fn prepare_process(journal: &Journal) {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE) {
        journal.complain(&format!("it may be killed if memory is short: {error}"));
    }
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        journal.complain(&format!("it has few descriptors: {}", error.desc()));
    }
}

impl Supervisor {
    /// Returns when the node has ended for good.
    fn attend(&mut self) -> Result<(), CallError> {
        let mut sight = None;
        loop {
            self.handle.refresh()?;
            match self.handle.info.state {
                abi::State::RUNNING => {
                    self.serve_devices();
                    self.attend_running(&mut sight)?;
                }
                abi::State::STOPPED => {
                    // Else its memory would be held beyond its end, or changed in its next life.
                    sight = None;
                    if let Some(devices) = self.devices.take() {
                        devices.wait();
                    }
                    if !self.attend_stopped()? {
                        return Ok(());
                    }
                }
                // Somebody else is about to start it.
                _ => drop(self.wait(PollFlags::POLLIN, LOOK_INTERVAL)),
            }
        }
    }

    /// Has the node's virtio devices served as soon as it wants them, until its end. A node can do
    /// without.
    fn serve_devices(&mut self) {
        let record = self.handle.record.as_ref();
        let channels = record.map_or(0, |record| record.channels);
        let root = record.and_then(|record| record.root.clone());
        let network = record.and_then(|record| record.network.clone());
        let chunks_started = record.map_or(0, |record| record.memory.len());
        let disks = record.map_or_else(Vec::new, |record| record.disks.clone());
        // It ends by itself only with the node, or by a fault of its own.
        if self.devices.as_ref().is_some_and(Server::is_finished) {
            self.devices = None;
        }
        if self.devices.is_some() || !virtio::wanted(&self.handle.node, channels) {
            return;
        }
        let info = &self.handle.info;
        let journal = self.journal.clone();
        let complain = move |text: &str| journal.complain(text);
        let node = self.driver.open_node(&info.name);
        let served = node.map_err(|error| error.to_string()).and_then(|node| {
            let devices = Devices {
                id: info.id,
                chunks_started,
                root,
                disks,
                network,
            };
            Server::start(node, devices, complain).map_err(|error| error.to_string())
        });
        match served {
            Ok(server) => self.devices = Some(server),
            Err(error) => {
                let text = format!("virtio devices are not served: {error}");
                self.journal.complain(&text);
            }
        }
    }

    /// Waits for the node's end; looks at it when that does not come.
    fn attend_running(&mut self, sight: &mut Option<Sight>) -> Result<(), CallError> {
        if self.wait(PollFlags::POLLIN, LOOK_INTERVAL) {
            return Ok(());
        }
        let handle = &self.handle;
        let sight = match sight {
            Some(sight) if sight.is_of(handle) => sight,
            _ => {
                self.unresponsive = false;
                sight.insert(Sight::of(handle))
            }
        };
        let found = match sight.look(handle) {
            // It has ended at this moment.
            Err(error) if error.errno == Errno::EALREADY => return Ok(()),
            found => found?,
        };
        self.set_unresponsive(found == Found::Unresponsive)?;
        match found {
            Found::Well => Ok(()),
            Found::Crashed => note_crash(&mut self.handle),
            Found::Halted => {
                wait_for_last_words(&self.handle);
                self.stop(abi::Reason::HALTED)
            }
            Found::Unresponsive if self.policy.on_hang == OnHang::Ignore => Ok(()),
            Found::Unresponsive => {
                if sight.has_felt_a_pulse() {
                    self.ask_where_it_hangs();
                }
                self.stop(abi::Reason::HUNG)
            }
        }
    }

    /// Lets everybody know by way of the module.
    fn set_unresponsive(&mut self, unresponsive: bool) -> Result<(), CallError> {
        if self.unresponsive == unresponsive {
            return Ok(());
        }
        self.unresponsive = unresponsive;
        self.journal.note(match unresponsive {
            true => "unresponsive: its first core takes no interrupts",
            false => "responsive again",
        });
        self.handle.node.supervise(abi::NodeSupervise {
            hold: self.policy.hold(),
            flags: if unresponsive {
                abi::NODE_UNRESPONSIVE
            } else {
                0
            },
        })
    }

    /// Makes each core log where it is, and leave its registers in memory. A kernel whose first core
    /// has never taken an interrupt may not be able to take this one.
    fn ask_where_it_hangs(&self) {
        match backtrace(&self.handle) {
            Ok(found) => found.cores.silent.iter().for_each(|number| {
                let text = format!("core {number} of the node does not answer an NMI");
                self.journal.note(&text);
            }),
            // It is stopped all the same.
            Err(error) => self.journal.complain(&error.to_string()),
        }
    }

    fn stop(&self, reason: abi::Reason) -> Result<(), CallError> {
        match self.handle.node.stop(reason) {
            // Somebody else was faster.
            Err(error) if error.errno == Errno::EALREADY => Ok(()),
            stopped => stopped,
        }
    }

    /// Does what the policy says; whether there is more to attend to.
    fn attend_stopped(&mut self) -> Result<bool, CallError> {
        let ending = ending(&mut self.handle)?;
        if matches!(ending, Some(Ending::Crash { .. } | Ending::Hang)) {
            self.keep_dump();
        }
        let view = self.handle.view();
        let reason = view.reason.unwrap_or("unknown");
        let retired = self.handle.info.flags & abi::NODE_RETIRED != 0;
        let history = self
            .handle
            .record
            .as_ref()
            .map(|record| record.life.history);
        let verdict = match (ending, history) {
            (Some(ending), Some(history)) if !retired => {
                self.policy
                    .judge(ending, Duration::from_nanos(view.ran_ns), history)
            }
            _ => Verdict::Leave,
        };
        let Verdict::Restart { after, history } = verdict else {
            self.journal.note(&format!("ended: {reason}"));
            self.handle.node.retire()?;
            if self.policy.removes(self.handle.info.reason) {
                self.handle.node.remove()?;
            }
            return Ok(false);
        };
        let when = in_words(after);
        self.journal
            .note(&format!("ended: {reason}; to be started again {when}"));
        if self.wait(PollFlags::POLLPRI, after) {
            return Ok(true);
        }
        self.start_again(history)
    }

    /// Starts the node again: anew after each pause, for as long as what is in the way may pass and
    /// its user does not stop it. Whether there is more to attend to.
    fn start_again(&mut self, history: History) -> Result<bool, CallError> {
        let mut attempts = 0_u32;
        loop {
            match self.try_again(history) {
                Ok(()) => {
                    self.journal.note("started again");
                    return Ok(true);
                }
                // Its user was faster: the next look tells how.
                Err(AgainError::Retired(_)) => return Ok(true),
                Err(error) if error.may_pass() => {
                    attempts = attempts.saturating_add(1);
                    let pause = pause(attempts);
                    let text = format!("{error}\nthe next attempt is made {}", in_words(pause));
                    self.journal.complain(&text);
                    if self.wait(PollFlags::POLLPRI, pause) {
                        return Ok(true);
                    }
                }
                Err(error) => {
                    self.journal.complain(&error.to_string());
                    self.handle.node.retire()?;
                    return Ok(false);
                }
            }
        }
    }

    /// By a descriptor of its own: with that, a start that fails half-way leaves the node stopped.
    fn try_again(&mut self, history: History) -> Result<(), AgainError> {
        let name = &self.handle.info.name;
        let opened = self.driver.open_node(name).and_then(Handle::of);
        let mut starting = opened.map_err(|error| match error.errno {
            // It was removed.
            Errno::ENOENT | Errno::ENODEV => AgainError::Retired(name::text(name)),
            _ => AgainError::Driver {
                name: name::text(name),
                source: error.into(),
            },
        })?;
        let wish = Wish::Policy(history);
        again(&self.driver, &Root::default(), &mut starting, wish)?;
        self.handle.record = starting.record;
        Ok(())
    }

    /// Keeps a dump of a crash or a hang, once, if its user wants it.
    fn keep_dump(&mut self) {
        let start = self.handle.info.starts;
        if std::mem::replace(&mut self.failed_start, start) == start {
            return;
        }
        match keep_if_wanted(&self.handle, &Root::default()) {
            Ok(None) => {}
            Ok(Some(dumped)) => {
                let path = dumped.path.display();
                self.journal.note(&format!("its memory is kept in {path}"));
            }
            Err(error) => self.journal.complain(&error.to_string()),
        }
    }

    /// Waits for something to happen to the node, at most so long; whether it did.
    fn wait(&self, what: PollFlags, time: Duration) -> bool {
        let mut descriptors = [PollFd::new(self.handle.node.as_fd(), what)];
        let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        // Nothing but a signal can be in the way; then the caller looks early.
        poll(&mut descriptors, time).is_ok_and(|count| count > 0)
    }
}

/// When something is done after so long a wait.
fn in_words(wait: Duration) -> String {
    match wait.is_zero() {
        true => "at once".into(),
        false => format!("in {}", humantime::format_duration(wait)),
    }
}

/// How a stopped node came to its end; `None` when it was not by itself. Of one that was reset the
/// log tells whether a panic was why.
fn ending(handle: &mut Handle) -> Result<Option<Ending>, CallError> {
    let reset = handle.info.reason == abi::Reason::RESET;
    note_crash(handle)?;
    Ok(match handle.info.reason {
        abi::Reason::POWER_OFF | abi::Reason::HALTED => Some(Ending::Off),
        abi::Reason::RESET => Some(Ending::Reset),
        abi::Reason::CRASHED => Some(Ending::Crash {
            asked_for_reset: reset,
        }),
        abi::Reason::HUNG => Some(Ending::Hang),
        abi::Reason::DEVICE_LOST => Some(Ending::DeviceLost),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_out_of_memory_does_not_take_all_nodes_down() {
        // Its supervisors are in the service's control group; by default systemd stops that whole.
        let service = include_str!("../../../packaging/insula.service");
        assert!(service.contains("\nOOMPolicy=continue\n"));
    }

    #[test]
    fn waits_in_words() {
        let words = [0, 100, 60_000].map(|ms| in_words(Duration::from_millis(ms)));
        assert_eq!(words, ["at once", "in 100ms", "in 1m"]);
    }
}
