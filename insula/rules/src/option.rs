//! What is watched for, in a word: `FINDING=ACTION`.

use crate::{Action, Kind};
use insula_base::serde_as_text;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Stands for all kinds of findings.
const ALL: &str = "all";

/// Why a word does not say what is watched for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OptionError {
    /// There is no such finding.
    #[error("there is no finding '{0}'; there are {all}", all = names(&Kind::ALL.map(Kind::name)))]
    Kind(String),
    /// There is no such action.
    #[error("there is no action '{0}'; there are {all}", all = names(&Action::ALL.map(Action::name)))]
    Action(String),
    /// The action is missing.
    #[error("use FINDING=ACTION, such as panic=restart")]
    NoAction,
}

fn names(all: &[&str]) -> String {
    all.join(", ")
}

/// What is done about a kind of finding: `FINDING=ACTION`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reaction {
    /// The finding.
    pub kind: Kind,
    /// What is done about it.
    pub action: Action,
}

impl FromStr for Reaction {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        match text.parse()? {
            WatchOption::One(kind, Some(action)) => Ok(Self { kind, action }),
            _ => Err(OptionError::NoAction),
        }
    }
}

/// What a node is watched for: `FINDING`, `FINDING=ACTION`, or `all`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchOption {
    /// All kinds of findings.
    All,
    /// One kind, and what is done about it; what the rules say if that is not given.
    One(Kind, Option<Action>),
}

impl FromStr for WatchOption {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        if text == ALL {
            return Ok(Self::All);
        }
        let (kind, action) = match text.split_once('=') {
            Some((kind, action)) => (kind, Some(action)),
            None => (text, None),
        };
        let found = Kind::ALL.into_iter().find(|one| one.name() == kind);
        let kind = found.ok_or_else(|| OptionError::Kind(kind.to_owned()))?;
        let named = |name: &str| {
            let found = Action::ALL.into_iter().find(|one| one.name() == name);
            found.ok_or_else(|| OptionError::Action(name.to_owned()))
        };
        Ok(Self::One(kind, action.map(named).transpose()?))
    }
}

impl fmt::Display for WatchOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str(ALL),
            Self::One(kind, None) => f.write_str(kind.name()),
            Self::One(kind, Some(action)) => write!(f, "{}={}", kind.name(), action.name()),
        }
    }
}

serde_as_text!(
    WatchOption,
    "^(all|[a-z]+(-[a-z]+)*(=(report|dump|repair|stop|restart))?)$"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_written() {
        for text in ["all", "panic", "oops=restart", "code-changed=repair"] {
            let option: WatchOption = text.parse().unwrap();
            assert_eq!(option.to_string(), text);
            let json = serde_json::to_string(&option).unwrap();
            assert_eq!(serde_json::from_str::<WatchOption>(&json).unwrap(), option);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = |text: &str| text.parse::<WatchOption>().unwrap_err().to_string();
        assert!(error("nothing=stop").contains("no finding 'nothing'; there are panic, oops"));
        assert!(error("oops=pray").contains("no action 'pray'; there are report, dump"));
        assert!(error("").contains("no finding ''"));
        for text in ["oops", "all"] {
            assert_eq!(text.parse::<Reaction>(), Err(OptionError::NoAction));
        }
    }
}
