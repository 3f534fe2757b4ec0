//! What is looked for, with thresholds and exceptions, and what is done about it.

use crate::{Action, CheckError, Kind, OwnCheck, WatchOption, duration_s};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;
use thiserror::Error;

/// Shortest and longest time between two looks, in seconds.
const INTERVAL_S: std::ops::RangeInclusive<f64> = 0.01..=3600.0;

/// Why a file has no valid rules.
#[derive(Debug, Error)]
pub enum RulesError {
    /// It is not TOML, or has an unknown key or value.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// A value is out of range.
    #[error("{key} is {value}, which is not {range}")]
    Range {
        /// The key.
        key: &'static str,
        /// Its value.
        value: f64,
        /// What it can be.
        range: &'static str,
    },
    /// A check is not valid.
    #[error("the check '{name}': {source}")]
    Check {
        /// Its name.
        name: String,
        /// What is wrong.
        source: CheckError,
    },
    /// Two checks have the same name.
    #[error("there are two checks '{0}'")]
    SameName(String),
    /// A kind of finding is to be repaired that cannot be.
    #[error("a finding of the kind {0} cannot be repaired")]
    Repair(&'static str),
}

/// Rules of a watcher. Each key has a default: an empty file is valid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rules {
    /// Time between two looks.
    #[serde(with = "duration_s", rename = "interval_s")]
    pub interval: Duration,
    /// Kinds that are not looked for.
    pub ignore: Vec<Kind>,
    /// What is done about each kind; the others are told.
    pub on: BTreeMap<Kind, Action>,
    /// Limits in time.
    pub limits: Limits,
    /// Names of tasks that may wait, starve or have any credentials.
    pub allow: Allow,
    /// Limits on memory.
    pub memory: Memory,
    /// Checks of the user's own.
    pub check: Vec<OwnCheck>,
}

/// How long something may last until it is a finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// A task that cannot be interrupted waits.
    #[serde(with = "duration_s")]
    pub task_hung_s: Duration,
    /// A task that could run gets no turn.
    #[serde(with = "duration_s")]
    pub task_starved_s: Duration,
    /// A processor stays in the kernel with one task.
    #[serde(with = "duration_s")]
    pub soft_lockup_s: Duration,
    /// A processor that is not idle takes no timer interrupt.
    #[serde(with = "duration_s")]
    pub hard_lockup_s: Duration,
    /// A grace period of RCU lasts.
    #[serde(with = "duration_s")]
    pub rcu_stall_s: Duration,
}

/// Exceptions: names of tasks (`comm`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Allow {
    /// May wait without limit.
    pub task_hung: Vec<String>,
    /// May get no turn.
    pub task_starved: Vec<String>,
    /// May get privileges.
    pub credentials_changed: Vec<String>,
}

/// Limits on memory, in percent of all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// Less than this is free or could be freed.
    pub available_min_percent: f64,
    /// More than this is in objects of the kernel that it cannot free by itself.
    pub slab_max_percent: f64,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            ignore: Vec::new(),
            on: BTreeMap::new(),
            limits: Limits::default(),
            allow: Allow::default(),
            memory: Memory::default(),
            check: Vec::new(),
        }
    }
}

impl Default for Limits {
    /// Linux' own where it has one: `hung_task_timeout_secs`, twice `watchdog_thresh`,
    /// `watchdog_thresh`, `rcu_cpu_stall_timeout`.
    fn default() -> Self {
        Self {
            task_hung_s: Duration::from_secs(120),
            task_starved_s: Duration::from_secs(60),
            soft_lockup_s: Duration::from_secs(20),
            hard_lockup_s: Duration::from_secs(10),
            rcu_stall_s: Duration::from_secs(21),
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            available_min_percent: 2.0,
            slab_max_percent: 50.0,
        }
    }
}

impl Rules {
    /// Reads rules from the text of a file.
    ///
    /// # Errors
    /// [`RulesError`] when it has no valid rules.
    pub fn parse(text: &str) -> Result<Self, RulesError> {
        let rules: Self = toml::from_str(text)?;
        let interval = rules.interval.as_secs_f64();
        if !INTERVAL_S.contains(&interval) {
            return Err(RulesError::Range {
                key: "interval_s",
                value: interval,
                range: "0.01 to 3600",
            });
        }
        for (key, value) in [
            ("available_min_percent", rules.memory.available_min_percent),
            ("slab_max_percent", rules.memory.slab_max_percent),
        ] {
            if !(0.0..=100.0).contains(&value) {
                return Err(RulesError::Range {
                    key,
                    value,
                    range: "0 to 100",
                });
            }
        }
        let mut names = HashSet::new();
        for check in &rules.check {
            check.parse().map_err(|source| RulesError::Check {
                name: check.name.clone(),
                source,
            })?;
            if !names.insert(&check.name) {
                return Err(RulesError::SameName(check.name.clone()));
            }
        }
        rules.react([])
    }

    /// Adds what is done about kinds of findings, which precedes what is there.
    ///
    /// # Errors
    /// [`RulesError::Repair`] when a kind is to be repaired that cannot be.
    pub fn react(
        mut self,
        reactions: impl IntoIterator<Item = (Kind, Action)>,
    ) -> Result<Self, RulesError> {
        self.on.extend(reactions);
        let unrepairable =
            |(kind, action): &(&Kind, &Action)| **action == Action::Repair && !kind.is_repairable();
        match self.on.iter().find(unrepairable) {
            Some((kind, _)) => Err(RulesError::Repair(kind.name())),
            None => Ok(self),
        }
    }

    /// Restricts them to what a node is watched for, if that names anything; what that says about
    /// kinds of findings precedes what is there. What cannot be read is always told.
    ///
    /// # Errors
    /// As of [`react`](Self::react).
    pub fn watch_for(mut self, options: &[WatchOption]) -> Result<Self, RulesError> {
        let named = |kind| {
            let names = |option: &WatchOption| match option {
                WatchOption::All => true,
                WatchOption::One(one, _) => *one == kind,
            };
            options.is_empty() || kind == Kind::Unreadable || options.iter().any(names)
        };
        let others = Kind::ALL.into_iter().filter(|kind| !named(*kind));
        self.ignore.extend(others);
        let reactions = options.iter().filter_map(|option| match option {
            WatchOption::One(kind, action) => Some((*kind, (*action)?)),
            WatchOption::All => None,
        });
        self.react(reactions)
    }

    /// Whether a kind of finding is looked for.
    #[must_use]
    pub fn looks_for(&self, kind: Kind) -> bool {
        !self.ignore.contains(&kind)
    }

    /// What is done about a kind of finding; about one that is not looked for, nothing but to tell it.
    #[must_use]
    pub fn action(&self, kind: Kind) -> Action {
        let action = self.on.get(&kind).filter(|_| self.looks_for(kind));
        action.copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(Rules::parse("").unwrap(), Rules::default());
    }

    #[test]
    fn keys_are_those_of_the_documentation() {
        let rules = Rules::parse(
            "interval_s = 0.5\n\
             ignore = ['slab-growth']\n\
             [on]\n\
             panic = 'restart'\n\
             [limits]\n\
             task_hung_s = 5\n\
             [allow]\n\
             task-hung = ['khugepaged']\n\
             [memory]\n\
             slab_max_percent = 25\n",
        )
        .unwrap();
        assert_eq!(rules.interval, Duration::from_millis(500));
        assert_eq!(rules.ignore, [Kind::SlabGrowth]);
        assert_eq!(rules.action(Kind::Panic), Action::Restart);
        assert_eq!(rules.action(Kind::Oops), Action::Report);
        assert_eq!(rules.limits.task_hung_s, Duration::from_secs(5));
        assert_eq!(rules.allow.task_hung, ["khugepaged"]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, said) in [
            (
                "interval_s = 0",
                "interval_s is 0, which is not 0.01 to 3600",
            ),
            (
                "[memory]\nslab_max_percent = 101",
                "slab_max_percent is 101",
            ),
            ("ignore = ['nothing']", "unknown variant `nothing`"),
            ("limit = 1", "unknown field `limit`"),
            ("[limits]\ntask_hung_s = -1", "negative"),
            (
                "[on]\noops = 'repair'",
                "of the kind oops cannot be repaired",
            ),
        ] {
            let error = Rules::parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn own_checks_are_parsed() {
        let text = "[[check]]\nname = 'a'\nin = 'tasks'\nwhen = 'pid == 0'\n";
        assert_eq!(Rules::parse(text).unwrap().check.len(), 1);
        let error = |text: &str| Rules::parse(text).unwrap_err().to_string();
        assert_eq!(error(&text.repeat(2)), "there are two checks 'a'");
        let wrong = text.replace("==", "=");
        assert_eq!(
            error(&wrong),
            "the check 'a': at character 5: '=' means nothing here"
        );
        let wrong = text.replace("tasks", "task");
        assert!(error(&wrong).contains("'task' is nothing to walk"));
        assert!(error("[[check]]\nname = 'a'").contains("missing field `when`"));
    }

    #[test]
    fn a_node_is_watched_for_what_is_named() {
        let watch_for = |words: &[&str]| {
            let options: Vec<_> = words.iter().map(|word| word.parse().unwrap()).collect();
            Rules::default().watch_for(&options)
        };
        let found = |rules: &Rules| Kind::ALL.map(|kind| rules.looks_for(kind));
        assert_eq!(found(&watch_for(&[]).unwrap()), [true; Kind::ALL.len()]);
        let rules = watch_for(&["oops=dump", "task-hung"]).unwrap();
        let looked_for = Kind::ALL.into_iter().filter(|kind| rules.looks_for(*kind));
        let expected = [Kind::Oops, Kind::TaskHung, Kind::Unreadable];
        assert_eq!(looked_for.collect::<Vec<_>>(), expected);
        assert_eq!(rules.action(Kind::Oops), Action::Dump);
        let rules = watch_for(&["all", "oops=stop"]).unwrap();
        assert_eq!(found(&rules), [true; Kind::ALL.len()]);
        assert_eq!(rules.action(Kind::Oops), Action::Stop);
        assert!(watch_for(&["oops=repair"]).is_err());
    }

    #[test]
    fn what_is_not_looked_for_does_not_act() {
        let rules = Rules::parse("[on]\npanic = 'dump'\noops = 'restart'").unwrap();
        assert_eq!(rules.action(Kind::Panic), Action::Dump);
        let rules = rules.watch_for(&["oops".parse().unwrap()]).unwrap();
        assert_eq!(rules.action(Kind::Panic), Action::Report);
        assert_eq!(rules.action(Kind::Oops), Action::Restart);
    }

    #[test]
    fn rules_survive_a_record() {
        let rules = Rules::parse("interval_s = 0.5\n[on]\npanic = 'restart'").unwrap();
        let json = serde_json::to_string(&rules).unwrap();
        assert_eq!(serde_json::from_str::<Rules>(&json).unwrap(), rules);
    }

    #[test]
    fn every_kind_has_its_name() {
        for kind in Kind::ALL {
            let rules = Rules::parse(&format!("ignore = ['{}']", kind.name())).unwrap();
            assert_eq!(rules.ignore, [kind]);
        }
    }
}
