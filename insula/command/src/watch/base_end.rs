//! What is done about findings of the base: its log is kept, and the machine is reset.

use insula_base::error::Error;
use insula_watch::{
    Action, BaseRecord, Event, Kernel, Kind, MachineReset, Rules, Watched, Watcher,
};

use super::Context;
use crate::Failure;

/// What the rules ask for, ready to be used while the base hangs.
pub(super) struct BaseEnd {
    record: BaseRecord,
    /// If any finding is to restart it.
    reset: Option<MachineReset>,
}

/// Checks that rules ask only for what can be done about the base.
///
/// # Errors
/// When they do not.
pub(super) fn check(rules: &Rules) -> Result<(), Error> {
    let of = |wanted: &[Action]| {
        let mut kinds = Kind::ALL.into_iter();
        kinds.find(|kind| wanted.contains(&rules.action(*kind)))
    };
    if of(&[Action::Repair, Action::Stop]).is_some() {
        return Err(Error::new("the base is neither repaired nor stopped")
            .untouched()
            .hint("of the base, findings can be reported, `dump` keeps its log, `restart` also resets the machine"));
    }
    let ends = [Action::Dump, Action::Restart];
    if ends.contains(&rules.action(Kind::Panic)) {
        return Err(Error::new("nothing can be done about a panic of the base")
            .because("it stops its nodes, and the watcher on one")
            .untouched()
            .hint("`sysctl kernel.panic=10` restarts it, and ramoops keeps its log by itself"));
    }
    Ok(())
}

impl BaseEnd {
    /// Prepares what the rules ask for; `None` if that is only to tell.
    ///
    /// # Errors
    /// When it is not possible here.
    pub(super) fn prepare(context: &Context, rules: &Rules) -> Result<Option<Self>, Failure> {
        let wants = |action| Kind::ALL.iter().any(|kind| rules.action(*kind) == action);
        let restarts = wants(Action::Restart);
        if !restarts && !wants(Action::Dump) {
            return Ok(None);
        }
        let record = BaseRecord::open(&context.root, &context.driver()?)?;
        let reset = match restarts {
            true => Some(MachineReset::prepare(&context.root)?),
            false => None,
        };
        Ok(Some(Self { record, reset }))
    }

    /// Does what the rules say about new findings. Returns only if the machine is not reset; then what
    /// went wrong, which is yet to be told: to print it may need the base, which may hang.
    pub(super) fn act(
        &mut self,
        rules: &Rules,
        events: &[Event],
        (watched, kernel, watcher): (&Watched, &Kernel<'_>, &Watcher),
    ) -> Vec<Error> {
        let new = events.iter().filter_map(|event| match event {
            Event::Found(finding) => Some(rules.action(finding.kind)),
            _ => None,
        });
        let actions: Vec<_> = new.collect();
        let restarts = actions.contains(&Action::Restart);
        if !restarts && !actions.contains(&Action::Dump) {
            return Vec::new();
        }
        let kept = self.record.write(watched, kernel, watcher.current());
        let reset = self.reset.as_ref().filter(|_| restarts);
        // Also if nothing could be kept.
        let reset = reset.map_or(Ok(()), MachineReset::reset);
        [kept, reset].into_iter().filter_map(Result::err).collect()
    }
}
