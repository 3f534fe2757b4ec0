//! What a supervisor knows to be wrong with its node.

use insula_node::NodeFinding;
use insula_rules::Kind;
use insula_watch::{Event, Finding};

use super::watcher_process::Line;

/// What is wrong in one run of a node, by what its watcher has told.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Number of the start that it is about.
    start: u64,
    findings: Vec<NodeFinding>,
    /// Number of the last start whose end was seen to.
    ended_start: u64,
}

impl Known {
    /// Begins with what is already kept about a start, unless it is the same.
    pub(super) fn begin(&mut self, start: u64, kept: impl FnOnce() -> Vec<NodeFinding>) {
        if self.start != start {
            self.start = start;
            self.findings = kept();
        }
    }

    /// What is wrong.
    pub(super) fn findings(&self) -> &[NodeFinding] {
        &self.findings
    }

    /// Whether such a thing is wrong.
    pub(super) fn has(&self, kind: Kind, subject: &str) -> bool {
        let mut findings = self.findings.iter();
        findings.any(|one| (one.kind, one.subject.as_str()) == (kind, subject))
    }

    /// Takes what a watcher tells, and returns what is to be told, and whether it is about this
    /// start. A panic that is told after the end is left out: it is known by the end itself.
    pub(super) fn take(&mut self, lines: Vec<Line>) -> Vec<(Event, bool)> {
        let mut taken = Vec::new();
        for line in lines {
            let Line::Event { event, starts } = line else {
                continue;
            };
            if starts <= self.ended_start && finding(&event).kind == Kind::Panic {
                continue;
            }
            let is_present = starts == self.start;
            if is_present {
                self.note(&event);
            }
            taken.push((event, is_present));
        }
        taken
    }

    /// Whether the end of this start was seen to.
    pub(super) fn has_ended(&self) -> bool {
        self.ended_start == self.start
    }

    /// The end of this start is seen to.
    pub(super) fn end(&mut self) {
        self.ended_start = self.start;
    }

    /// A watcher that was started again finds again what lasts: it is there once.
    fn note(&mut self, event: &Event) {
        let (Event::Found(finding) | Event::Ended(finding)) = event else {
            return;
        };
        let same = (finding.kind, &finding.subject);
        self.findings.retain(|one| (one.kind, &one.subject) != same);
        if matches!(event, Event::Found(_)) {
            self.findings.push(NodeFinding {
                kind: finding.kind,
                subject: finding.subject.clone(),
                detail: finding.detail.clone(),
            });
        }
    }
}

/// What an event is about.
pub(super) fn finding(event: &Event) -> &Finding {
    match event {
        Event::Found(finding) | Event::Ended(finding) | Event::Repaired(finding) => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kind: Kind, starts: u64) -> Line {
        let event = Event::Found(Finding {
            kind,
            subject: "kernel".to_owned(),
            detail: "why".to_owned(),
            repair: None,
        });
        Line::Event { event, starts }
    }

    fn of_start(start: u64) -> Known {
        let mut known = Known::default();
        known.begin(start, Vec::new);
        known
    }

    #[test]
    fn a_panic_is_told_until_the_end_and_not_after_it() {
        let mut known = of_start(1);
        assert_eq!(known.take(vec![found(Kind::Panic, 1)]).len(), 1);
        assert!(known.has(Kind::Panic, "kernel") && !known.has_ended());
        known.end();
        assert!(known.has_ended());
        assert_eq!(known.take(vec![found(Kind::Panic, 1)]), []);
        known.begin(2, Vec::new);
        assert!(!known.has_ended());
        // The watcher tells late.
        let lines = vec![found(Kind::Panic, 1), found(Kind::Oops, 1)];
        let taken = known.take(lines);
        assert!(
            matches!(taken.as_slice(), [(Event::Found(oops), false)] if oops.kind == Kind::Oops)
        );
        assert_eq!(known.findings(), []);
        assert_eq!(known.take(vec![found(Kind::Panic, 2)]).len(), 1);
    }

    #[test]
    fn what_was_kept_is_known() {
        let mut known = of_start(1);
        known.take(vec![found(Kind::Panic, 1)]);
        let kept = known.findings().to_vec();
        // As of a supervisor that is attached to a node that has stopped.
        let mut other = Known::default();
        other.begin(1, || kept.clone());
        assert!(other.has(Kind::Panic, "kernel") && !other.has_ended());
        other.begin(1, Vec::new);
        assert_eq!(other.findings(), kept);
        other.begin(2, Vec::new);
        assert!(!other.has(Kind::Panic, "kernel"));
    }

    #[test]
    fn what_is_found_again_is_there_once_until_it_ends() {
        let mut known = of_start(3);
        known.take(vec![found(Kind::Oops, 3), found(Kind::Oops, 3)]);
        assert_eq!(known.findings().len(), 1);
        let Line::Event { event, .. } = found(Kind::Oops, 3) else {
            unreachable!()
        };
        let event = Event::Ended(finding(&event).clone());
        known.take(vec![Line::Event { event, starts: 3 }]);
        assert_eq!(known.findings(), []);
    }
}
