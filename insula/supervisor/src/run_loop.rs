//! The supervisor's run loop.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use insula_abi as abi;
use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_driver::name;
use insula_driver::{CallError, Driver, Node};
use insula_node::events::Status;
use insula_node::monitor_state::MonitorState;
use insula_node::policy::{Decision, Ending, History, OnHang, Policy, retry_delay};
use insula_node::{
    self as node, Handle, RestartCause, forget_findings, keep_off_shared_core, record_crash,
    wait_for_last_lines,
};
use insula_postmortem::{backtrace, dump_on_crash};
use insula_privilege::restrict_supervisor;
use insula_virtio::{self as virtio, Devices, Server, make_static_nodes};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::clock::ClockSync;
use super::ending::ending;
use super::health::{Health, HealthProbe};
use super::journal::Journal;
use super::names;
use super::process::{device_needs, prepare_process};
use super::watch::{self, Watch};

/// Interval of health probes of a running node.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// State of a supervisor.
struct Supervisor {
    driver: Arc<Driver>,
    handle: Handle,
    policy: Policy,
    journal: Journal,
    unresponsive: bool,
    /// Serves the running node's virtio devices.
    devices: Option<Server>,
    /// Keeps the running node's clock.
    clock: Option<ClockSync>,
    /// Watches it, if that is wanted.
    watch: Watch,
    /// Number of the last start that ended in a crash or a hang.
    failed_start: u64,
}

/// Supervises a node until it has ended for good or was removed. `node` must already be the
/// supervisor's descriptor.
///
/// # Errors
/// When it cannot be supervised; it is left as it is.
pub fn supervise(driver: Driver, node: Node) -> Result<(), Error> {
    match supervise_existing(driver, node) {
        Err(error) if is_removed(&error) => Ok(()),
        other => other,
    }
}

/// Whether the error is that the node was removed.
fn is_removed(error: &Error) -> bool {
    let refused = error.cause::<CallError>();
    refused.is_some_and(|refused| refused.errno == Errno::ENODEV)
}

fn supervise_existing(driver: Driver, node: Node) -> Result<(), Error> {
    let handle = Handle::of(node).map_err(failed)?;
    let name = name::text(&handle.info.name);
    let Some(record) = &handle.record else {
        let what = format!("the record of the node '{name}' cannot be understood");
        return Err(Error::new(what).unchanged());
    };
    keep_off_shared_core(&handle);
    let journal = Journal::open(name.clone());
    // Before the privileges for it are dropped.
    prepare_process(&journal);
    make_static_nodes();
    let functions = !handle.node.devices().map_err(failed)?.is_empty();
    restrict_supervisor(device_needs(record, functions)).map_err(|error| {
        error
            .context(format!("the node '{name}' is not supervised"))
            .unchanged()
    })?;
    let mut supervisor = Supervisor {
        policy: record.restart.policy,
        driver: Arc::new(driver),
        handle,
        journal,
        unresponsive: false,
        devices: None,
        clock: None,
        watch: Watch::default(),
        failed_start: 0,
    };
    supervisor.journal.log_panics();
    supervisor.run().map_err(|error| {
        if error.errno != Errno::ENODEV {
            supervisor.journal.error(&error.to_string());
        }
        failed(error)
    })
}

fn failed(source: CallError) -> Error {
    Error::new("the node cannot be supervised")
        .because(source)
        .unchanged()
}

impl Supervisor {
    /// Supervises until the node has ended for good.
    fn run(&mut self) -> Result<(), CallError> {
        let mut probe = None;
        loop {
            self.handle.refresh()?;
            self.journal.rename(&name::text(&self.handle.info.name));
            match self.handle.info.state {
                abi::State::RUNNING => {
                    self.serve_devices();
                    self.keep_clock();
                    self.watch
                        .update(&self.driver, &self.handle, &self.journal)?;
                    self.watch_running(&mut probe)?;
                }
                abi::State::STOPPED => {
                    // Otherwise its memory would stay mapped, and be changed in its next run.
                    probe = None;
                    self.clock = None;
                    if let Some(devices) = self.devices.take() {
                        devices.wait();
                    }
                    if !self.handle_stopped()? {
                        return Ok(());
                    }
                }
                // Another process is starting it.
                _ => drop(self.wait(PollFlags::POLLIN, PROBE_INTERVAL)),
            }
        }
    }

    /// Starts serving virtio devices once a driver of the node waits for them.
    fn serve_devices(&mut self) {
        let record = self.handle.record.as_ref();
        let channels = record.map_or(0, |record| record.channels);
        let root = record.and_then(|record| record.root.clone());
        let network = record.and_then(|record| record.network.clone());
        let chunks_started = record.map_or(0, |record| record.memory.len());
        let is_copy = record.is_some_and(|record| record.copy.is_some());
        let disks = record.map_or_else(Vec::new, |record| record.disks.clone());
        let volumes = record.map_or_else(Vec::new, |record| record.volumes.clone());
        // The server only ends with the node or on an internal error.
        if self.devices.as_ref().is_some_and(Server::is_finished) {
            self.devices = None;
        }
        if self.devices.is_some() || !virtio::has_driver(&self.handle.node, channels) {
            return;
        }
        let id = self.handle.info.id;
        let journal = self.journal.clone();
        let report = move |text: &str| journal.error(text);
        let node = self.handle.open_again(&self.driver);
        let served = node.map_err(|error| error.to_string()).and_then(|node| {
            let devices = Devices {
                id,
                chunks_started,
                root,
                disks,
                volumes,
                names: match &network {
                    Some(network) => names::names(&self.driver, network.link(id).network),
                    None => names::none(),
                },
                network,
                is_copy,
            };
            Server::start(node, devices, report).map_err(|error| error.to_string())
        });
        match served {
            Ok(server) => self.devices = Some(server),
            Err(error) => {
                let text = format!("virtio devices are not served: {error}");
                self.journal.error(&text);
            }
        }
    }

    /// Keeps the clock of the present run.
    fn keep_clock(&mut self) {
        let is_kept = self
            .clock
            .as_ref()
            .is_some_and(|clock| clock.is_of(&self.handle));
        if !is_kept {
            self.clock = ClockSync::start(&self.driver, &self.handle, &self.journal);
        }
    }

    /// Waits for the node's end; probes its health after a timeout.
    fn watch_running(&mut self, probe: &mut Option<HealthProbe>) -> Result<(), CallError> {
        if self.wait(PollFlags::POLLIN, PROBE_INTERVAL) {
            return Ok(());
        }
        if self.handle.is_paused() {
            // It takes no interrupts, nor has it to.
            *probe = None;
            return Ok(());
        }
        let handle = &self.handle;
        let probe = match probe {
            Some(probe) if probe.is_of(handle) => probe,
            _ => {
                self.unresponsive = false;
                probe.insert(HealthProbe::of(handle))
            }
        };
        let found = match probe.check(handle) {
            // It has just ended.
            Err(error) if error.errno == Errno::EALREADY => return Ok(()),
            found => found?,
        };
        self.set_unresponsive(found == Health::Unresponsive)?;
        match found {
            Health::Healthy => Ok(()),
            Health::Crashed => record_crash(&mut self.handle),
            Health::Halted => {
                wait_for_last_lines(&self.handle);
                self.stop(abi::Reason::HALTED)
            }
            Health::Unresponsive if self.policy.on_hang == OnHang::Ignore => Ok(()),
            Health::Unresponsive => {
                if probe.has_taken_interrupts() {
                    self.log_backtraces();
                }
                self.stop(abi::Reason::HUNG)
            }
        }
    }

    /// Publishes a change of the state through the module.
    fn set_unresponsive(&mut self, unresponsive: bool) -> Result<(), CallError> {
        if self.unresponsive == unresponsive {
            return Ok(());
        }
        self.unresponsive = unresponsive;
        let (status, text) = match unresponsive {
            true => (
                Status::Unresponsive,
                "unresponsive: its first core takes no interrupts",
            ),
            false => (Status::Responsive, "responsive again"),
        };
        self.journal.event(status, text);
        self.handle.node.supervise(abi::NodeSupervise {
            keep_cpus: self.policy.keep_cpus(),
            flags: if unresponsive {
                abi::NODE_UNRESPONSIVE
            } else {
                0
            },
        })
    }

    /// Has each core log a backtrace and save its registers. Only used if the first core ever took
    /// an interrupt: otherwise it may not be able to take an NMI.
    fn log_backtraces(&self) {
        match backtrace(&self.handle) {
            Ok(found) => found.cores.silent.iter().for_each(|number| {
                let text = format!("core {number} of the node does not answer an NMI");
                self.journal.notice(&text);
            }),
            // The node is stopped anyway.
            Err(error) => self.journal.error(&error.to_string()),
        }
    }

    fn stop(&self, reason: abi::Reason) -> Result<(), CallError> {
        match self.handle.node.stop(reason) {
            // Another process stopped it first.
            Err(error) if error.errno == Errno::EALREADY => Ok(()),
            stopped => stopped,
        }
    }

    /// Applies the policy; false if the node has ended for good.
    fn handle_stopped(&mut self) -> Result<bool, CallError> {
        let ending = ending(&mut self.handle, self.watch.restarts)?;
        // Not before: only now a reset after a panic is a crash.
        self.watch.finish(&self.handle, &self.journal);
        if ending == Some(Ending::Violation) {
            self.log_violation();
        }
        if matches!(
            ending,
            Some(Ending::Crash { .. } | Ending::Hang | Ending::Violation)
        ) {
            self.keep_dump();
        }
        let view = self.handle.view();
        let reason = view.reason.unwrap_or("unknown");
        let retired = self.handle.info.flags & abi::NODE_RETIRED != 0;
        let history = self
            .handle
            .record
            .as_ref()
            .map(|record| record.restart.history);
        let decision = match (ending, history) {
            (Some(ending), Some(history)) if !retired => {
                self.policy
                    .decide(ending, Duration::from_nanos(view.ran_ns), history)
            }
            _ => Decision::StayStopped,
        };
        let Decision::Restart { after, history } = decision else {
            self.journal.died(reason, &format!("ended: {reason}"));
            self.handle.node.retire()?;
            if self.policy.removes(self.handle.info.reason) {
                self.handle.node.remove()?;
                forget_findings(&Root::default(), self.handle.info.id);
                self.journal.event(Status::Remove, "removed");
                node::remove_unused_disks(&self.driver, &Root::default());
            }
            return Ok(false);
        };
        let when = wait_text(after);
        self.journal
            .died(reason, &format!("ended: {reason}; restart {when}"));
        if self.wait(PollFlags::POLLPRI, after) {
            return Ok(true);
        }
        self.restart(history)
    }

    /// Restarts the node, with pauses after temporary errors, until its user stops it; false if it
    /// has ended for good.
    fn restart(&mut self, history: History) -> Result<bool, CallError> {
        let mut attempts = 0_u32;
        loop {
            match self.try_restart(history) {
                Ok(()) => {
                    self.journal.event(Status::Restart, "restarted");
                    return Ok(true);
                }
                // The user acted first: the run loop reads the new state.
                Err(error) if error.kind == Kind::Retired => return Ok(true),
                Err(error) if error.kind == Kind::Unavailable => {
                    attempts = attempts.saturating_add(1);
                    let delay = retry_delay(attempts);
                    let text = format!("{error}\nnext attempt {}", wait_text(delay));
                    self.journal.error(&text);
                    if self.wait(PollFlags::POLLPRI, delay) {
                        return Ok(true);
                    }
                }
                Err(error) => {
                    self.journal.error(&error.to_string());
                    self.handle.node.retire()?;
                    return Ok(false);
                }
            }
        }
    }

    /// Restarts through a separate descriptor, so that a start that fails half-way leaves the node
    /// stopped.
    fn try_restart(&mut self, history: History) -> Result<(), Error> {
        let name = &self.handle.info.name;
        let opened = self.handle.open_again(&self.driver).and_then(Handle::of);
        let mut starting = opened.map_err(|error| match error.errno {
            // The node was removed.
            Errno::ENOENT | Errno::ENODEV => node::retired(&name::text(name)),
            _ => node::module_failed(&name::text(name), error.into()),
        })?;
        let cause = RestartCause::Policy(history);
        node::restart(&self.driver, &Root::default(), &mut starting, cause)?;
        self.handle.record = starting.record;
        Ok(())
    }

    /// Writes what the node's monitor tells of its end.
    fn log_violation(&self) {
        let state = MonitorState::read(&self.handle);
        if let Ok(Some(MonitorState {
            ended: Some(ended), ..
        })) = state
        {
            self.journal
                .error(&format!("ended by its monitor: {ended}"));
        }
    }

    /// Keeps one dump of each failure if its user wants dumps.
    fn keep_dump(&mut self) {
        let start = self.handle.info.starts;
        if std::mem::replace(&mut self.failed_start, start) == start {
            return;
        }
        if self.handle.is_crashed() && watch::dumps_panic(&self.handle) {
            return watch::keep_dump(&self.handle, &self.journal);
        }
        match dump_on_crash(&self.handle, &Root::default()) {
            Ok(None) => {}
            Ok(Some(dumped)) => self.journal.dumped(&dumped.path),
            Err(error) => self.journal.error(&error.to_string()),
        }
    }

    /// Waits for an event of the node; false after `time`.
    fn wait(&self, what: PollFlags, time: Duration) -> bool {
        let mut descriptors = [PollFd::new(self.handle.node.as_fd(), what)];
        let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        // Only a signal can interrupt it; then the caller probes early.
        poll(&mut descriptors, time).is_ok_and(|count| count > 0)
    }
}

/// A wait in words.
fn wait_text(wait: Duration) -> String {
    match wait.is_zero() {
        true => "at once".into(),
        false => format!("in {}", humantime::format_duration(wait)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oom_kill_of_one_process_does_not_stop_all_nodes() {
        // Supervisors are in the service's control group, which systemd stops as a whole by
        // default.
        let service = include_str!("../../../packaging/insula.service");
        assert!(service.contains("\nOOMPolicy=continue\n"));
    }

    #[test]
    fn waits_in_words() {
        let words = [0, 100, 60_000].map(|ms| wait_text(Duration::from_millis(ms)));
        assert_eq!(words, ["at once", "in 100ms", "in 1m"]);
    }
}
