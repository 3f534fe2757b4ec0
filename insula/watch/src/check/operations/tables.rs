//! Tables of functions, by the kernel's types.

use super::super::hidden_modules::in_tree;
use super::super::trampolines::Trampolines;
use super::members::Memory;
use crate::finding::{Finding, Kind};
use crate::target::Kernel;
use kimage::running::{LoadedModule, RunningError};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;

/// Limit on the tables of one look: a kernel has some hundreds, and some for each socket.
const TABLES_MAX: usize = 1 << 16;

/// Tables of one look, and what is wrong with them.
pub(super) struct Tables<'k, 'a> {
    pub(super) kernel: &'k Kernel<'a>,
    pub(super) memory: Memory<'a>,
    pub(super) found: Vec<Finding>,
    code: Vec<Range<u64>>,
    trampolines: Trampolines,
    forms: HashMap<&'static str, Rc<Form>>,
    seen: HashSet<(u64, &'static str)>,
}

/// A structure with functions.
#[derive(Debug)]
struct Form {
    /// Name and offset of each pointer to a function.
    functions: Vec<(String, u64)>,
    /// Size of the structure up to the last of them, in bytes.
    size: usize,
}

impl<'k, 'a> Tables<'k, 'a> {
    /// No table yet, of this kernel with the modules that it has now.
    pub(super) fn new(kernel: &'k Kernel<'a>) -> Result<Self, RunningError> {
        let listed = kernel.modules()?;
        let mut code: Vec<_> = listed.iter().map(|module| module.memory.text()).collect();
        // One that is hidden in the list is found as such.
        for module in in_tree(kernel)?.values() {
            code.push(LoadedModule::at(module)?.memory.text());
        }
        code.push(kernel.symbol("_stext")?..kernel.symbol("_etext")?);
        Ok(Self {
            kernel,
            memory: kernel.page_table()?,
            found: Vec::new(),
            code,
            trampolines: Trampolines::of(kernel)?,
            forms: HashMap::new(),
            seen: HashSet::new(),
        })
    }

    /// Looks at the functions in the structure at an address, if there is one that was not looked at
    /// yet. `user` says what has it.
    pub(super) fn look(
        &mut self,
        structure: &'static str,
        address: u64,
        user: &dyn Fn() -> String,
    ) -> Result<(), RunningError> {
        let is_new =
            address != 0 && self.seen.len() < TABLES_MAX && self.seen.insert((address, structure));
        if !is_new {
            return Ok(());
        }
        let form = self.form(structure)?;
        let mut bytes = vec![0; form.size];
        if self.memory.read(address, &mut bytes).is_err() {
            let subject = format!("{structure} at {address:#x}");
            let detail = format!("there is no memory; used by {}", user());
            self.found.push(finding(subject, detail));
            return Ok(());
        }
        for (name, offset) in &form.functions {
            let at = *offset as usize;
            let word = bytes[at..].first_chunk().copied().unwrap_or_default();
            let target = u64::from_le_bytes(word);
            if target != 0 && !self.is_code(target) {
                let place = self.kernel.describe_data(address);
                let place = place.unwrap_or_else(|| format!("{address:#x}"));
                let subject = format!("{structure}.{name} at {place}");
                let detail = format!(
                    "it leads to {target:#x}, no code of the kernel or of a module; used by {}",
                    user()
                );
                self.found.push(finding(subject, detail));
            }
        }
        Ok(())
    }

    fn is_code(&self, address: u64) -> bool {
        self.code.iter().any(|range| range.contains(&address)) || self.trampolines.contain(address)
    }

    fn form(&mut self, structure: &'static str) -> Result<Rc<Form>, RunningError> {
        if let Some(form) = self.forms.get(structure) {
            return Ok(Rc::clone(form));
        }
        let btf = self.kernel.btf()?;
        let functions = btf.functions_of(btf.type_named(structure)?);
        let last = functions.iter().map(|(_, offset)| *offset).max();
        let form = Rc::new(Form {
            size: last.map_or(0, |last| last as usize + size_of::<u64>()),
            functions,
        });
        self.forms.insert(structure, Rc::clone(&form));
        Ok(form)
    }
}

fn finding(subject: String, detail: String) -> Finding {
    Finding::new(Kind::OperationRedirected, subject, detail)
}
