//! Checks of the user's own: expressions over the kernel's objects.
//!
//! They are compiled for the kernel when watching begins: what they name must exist in its types.

mod compile;
mod evaluate;

pub(crate) use compile::FitError;

use super::{Check, Round};
use crate::finding::{Finding, Kind};
use crate::target::{Kernel, Place};
use crate::task::{Task, listed};
use compile::{Number, Text, compile, label};
use evaluate::{number, text};
use insula_rules::{OwnCheck, Walk};
use kimage::running::RunningError;

/// Most findings of one check: it may be wrong for nearly all objects.
const FINDINGS_MAX: usize = 100;

/// All own checks of some rules.
#[derive(Debug, Default)]
pub(crate) struct OwnChecks(Vec<Compiled>);

/// A check for a certain kernel.
#[derive(Debug)]
struct Compiled {
    name: String,
    walk: Walk,
    when: Number,
    label: Option<Label>,
    detail: String,
}

/// What names an object.
#[derive(Debug)]
enum Label {
    Number(Number),
    Text(Text),
}

impl OwnChecks {
    /// Compiles the checks for a kernel.
    ///
    /// # Errors
    /// The name of one that does not fit it, and why.
    pub(crate) fn new(
        checks: &[OwnCheck],
        kernel: &Kernel<'_>,
    ) -> Result<Self, (String, FitError)> {
        let compiled = checks.iter().map(|check| {
            let compiled = Compiled::new(check, kernel);
            compiled.map_err(|error| (check.name.clone(), error))
        });
        Ok(Self(compiled.collect::<Result<_, _>>()?))
    }
}

impl Check for OwnChecks {
    fn name(&self) -> &'static str {
        "own checks"
    }

    /// The types of global variables are not known.
    fn knows_lists(&self) -> bool {
        false
    }

    fn look(&mut self, round: &Round<'_>) -> Result<Vec<Finding>, RunningError> {
        let mut found = Vec::new();
        for check in &self.0 {
            check.look(round.target.kernel, &mut found)?;
        }
        Ok(found)
    }
}

impl Compiled {
    fn new(check: &OwnCheck, kernel: &Kernel<'_>) -> Result<Self, FitError> {
        // They were parsed when the rules were read.
        let parsed = check.parse().map_err(FitError::Invalid)?;
        let of = compile::entry_type(&parsed.walk, kernel)?;
        let label = parsed
            .label
            .map(|expression| label(kernel, of, &expression));
        Ok(Self {
            name: check.name.clone(),
            when: compile(kernel, of, &parsed.when)?,
            walk: parsed.walk,
            label: label.transpose()?,
            detail: match &check.text {
                Some(text) => text.clone(),
                None => format!("{} is true", check.when),
            },
        })
    }

    fn look(&self, kernel: &Kernel<'_>, found: &mut Vec<Finding>) -> Result<(), RunningError> {
        let mut left = FINDINGS_MAX;
        for object in self.objects(kernel)? {
            if left > 0 && number(kernel, object.as_ref(), &self.when)?.unwrap_or(0) != 0 {
                left -= 1;
                let subject = match &object {
                    Some(object) => format!("{}: {}", self.name, self.subject(kernel, object)?),
                    None => self.name.clone(),
                };
                found.push(Finding::new(Kind::Check, subject, &*self.detail));
            }
        }
        Ok(())
    }

    /// The objects that are looked at; of global variables alone, none once.
    fn objects<'k, 'a>(
        &self,
        kernel: &'k Kernel<'a>,
    ) -> Result<Vec<Option<Place<'k, 'a>>>, RunningError> {
        let objects = match &self.walk {
            Walk::Globals => return Ok(vec![None]),
            Walk::Tasks => listed(kernel)?,
            Walk::Modules => kernel
                .global("modules", "list_head")?
                .list("module", "list")?,
            Walk::List { head, of, member } => {
                let head = kernel.symbols().address(head).unwrap_or_default();
                kernel.object(head, "list_head")?.list(of, member)?
            }
        };
        Ok(objects.into_iter().map(Some).collect())
    }

    fn subject(&self, kernel: &Kernel<'_>, object: &Place<'_, '_>) -> Result<String, RunningError> {
        let absent = || "-".to_owned();
        match (&self.label, &self.walk) {
            (Some(Label::Text(of)), _) => {
                Ok(text(kernel, Some(object), of)?.unwrap_or_else(absent))
            }
            (Some(Label::Number(of)), _) => {
                let number = number(kernel, Some(object), of)?;
                Ok(number.map_or_else(absent, |number| number.to_string()))
            }
            (None, Walk::Tasks) => Ok(Task::of(*object)?.subject()),
            (None, Walk::Modules) => Ok(format!("module {}", object.member("name")?.text()?)),
            (None, _) => Ok(format!("{:#x}", object.address())),
        }
    }
}
