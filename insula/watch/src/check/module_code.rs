//! Code and constants of loaded modules against their files.

use super::code::{Compared, compare};
use super::{Check, Round};
use crate::finding::Finding;
use crate::module_files::ModuleFiles;
use crate::target::Target;
use kimage::reference::{Exports, ModuleFile, ModuleReference, Reference, ReferenceError};
use kimage::running::{LoadedModule, RunningError};
use kimage::unpack_module;
use std::collections::BTreeMap;
use std::ops::Range;

/// Modules that are named in a note.
const NAMED_MAX: usize = 20;

/// Compares with the files, patches of the loading with what they were at the first look.
#[derive(Debug, Default)]
pub(super) struct ModuleCode {
    known: Vec<(LoadedModule, State)>,
    note: Option<String>,
}

/// What is known of a module.
#[derive(Debug)]
enum State {
    Compared(Box<ModuleReference>, Exports),
    /// It is not, for that reason.
    Not(String),
}

impl Check for ModuleCode {
    fn name(&self) -> &'static str {
        "code of modules"
    }

    fn look(&mut self, round: &Round<'_>) -> Result<Vec<Finding>, RunningError> {
        let target = round.target;
        let (Some(reference), Some(files)) = (target.reference, target.modules) else {
            return Ok(Vec::new());
        };
        self.update(target, reference, files)?;
        let mut found = Vec::new();
        for (_, state) in &self.known {
            if let State::Compared(module, _) = state {
                let compared = Compared {
                    code: &module.code,
                    constants: &module.constants,
                    place: &|address| module.describe(address),
                };
                compare(target.kernel, &compared, &mut found)?;
            }
        }
        Ok(found)
    }

    fn take_note(&mut self) -> Option<String> {
        self.note.take()
    }
}

impl ModuleCode {
    /// Forgets the modules that are gone, and reads the files of new ones.
    fn update(
        &mut self,
        target: &Target<'_>,
        reference: &Reference,
        files: &ModuleFiles,
    ) -> Result<(), RunningError> {
        let mut loaded = target.kernel.modules()?;
        loaded.retain(|module| module.is_live);
        self.known.retain(|(module, _)| loaded.contains(module));
        let code: Vec<_> = loaded.iter().map(|module| module.memory.text()).collect();
        loaded.retain(|module| self.known.iter().all(|(known, _)| known != module));
        if loaded.is_empty() {
            return Ok(());
        }
        // The list has the latest first; what a module uses was loaded before it.
        for module in loaded.into_iter().rev() {
            let mut exports = Exports::new();
            for (_, state) in &self.known {
                if let State::Compared(_, one) = state {
                    exports.extend(one.iter().map(|(name, address)| (name.clone(), *address)));
                }
            }
            let state = learn(target, reference, files, &module, &exports, &code)?;
            self.known.push((module, state));
        }
        self.note = self.not_compared();
        Ok(())
    }

    /// A note that names the modules that are not compared, if there are any.
    fn not_compared(&self) -> Option<String> {
        let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (module, state) in &self.known {
            if let State::Not(reason) = state {
                by_reason.entry(reason).or_default().push(&module.name);
            }
        }
        let reasons = by_reason.into_iter().map(|(reason, mut names)| {
            let more = names.len().saturating_sub(NAMED_MAX);
            names.truncate(NAMED_MAX);
            let more = match more {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("{}{more} ({reason})", names.join(", "))
        });
        let reasons: Vec<_> = reasons.collect();
        let text = format!("code of modules is not compared: {}", reasons.join("; "));
        (!reasons.is_empty()).then_some(text)
    }
}

/// What a module must be, by that of its files which is what was loaded.
fn learn(
    target: &Target<'_>,
    reference: &Reference,
    files: &ModuleFiles,
    module: &LoadedModule,
    exports: &Exports,
    code: &[Range<u64>],
) -> Result<State, RunningError> {
    let mut reason = "there is no file of it".to_owned();
    for file in files.read(&module.name) {
        let unpacked = match unpack_module(&file) {
            Ok(unpacked) => unpacked,
            Err(error) => {
                reason = error.to_string();
                continue;
            }
        };
        let learned = ModuleFile::parse(&unpacked)
            .map_err(ReferenceError::from)
            .and_then(|file| {
                let own = file.exports(module)?;
                let learned = reference.module(target.kernel, module, &file, exports, code)?;
                Ok(State::Compared(Box::new(learned), own))
            });
        match learned {
            Ok(state) => return Ok(state),
            Err(ReferenceError::Running(error)) => return Err(error),
            Err(error) => reason = error.to_string(),
        }
    }
    Ok(State::Not(reason))
}
