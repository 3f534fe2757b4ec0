//! Checks of the user's own: `[[check]]` in rules.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::expression::{Expression, SyntaxError, parse};

/// A check of the user's own: what is found is what `when` is true for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnCheck {
    /// Its name, by which what is found is told.
    pub name: String,
    /// The objects that are looked at, see [`Walk`]; without it only global variables are.
    #[serde(rename = "in", default, skip_serializing_if = "Option::is_none")]
    pub walk: Option<String>,
    /// What is wrong with an object: an [`expression`](crate::expression).
    pub when: String,
    /// Member by which an object is named; its address by default, or what tasks and modules are
    /// called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// What is told; by default that the expression is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// A check, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedCheck {
    /// What is looked at.
    pub walk: Walk,
    /// What is wrong.
    pub when: Expression,
    /// What an object is named by.
    pub label: Option<Expression>,
}

/// The objects that a check looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Walk {
    /// None: only global variables.
    Globals,
    /// `tasks`: all tasks, `struct task_struct`.
    Tasks,
    /// `modules`: all modules, `struct module`.
    Modules,
    /// `TYPE.MEMBER in SYMBOL`: entries of the list whose head is a global variable.
    List {
        /// The head.
        head: String,
        /// Type of the entries.
        of: String,
        /// Their member that links them.
        member: String,
    },
}

/// Why a check is not valid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CheckError {
    /// It has no name.
    #[error("its name is empty")]
    Name,
    /// What it looks at is unknown.
    #[error("'{0}' is nothing to walk: use tasks, modules, or 'TYPE.MEMBER in SYMBOL'")]
    Walk(String),
    /// An expression is none.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
}

impl OwnCheck {
    /// Parses it.
    ///
    /// # Errors
    /// [`CheckError`].
    pub fn parse(&self) -> Result<ParsedCheck, CheckError> {
        if self.name.is_empty() {
            return Err(CheckError::Name);
        }
        Ok(ParsedCheck {
            walk: match &self.walk {
                None => Walk::Globals,
                Some(walk) => walk.parse()?,
            },
            when: parse(&self.when)?,
            label: self.label.as_deref().map(parse).transpose()?,
        })
    }
}

impl FromStr for Walk {
    type Err = CheckError;

    fn from_str(text: &str) -> Result<Self, CheckError> {
        let list = || {
            let (entry, head) = text.split_once(" in ")?;
            let (of, member) = entry.trim().split_once('.')?;
            let [head, of, member] = [head, of, member].map(|name| name.trim().to_owned());
            let is_empty = head.is_empty() || of.is_empty() || member.is_empty();
            (!is_empty).then_some(Self::List { head, of, member })
        };
        match text.trim() {
            "tasks" => Ok(Self::Tasks),
            "modules" => Ok(Self::Modules),
            _ => list().ok_or_else(|| CheckError::Walk(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_are_named() {
        assert_eq!("tasks".parse(), Ok(Walk::Tasks));
        let list = Walk::List {
            head: "super_blocks".to_owned(),
            of: "super_block".to_owned(),
            member: "s_list".to_owned(),
        };
        assert_eq!("super_block.s_list in super_blocks".parse(), Ok(list));
        for text in [
            "", "task", " in x", "a in b", "a. in b", ".a in b", "a.b in ",
        ] {
            assert!(text.parse::<Walk>().is_err(), "{text}");
        }
    }
}
