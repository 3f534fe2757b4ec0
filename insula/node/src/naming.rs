//! Names of nodes: which can be given, and choosing one.

use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_driver::Driver;
use insula_driver::name::{self, Name};

use super::RunRequest;
use super::created::{created_names, has_file};
use super::run::module_failed;

/// What stands for the base where nodes are named: no node is called so.
pub const BASE: &str = "base";

/// Refuses what stands for something else where nodes are named.
pub(super) fn check_name(name: &Name) -> Result<(), Error> {
    match name.as_str() == BASE {
        true => Err(Error::new("no node can be called 'base'")
            .untouched()
            .hint("it stands for this system's kernel, as in `insula watch base`")),
        false => Ok(()),
    }
}

/// The name that is asked for, if no node has it; any that is free if none is.
pub(super) fn pick_name(driver: &Driver, root: &Root, request: &RunRequest) -> Result<Name, Error> {
    let asked = request.name.as_ref();
    asked.map_or(Ok(()), check_name)?;
    let names = driver.node_names().map_err(module_failed)?;
    let mut taken: Vec<String> = names.iter().map(name::text).collect();
    if !request.is_created {
        taken.extend(created_names(root).iter().map(Name::to_string));
    }
    match asked {
        None => Ok(Name::generate(&taken)),
        Some(name) if taken.iter().any(|one| one == name.as_str()) => Err(name_taken(name)),
        Some(name) => Ok(name.clone()),
    }
}

/// Refuses the name of a node that the module has now, if another command has created one of that name
/// since it was picked.
pub(super) fn check_still_free(
    root: &Root,
    request: &RunRequest,
    name: &Name,
) -> Result<(), Error> {
    match !request.is_created && has_file(root, name) {
        true => Err(name_taken(name)),
        false => Ok(()),
    }
}

/// The error of a name that another node has.
pub(super) fn name_taken(name: &Name) -> Error {
    Error::of(
        Kind::Unavailable,
        format!("there is a node '{name}' already"),
    )
    .untouched()
    .hint(format!(
        "choose another name, or remove it with `insula rm {name}`"
    ))
}
