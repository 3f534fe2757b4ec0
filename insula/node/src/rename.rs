//! Giving a node another name.

use insula_base::error::Error;
use insula_base::root::Root;
use insula_driver::Driver;
use insula_driver::name::Name;
use nix::errno::Errno;

use super::created::{self, find_created, has_file};
use super::events::{NodeEvent, Status};
use super::naming::{check_name, name_taken};
use super::view::find;

/// Gives a node a name that no other has. It keeps its host name, and all else.
///
/// # Errors
/// Why it was not: among others a node that a project's file describes is known by its name there.
pub fn rename(driver: &Driver, root: &Root, name: &Name, new: &Name) -> Result<(), Error> {
    check_name(new)?;
    if has_file(root, new) {
        return Err(name_taken(new));
    }
    if let Some(node) = find_created(driver, root, name)? {
        created::rename(driver, root, &node, new)?;
        record(root, name, new);
        return Ok(());
    }
    let handle = find(driver, name)?;
    let described = handle.record.as_ref();
    if let Some(described) = described.and_then(|record| record.described.as_ref()) {
        let file = described.file.display();
        let what = format!("the node '{name}' is described in {file}");
        let hint =
            "change its name there, and run `insula up`: a node of the new name takes its place";
        return Err(Error::new(what).unchanged().hint(hint));
    }
    let renamed = handle.node.rename(&new.to_abi());
    renamed.map_err(|error| match error.errno {
        Errno::EEXIST => name_taken(new),
        _ => Error::new(format!("the node '{name}' cannot be renamed"))
            .because(error)
            .unchanged(),
    })?;
    record(root, name, new);
    Ok(())
}

/// Best effort: it is done.
fn record(root: &Root, name: &Name, new: &Name) {
    let event = NodeEvent::now(new.as_str(), Status::Rename).with("old", name.as_str());
    let _ = event.record(root);
}
