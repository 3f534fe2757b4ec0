//! Looking again and again.

use crate::check::{Check, Round, all};
use crate::finding::{Finding, Kind};
use crate::repair::Repair;
use crate::target::{Kernel, Target};
use insula_base::error::Error;
use insula_rules::Rules;
use kimage::running::{ListError, RunningError};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Looks that must agree until something new is a finding.
const CONFIRMATIONS: usize = 4;
/// Most findings of a check at a look: a hostile kernel can make up as many as it likes.
const FINDINGS_MAX: usize = 100;
/// What the finding for those beyond it is about.
const OTHERS: &str = "others";
/// Attempts to read what a check needs.
const ATTEMPTS: usize = 5;
/// Time between looks at the same. All of them take longer than the kernel keeps its lists in
/// disagreement, even if one of its processors is not executed meanwhile, as that of a virtual machine.
const PAUSE: Duration = Duration::from_millis(50);

/// What has changed since the last look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// Something is wrong.
    Found(Finding),
    /// It is not any more.
    Ended(Finding),
    /// It was repaired.
    Repaired(Finding),
}

/// A watcher of one kernel: what it has seen so far, and what is wrong now.
pub struct Watcher {
    rules: Rules,
    checks: Vec<Watching>,
    current: Vec<Finding>,
}

/// A check, and what it found at the last look.
struct Watching {
    check: Box<dyn Check>,
    found: Vec<Finding>,
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = formatter.debug_struct("Watcher");
        debug
            .field("current", &self.current)
            .finish_non_exhaustive()
    }
}

impl Watcher {
    /// A watcher of this kernel that has seen nothing yet.
    ///
    /// # Errors
    /// When a check of the rules names what the kernel does not have.
    pub fn new(rules: Rules, kernel: &Kernel<'_>) -> Result<Self, Error> {
        let watching = |check| Watching {
            check,
            found: Vec::new(),
        };
        let checks = all(&rules, kernel).map_err(|(name, error)| {
            let what = format!("the check '{name}' does not fit this kernel");
            Error::new(what).because(error).untouched()
        })?;
        Ok(Self {
            checks: checks.into_iter().map(watching).collect(),
            rules,
            current: Vec::new(),
        })
    }

    /// What is wrong, as of the last look.
    #[must_use]
    pub fn current(&self) -> &[Finding] {
        &self.current
    }

    /// What the user is to know besides findings, since the last call: what is not looked at, and why.
    pub fn take_notes(&mut self) -> Vec<String> {
        let checks = self.checks.iter_mut();
        checks
            .filter_map(|watching| watching.check.take_note())
            .collect()
    }

    /// Looks at the target. `wait` waits for so long, and returns the time then: one that does not jump,
    /// and stands still while the target is paused.
    pub fn look(
        &mut self,
        target: &Target<'_>,
        wait: &mut dyn FnMut(Duration) -> Duration,
    ) -> Vec<Event> {
        // Until it has booted, its structures are not complete, and its code is patched.
        let is_booted = target.kernel.has_booted().unwrap_or(false);
        self.look_by(target, wait, |check| is_booted || check.suits_boot())
    }

    /// Only looks whether it has panicked, or had an oops: for a kernel that has stopped, and whose
    /// memory may be another one's soon.
    pub fn look_at_end(
        &mut self,
        target: &Target<'_>,
        wait: &mut dyn FnMut(Duration) -> Duration,
    ) -> Vec<Event> {
        self.look_by(target, wait, |check| check.suits_boot())
    }

    /// Looks by some of the checks; what the others found stays.
    fn look_by(
        &mut self,
        target: &Target<'_>,
        wait: &mut dyn FnMut(Duration) -> Duration,
        suits: impl Fn(&dyn Check) -> bool,
    ) -> Vec<Event> {
        for watching in &mut self.checks {
            if suits(watching.check.as_ref()) {
                watching.look(target, &self.rules, wait);
            }
        }
        let mut found: Vec<Finding> = Vec::new();
        for finding in self.checks.iter().flat_map(|watching| &watching.found) {
            if self.rules.looks_for(finding.kind) && !is_among(finding, &found) {
                found.push(finding.clone());
            }
        }
        let events = changes(&self.current, &found);
        self.current = found;
        events
    }
}

impl Watching {
    /// Takes what the check finds each time of several, but for what is known already, for which once
    /// is enough. If it cannot be read, that is found, too, and what was known stays.
    fn look(
        &mut self,
        target: &Target<'_>,
        rules: &Rules,
        wait: &mut dyn FnMut(Duration) -> Duration,
    ) {
        let mut confirmed: Option<Vec<Finding>> = None;
        for attempt in 0..CONFIRMATIONS {
            let pause = match attempt {
                0 => Duration::ZERO,
                _ => PAUSE,
            };
            let now = wait(pause);
            let mut seen = match read(self.check.as_mut(), target, rules, now, wait) {
                Ok(seen) => seen,
                Err(error) => {
                    let unreadable = unreadable(self.check.as_ref(), target, &error);
                    self.found.retain(|finding| !finding.is_same(&unreadable));
                    self.found.push(unreadable);
                    return;
                }
            };
            if let Some(before) = &confirmed {
                seen.retain(|finding| is_among(finding, before));
            }
            let all_known = seen.iter().all(|finding| is_among(finding, &self.found));
            confirmed = Some(seen);
            if all_known {
                break;
            }
        }
        self.found = confirmed.unwrap_or_default();
    }
}

/// What a check finds; what prevents it, if it cannot be read several times.
fn read(
    check: &mut dyn Check,
    target: &Target<'_>,
    rules: &Rules,
    mut now: Duration,
    wait: &mut dyn FnMut(Duration) -> Duration,
) -> Result<Vec<Finding>, RunningError> {
    let mut attempts = 0;
    loop {
        let round = Round { target, rules, now };
        match check.look(&round) {
            Ok(found) => return Ok(limited(found)),
            Err(error) if attempts + 1 >= ATTEMPTS => return Err(error),
            Err(_) => attempts += 1,
        }
        now = wait(PAUSE);
    }
}

/// As many findings as are told one by one, and one for the others.
fn limited(mut found: Vec<Finding>) -> Vec<Finding> {
    let more = found.split_off(found.len().min(FINDINGS_MAX));
    if let Some(first) = more.first() {
        let detail = format!("{} more, not told one by one", more.len());
        found.push(Finding::new(first.kind, OTHERS, detail));
    }
    found
}

/// The finding for what cannot be read.
fn unreadable(check: &dyn Check, target: &Target<'_>, error: &RunningError) -> Finding {
    let (place, repair) = match error {
        RunningError::List(ListError::Endless(head)) => (*head, None),
        RunningError::List(ListError::Link {
            address,
            next,
            previous,
        }) => (
            *address,
            link_repair(target.kernel, *address, *next, *previous),
        ),
        _ => return Finding::new(Kind::Unreadable, check.name(), error.to_string()),
    };
    let repair = repair.filter(|_| check.knows_lists());
    let name = target.kernel.describe_data(place);
    let subject = name.unwrap_or_else(|| format!("{place:#x}"));
    Finding::new(Kind::ListCorrupted, subject, error.to_string()).with_repair(repair)
}

/// The entry at `address` is followed by `next`, which does not point back to it, but to `previous`.
/// If that one does not claim to be followed by `next`, the link back is wrong.
fn link_repair(kernel: &Kernel<'_>, address: u64, next: u64, previous: u64) -> Option<Repair> {
    let claimed = kernel.word(previous).ok() == Some(next) && previous != next;
    let offset = kernel.btf().ok()?.offset_of("list_head", "prev").ok()?;
    let place = next.checked_add(offset).filter(|_| next != 0 && !claimed)?;
    Some(Repair::of_words(&[(place, previous, address)]))
}

fn is_among(finding: &Finding, findings: &[Finding]) -> bool {
    findings.iter().any(|other| other.is_same(finding))
}

/// Events between two looks.
fn changes(before: &[Finding], after: &[Finding]) -> Vec<Event> {
    let ended = before.iter().filter(|finding| !is_among(finding, after));
    let begun = after.iter().filter(|finding| !is_among(finding, before));
    begun
        .cloned()
        .map(Event::Found)
        .chain(ended.cloned().map(Event::Ended))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_and_ends_is_an_event() {
        let hung = |detail: &str| Finding::new(Kind::TaskHung, "pid 1 (a)", detail);
        let oops = Finding::new(Kind::Oops, "kernel", "");
        let before = [hung("for 120 s")];
        let after = [hung("for 121 s"), oops.clone()];
        assert_eq!(changes(&before, &after), [Event::Found(oops.clone())]);
        assert_eq!(changes(&after, &before), [Event::Ended(oops)]);
    }

    #[test]
    fn findings_are_limited() {
        let tasks = |count: usize| -> Vec<Finding> {
            let finding = |pid| Finding::new(Kind::TaskHidden, format!("pid {pid}"), "");
            (0..count).map(finding).collect()
        };
        assert_eq!(limited(tasks(FINDINGS_MAX)), tasks(FINDINGS_MAX));
        let found = limited(tasks(FINDINGS_MAX + 7));
        assert_eq!(found.len(), FINDINGS_MAX + 1);
        assert_eq!(found[FINDINGS_MAX].subject, OTHERS);
        assert!(found[FINDINGS_MAX].detail.starts_with("7 more"));
    }

    #[test]
    fn an_event_is_flat_in_json() {
        let event = Event::Found(Finding::new(Kind::Oops, "kernel", "why"));
        let json = serde_json::to_value(event).unwrap();
        let expected = serde_json::json!({
            "event": "found", "kind": "oops", "subject": "kernel", "detail": "why",
        });
        assert_eq!(json, expected);
    }
}
