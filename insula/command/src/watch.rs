//! `insula watch`.

mod base_end;
mod clock;
pub(super) mod line;
mod teller;

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use insula_base::error::Error;
use insula_driver::name::Name;
use insula_node::events::Status;
use insula_node::{Handle, read_rules};
use insula_postmortem::{DumpRequest, Limits, Target as DumpTarget, dump};
use insula_supervisor as supervisor;
use insula_watch::{
    Action, Event, Finding, OwnFiles, Rules, Target, Watched, Watcher, keep_resident, repair_node,
    undo_repair,
};

use super::cli::{Watch, WatchTarget};
use super::node::find;
use super::{Context, Failure, output, supervise};
use base_end::BaseEnd;
use clock::{Clock, State, next};
use line::{WatchEvent, WatchLine};
use teller::Teller;

pub(super) fn watch(context: &Context, options: &Watch) -> Result<ExitCode, Failure> {
    if options.here {
        return watch_here(context, options);
    }
    if options.undo {
        return undo(context, &options.target);
    }
    let mut session = Session {
        context,
        options,
        rules: rules(options)?,
        starts: 0,
        base: OfBase::default(),
    };
    match &options.target {
        WatchTarget::Base => session.base(),
        WatchTarget::Node(name) => {
            let handle = find(&context.driver()?, name)?;
            let watched = Watched::node(&handle, own_files(options))?;
            session.node(handle, watched)
        }
    }
}

fn own_files(options: &Watch) -> OwnFiles<'_> {
    OwnFiles {
        kernel: options.kernel.as_deref(),
        modules: options.modules.as_deref(),
    }
}

/// The rules of the file, with those of the command line.
fn rules(options: &Watch) -> Result<Rules, Failure> {
    let rules = match &options.rules {
        None => Rules::default(),
        Some(path) => read_rules(path)?,
    };
    let reactions = options.on.iter().map(|one| (one.kind, one.action));
    let rules = rules
        .react(reactions)
        .map_err(|error| Error::new(error.to_string()).untouched())?;
    if options.target == WatchTarget::Base {
        base_end::check(&rules)?;
    }
    Ok(rules)
}

fn undo(context: &Context, target: &WatchTarget) -> Result<ExitCode, Failure> {
    let WatchTarget::Node(name) = target else {
        let error = Error::new("nothing of the base is ever repaired").unchanged();
        return Err(error.into());
    };
    let handle = find(&context.driver()?, name)?;
    let undone = undo_repair(&context.root, &handle, name)?;
    let of = |key: &str| undone.attributes.get(key).map_or("", String::as_str);
    output::line(&format!("undone: {} {}", of("kind"), of("subject")))?;
    Ok(ExitCode::SUCCESS)
}

/// Watches for the supervisor of a node, by the rules of the node's record: prints what it finds, upon
/// which the supervisor acts.
fn watch_here(context: &Context, options: &Watch) -> Result<ExitCode, Failure> {
    // Unlike the supervisor, it may be killed when memory is short. If that cannot be set, it is not.
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    let node = supervise::take_stdin()?;
    let mut handle = Handle::of(node.into())?;
    let record = handle.record.as_ref();
    let rules = record.and_then(|record| record.restart.watch.clone());
    let mut session = Session {
        context,
        options,
        rules: rules.ok_or("the node is not to be watched")?,
        starts: handle.info.starts,
        base: OfBase::default(),
    };
    match next(&mut handle, OwnFiles::default())? {
        Some(watched) => session.node(handle, watched),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// One run of the command.
struct Session<'a> {
    context: &'a Context,
    options: &'a Watch,
    rules: Rules,
    /// Of a node, the number of the start whose kernel is watched.
    starts: u64,
    base: OfBase,
}

/// What watching the base needs, which may hang.
#[derive(Default)]
struct OfBase {
    /// Who prints.
    teller: Option<Teller>,
    /// What is done about findings, besides.
    end: Option<BaseEnd>,
}

/// How watching a kernel ended.
enum End {
    /// It was looked at once.
    Once(ExitCode),
    /// It does not run any more, or another one does.
    Over,
}

impl Session<'_> {
    fn base(&mut self) -> Result<ExitCode, Failure> {
        self.base.end = BaseEnd::prepare(self.context, &self.rules)?;
        let watched = Watched::base(own_files(self.options))?;
        if let Some(reason) = watched.not_mapped() {
            output::note(&format!("nothing is seen while the base hangs: {reason}"));
        }
        self.base.teller = Some(Teller::start());
        if let Err(error) = keep_resident() {
            output::note(&format!("memory is not locked: {error}"));
        }
        let clock = Clock::new();
        let end = self.follow(&watched, &mut |time| {
            let now = clock.wait(time);
            watched.refresh();
            State::Runs(now)
        });
        let printed = self.base.teller.take().map_or(Ok(()), Teller::finish);
        // If nothing can be printed, that is why watching ended.
        printed?;
        Ok(match end? {
            End::Once(status) => status,
            End::Over => ExitCode::SUCCESS,
        })
    }

    /// Watches a node until it has stopped for good.
    fn node(&mut self, mut handle: Handle, mut watched: Watched) -> Result<ExitCode, Failure> {
        let files = own_files(self.options);
        loop {
            let mut clock = Clock::new();
            let starts = handle.info.starts;
            self.starts = starts;
            let end = self.follow(&watched, &mut |time| {
                clock.wait_for_node(time, &mut handle, starts)
            })?;
            if let End::Once(status) = end {
                return Ok(status);
            }
            if self.options.here {
                self.tell_json(WatchEvent::Over)?;
            }
            watched = match next(&mut handle, files)? {
                Some(watched) => watched,
                None => return Ok(ExitCode::SUCCESS),
            };
            output::note("the node was started again");
        }
    }

    /// Looks at one kernel again and again; `wait` waits for so long.
    fn follow(
        &mut self,
        watched: &Watched,
        wait: &mut dyn FnMut(Duration) -> State,
    ) -> Result<End, Failure> {
        let kernel = watched.kernel()?;
        if let Err(reason) = watched.reference() {
            output::note(&format!("code and constants are not compared: {reason}"));
        }
        let target = Target {
            kernel: &kernel,
            reference: watched.reference().ok(),
            modules: Some(watched.modules()),
        };
        let mut watcher = Watcher::new(self.rules.clone(), &kernel)?;
        let mut state = wait(Duration::ZERO);
        let mut now = Duration::ZERO;
        let mut is_first = true;
        loop {
            let is_last = !matches!(state, State::Runs(_));
            let mut look = |time| {
                // While it looks the kernel may stop; then time stands still.
                state = wait(time);
                if let State::Runs(time) = state {
                    now = time;
                }
                now
            };
            let events = match is_last {
                true => watcher.look_at_end(&target, &mut look),
                false => watcher.look(&target, &mut look),
            };
            // What was read of another kernel's memory means nothing.
            if matches!(wait(Duration::ZERO), State::Gone) {
                return Ok(End::Over);
            }
            // Before anything is printed, for which the base may not be there.
            if let Some(end) = &mut self.base.end {
                let failed = end.act(&self.rules, &events, (watched, &kernel, &watcher));
                for error in failed {
                    self.note(error.to_string())?;
                }
            }
            for note in watcher.take_notes() {
                self.note(note)?;
            }
            for event in &events {
                self.tell(event)?;
            }
            if is_first && !self.options.once {
                self.tell_begin()?;
            }
            is_first = false;
            if self.options.once {
                let status = match watcher.current() {
                    [] => ExitCode::SUCCESS,
                    _ => ExitCode::FAILURE,
                };
                return Ok(End::Once(status));
            }
            if self.act(&events)? || is_last {
                return Ok(End::Over);
            }
            state = wait(self.rules.interval);
        }
    }

    /// Prints that the first look is done: what changes from now on is seen.
    fn tell_begin(&self) -> Result<(), Failure> {
        match self.is_json() {
            true => self.tell_json(WatchEvent::Watching),
            false => self.print(format!("{} watching", now())),
        }
    }

    fn print(&self, line: String) -> Result<(), Failure> {
        match &self.base.teller {
            Some(teller) => teller.tell(line),
            None => output::line(&line),
        }
    }

    /// Prints a note: of the base not at once, as it may hang.
    fn note(&self, note: String) -> Result<(), Failure> {
        match &self.base.teller {
            Some(teller) => teller.note(note),
            None => {
                output::note(&note);
                Ok(())
            }
        }
    }

    /// Prints an event.
    fn tell(&self, event: &Event) -> Result<(), Failure> {
        if self.is_json() {
            return self.tell_json(WatchEvent::Changed(event));
        }
        let time = now();
        self.print(match event {
            Event::Found(finding) => format!("{time} {finding}"),
            Event::Ended(finding) => format!("{time} ended: {finding}"),
            Event::Repaired(finding) => format!("{time} repaired: {finding}"),
        })
    }

    fn is_json(&self) -> bool {
        self.options.json || self.options.here
    }

    /// Prints an event with its time and, of a node, the number of the start.
    fn tell_json(&self, event: WatchEvent<'_>) -> Result<(), Failure> {
        let line = WatchLine {
            event,
            time: now(),
            starts: Some(self.starts).filter(|&starts| starts > 0),
        };
        self.print(serde_json::to_string(&line)?)
    }

    /// Does what the rules say about new findings; whether the kernel was stopped by that.
    fn act(&self, events: &[Event]) -> Result<bool, Failure> {
        let WatchTarget::Node(name) = &self.options.target else {
            return Ok(false);
        };
        if self.options.here {
            return Ok(false);
        }
        let mut actions = Vec::new();
        for event in events {
            let Event::Found(finding) = event else {
                continue;
            };
            let action = self.rules.action(finding.kind);
            if action == Action::Repair {
                match self.repair(name, finding) {
                    Ok(()) => self.tell(&Event::Repaired(finding.clone()))?,
                    Err(error) => output::note(&format!("not repaired: {error}")),
                }
            }
            actions.push(action);
        }
        let wants = |action| actions.contains(&action);
        if wants(Action::Dump) || wants(Action::Restart) {
            self.dump(name);
        }
        if wants(Action::Stop) || wants(Action::Restart) {
            insula_node::kill(&self.context.driver()?, name)?;
        }
        if wants(Action::Restart) {
            supervisor::restart(&self.context.driver()?, &self.context.root, name)?;
        }
        Ok(wants(Action::Stop) || wants(Action::Restart))
    }

    fn repair(&self, name: &Name, finding: &Finding) -> Result<(), Failure> {
        let repair = finding.repair.as_ref();
        let repair = repair.ok_or("nothing certain is known")?;
        let handle = insula_node::find(&self.context.driver()?, name)?;
        repair_node(&handle, repair)?;
        let event = finding.event(name.as_str(), Status::Repaired);
        Ok(event.record(&self.context.root)?)
    }

    /// Writes a dump; if that fails, the rest is done nevertheless.
    fn dump(&self, name: &Name) {
        let write = || -> Result<String, Failure> {
            let handle = find(&self.context.driver()?, name)?;
            let request = DumpRequest {
                target: DumpTarget::Store(Limits::from_environment()?),
                interrupt: false,
            };
            let dumped = dump(&handle, &self.context.root, &request)?;
            Ok(dumped.path.display().to_string())
        };
        output::note(&match write() {
            Ok(path) => format!("dumped to {path}"),
            Err(error) => format!("no dump was written: {error}"),
        });
    }
}

/// The time, as it is printed.
fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}
