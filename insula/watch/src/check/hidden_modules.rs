//! Modules that are in one list of the kernel and missing in another.

use super::{Check, Round};
use crate::finding::{Finding, Kind};
use crate::target::{Kernel, Place};
use kimage::running::RunningError;
use std::collections::BTreeMap;

/// Limit on the nodes of the tree of modules.
const TREE_NODES_MAX: usize = 1 << 14;

/// Compares the list of modules, which `lsmod` shows, with `/sys/module`, and with the tree in which
/// the kernel looks up whose code an address is.
#[derive(Debug)]
pub(super) struct HiddenModules;

impl Check for HiddenModules {
    fn name(&self) -> &'static str {
        "hidden modules"
    }

    fn look(&mut self, round: &Round<'_>) -> Result<Vec<Finding>, RunningError> {
        let kernel = round.target.kernel;
        let live = u64::from(
            kernel
                .btf()?
                .enumerator("module_state", "MODULE_STATE_LIVE")?,
        );
        let named = in_folder(kernel)?;
        let executable = in_tree(kernel)?;
        let listed = in_list(kernel)?;
        let mut found = Vec::new();
        for (others, place) in [(&named, "/sys/module"), (&executable, "the tree of code")] {
            for (address, module) in others {
                if !listed.contains_key(address) && module.number("state")? == live {
                    found.push(hidden(module, place, "the list of modules")?);
                }
            }
            for (address, module) in &listed {
                if !others.contains_key(address) && module.number("state")? == live {
                    found.push(hidden(module, "the list of modules", place)?);
                }
            }
        }
        Ok(found)
    }
}

/// Modules by the addresses of their structures.
pub(super) type Modules<'k, 'a> = BTreeMap<u64, Place<'k, 'a>>;

fn in_list<'k, 'a>(kernel: &'k Kernel<'a>) -> Result<Modules<'k, 'a>, RunningError> {
    let list = kernel.global("modules", "list_head")?;
    let modules = list.list("module", "list")?;
    Ok(modules
        .into_iter()
        .map(|module| (module.address(), module))
        .collect())
}

/// Those that have a folder in `/sys/module`.
fn in_folder<'k, 'a>(kernel: &'k Kernel<'a>) -> Result<Modules<'k, 'a>, RunningError> {
    let set = kernel.object(kernel.word(kernel.symbol("module_kset")?)?, "kset")?;
    let folders = set.member("list")?;
    let mut modules = Modules::new();
    for folder in folders.list("module_kobject", "kobj.entry")? {
        // What is built in has a folder, too, for its parameters.
        if let Some(module) = folder.follow("mod")? {
            modules.insert(module.address(), module);
        }
    }
    Ok(modules)
}

/// Those in `mod_tree`, by the first of its two copies.
pub(super) fn in_tree<'k, 'a>(kernel: &'k Kernel<'a>) -> Result<Modules<'k, 'a>, RunningError> {
    let root = kernel.global("mod_tree", "mod_tree_root")?;
    let roots = root.member("root.tree")?;
    let mut open = vec![roots.element(0)?.member("rb_node")?];
    let mut modules = Modules::new();
    let mut nodes = 0;
    while let Some(pointer) = open.pop() {
        let Some(node) = pointer.target()? else {
            continue;
        };
        nodes += 1;
        if nodes > TREE_NODES_MAX {
            break;
        }
        open.extend([node.member("rb_left")?, node.member("rb_right")?]);
        // The first element of an array is where the array is.
        let entry = node.container("mod_tree_node", "node.node")?;
        if let Some(module) = entry.follow("mod")? {
            modules.insert(module.address(), module);
        }
    }
    Ok(modules)
}

fn hidden(module: &Place<'_, '_>, present: &str, missing: &str) -> Result<Finding, RunningError> {
    let name = module.member("name")?.text()?;
    Ok(Finding::new(
        Kind::ModuleHidden,
        format!("module {name}"),
        format!("it is in {present}, but not in {missing}"),
    ))
}
