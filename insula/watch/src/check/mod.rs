//! The checks: each looks at one thing, and remembers what it needs to compare.

mod code;
mod credentials;
mod end;
mod hidden_modules;
mod hidden_tasks;
mod interrupt_table;
mod kprobes;
mod locks;
mod lockups;
mod memory;
mod module_code;
mod operations;
mod own;
mod rcu;
mod trampolines;
mod waiting;

use crate::finding::Finding;
use crate::target::{Kernel, Target};
use insula_rules::Rules;
use kimage::running::RunningError;
use own::FitError;
use std::time::Duration;

/// One look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Round<'a> {
    pub(crate) target: &'a Target<'a>,
    pub(crate) rules: &'a Rules,
    /// A time that does not jump.
    pub(crate) now: Duration,
}

/// A check.
pub(crate) trait Check {
    /// Its name, where it cannot be done.
    fn name(&self) -> &'static str;

    /// Whether it can be made of a kernel that still boots.
    fn suits_boot(&self) -> bool {
        false
    }

    /// Whether what it takes for a list certainly is one: else a broken one must not be repaired.
    fn knows_lists(&self) -> bool {
        true
    }

    /// What the user is to know of the last look besides findings, once.
    fn take_note(&mut self) -> Option<String> {
        None
    }

    /// Everything that is wrong now.
    ///
    /// # Errors
    /// [`RunningError`] when something cannot be read, perhaps since it just changes.
    fn look(&mut self, round: &Round<'_>) -> Result<Vec<Finding>, RunningError>;
}

/// All checks, those first that say most about the others' findings.
///
/// # Errors
/// The name of an own check that does not fit the kernel, and why.
pub(crate) fn all(
    rules: &Rules,
    kernel: &Kernel<'_>,
) -> Result<Vec<Box<dyn Check>>, (String, FitError)> {
    Ok(vec![
        Box::new(end::End),
        Box::new(code::CodeCheck::default()),
        Box::new(module_code::ModuleCode::default()),
        Box::new(interrupt_table::InterruptTable::default()),
        Box::new(operations::Operations),
        Box::new(lockups::Lockups::default()),
        Box::new(rcu::Rcu::default()),
        Box::new(hidden_tasks::HiddenTasks),
        Box::new(hidden_modules::HiddenModules),
        Box::new(credentials::Credentials::default()),
        Box::new(locks::Locks),
        Box::new(waiting::Waiting::default()),
        Box::new(memory::Memory),
        Box::new(own::OwnChecks::new(&rules.check, kernel)?),
    ])
}
