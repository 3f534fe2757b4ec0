//! What a supervisor does about what its node's watcher finds.

use std::time::Duration;

use insula_abi as abi;
use insula_base::root::Root;
use insula_driver::{CallError, Driver};
use insula_node::events::Status;
use insula_node::{Handle, findings, keep_findings};
use insula_postmortem::{DumpRequest, Dumped, Limits, Target, dump};
use insula_rules::{Action, Kind, Rules};
use insula_watch::{Event, Finding, repair_node};

use super::journal::Journal;
use super::known::{Known, finding};
use super::watcher_process::{Line, State, WatcherProcess};

/// Time that a watcher gets to look at a kernel that has stopped.
const LAST_LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// What a panic concerns, as watchers say it.
const KERNEL: &str = "kernel";
/// What a finding about the watcher itself concerns.
const WATCHER: &str = "watcher";

/// The watch over a node, if it is to be watched.
#[derive(Default)]
pub(super) struct Watch {
    process: WatcherProcess,
    known: Known,
    /// Whether the node was stopped to be started again.
    pub(super) restarts: bool,
}

impl Watch {
    /// Starts the watcher of a node that runs, if there is to be one, and acts upon what it has found.
    ///
    /// # Errors
    /// The module's error, if the node is to be stopped.
    pub(super) fn update(
        &mut self,
        driver: &Driver,
        handle: &Handle,
        journal: &Journal,
    ) -> Result<(), CallError> {
        let Some(rules) = rules(handle) else {
            return Ok(());
        };
        let name = handle.info.name;
        let open = || {
            let opened = handle.open_again(driver);
            opened.map_err(|error| error.to_string())
        };
        let text = insula_driver::name::text(&name);
        self.process.ensure(&text, open, journal);
        self.begin(handle);
        let lines = self.process.lines();
        let found = self.take(lines, handle, journal);
        if rules.looks_for(Kind::Unreadable) {
            let own = self.own_line(handle.info.starts);
            // Nothing is done about it: it says nothing about the node.
            self.take(own.into_iter().collect(), handle, journal);
        }
        self.act(&found, handle, rules, journal)
    }

    /// Takes what the watcher of a node that has stopped still finds. The handle must know whether it
    /// has crashed.
    pub(super) fn finish(&mut self, handle: &Handle, journal: &Journal) {
        let Some(rules) = rules(handle) else {
            return;
        };
        self.begin(handle);
        if self.known.has_ended() {
            return;
        }
        let starts = handle.info.starts;
        let lines = self.process.last_lines(starts, LAST_LOOK_TIMEOUT);
        self.take(lines, handle, journal);
        // A watcher that had not yet begun to watch this kernel has not seen it.
        let is_known = self.known.has(Kind::Panic, KERNEL);
        if handle.is_crashed() && rules.looks_for(Kind::Panic) && !is_known {
            let finding = own_finding(Kind::Panic, KERNEL, "it panicked; its log says why");
            let event = Event::Found(finding);
            self.take(vec![Line::Event { event, starts }], handle, journal);
        }
        self.known.end();
    }

    /// A supervisor that is attached to a node goes on with what another one has found.
    fn begin(&mut self, handle: &Handle) {
        let (id, start_tsc) = (handle.info.id, handle.info.start_tsc);
        let kept = || findings(&Root::default(), id, start_tsc);
        self.known.begin(handle.info.starts, kept);
    }

    /// Keeps what is wrong for those who ask, then tells it. Returns what was found of this start.
    fn take(&mut self, lines: Vec<Line>, handle: &Handle, journal: &Journal) -> Vec<Finding> {
        let taken = self.known.take(lines);
        if taken.iter().any(|(_, is_present)| *is_present) {
            let (id, start_tsc) = (handle.info.id, handle.info.start_tsc);
            let kept = keep_findings(&Root::default(), id, start_tsc, self.known.findings());
            if let Err(error) = kept {
                journal.error(&format!("its findings cannot be kept: {error}"));
            }
        }
        let mut found = Vec::new();
        for (event, is_present) in taken {
            tell(&event, journal);
            match event {
                Event::Found(finding) if is_present => found.push(finding),
                _ => {}
            }
        }
        found
    }

    /// What is to be told of the watcher itself: a node that is not watched is not one without faults.
    fn own_line(&self, starts: u64) -> Option<Line> {
        let is_known = self.known.has(Kind::Unreadable, WATCHER);
        let own = |detail: &str| own_finding(Kind::Unreadable, WATCHER, detail);
        let event = match self.process.state() {
            State::Failed(what) if !is_known => {
                Event::Found(own(&format!("it {what}: the node is not watched")))
            }
            State::Watches if is_known => Event::Ended(own("the node is watched again")),
            _ => return None,
        };
        Some(Line::Event { event, starts })
    }

    /// Does what the rules say about new findings: what certainly can be repaired first, and at most
    /// one dump and one stop for all.
    fn act(
        &mut self,
        found: &[Finding],
        handle: &Handle,
        rules: &Rules,
        journal: &Journal,
    ) -> Result<(), CallError> {
        self.restarts = false;
        if !handle.is_running() {
            return Ok(());
        }
        let mut actions = Vec::new();
        // A crash ends the node anyway, and then its dump is kept and its policy applied.
        for finding in found.iter().filter(|one| one.kind != Kind::Panic) {
            let action = rules.action(finding.kind);
            if action == Action::Repair {
                repair(finding, handle, journal);
            }
            actions.push(action);
        }
        let wants = |action| actions.contains(&action);
        if wants(Action::Dump) || wants(Action::Restart) {
            keep_dump(handle, journal);
        }
        self.restarts = wants(Action::Restart);
        match self.restarts || wants(Action::Stop) {
            true => stop(handle),
            false => Ok(()),
        }
    }
}

/// A finding of the supervisor's own.
fn own_finding(kind: Kind, subject: &str, detail: &str) -> Finding {
    Finding {
        kind,
        subject: subject.to_owned(),
        detail: detail.to_owned(),
        repair: None,
    }
}

/// Writes an event to the journal.
fn tell(event: &Event, journal: &Journal) {
    let status = match event {
        Event::Found(_) => Status::Found,
        Event::Ended(_) => Status::Ended,
        Event::Repaired(_) => Status::Repaired,
    };
    journal.finding(status, finding(event));
}

/// What a node is watched for, if it is.
fn rules(handle: &Handle) -> Option<&Rules> {
    handle.record.as_ref()?.restart.watch.as_ref()
}

/// Whether a dump of a node that crashes is to be kept.
pub(super) fn dumps_panic(handle: &Handle) -> bool {
    let action = rules(handle).map(|rules| rules.action(Kind::Panic));
    matches!(action, Some(Action::Dump | Action::Restart))
}

/// Keeps a dump; if that fails, the rest is done nevertheless.
pub(super) fn keep_dump(handle: &Handle, journal: &Journal) {
    let write = || -> Result<Dumped, insula_base::error::Error> {
        let request = DumpRequest {
            target: Target::Store(Limits::from_environment()?),
            interrupt: false,
        };
        dump(handle, &Root::default(), &request)
    };
    match write() {
        Ok(dumped) => journal.dumped(&dumped.path),
        Err(error) => journal.error(&error.to_string()),
    }
}

fn repair(finding: &Finding, handle: &Handle, journal: &Journal) {
    let Some(repair) = &finding.repair else {
        journal.notice("not repaired: nothing certain is known");
        return;
    };
    match repair_node(handle, repair) {
        Ok(()) => journal.finding(Status::Repaired, finding),
        Err(error) => journal.error(&error.to_string()),
    }
}

fn stop(handle: &Handle) -> Result<(), CallError> {
    match handle.node.stop(abi::Reason::FINDING) {
        // It has just ended.
        Err(error) if error.errno == nix::errno::Errno::EALREADY => Ok(()),
        stopped => stopped,
    }
}
