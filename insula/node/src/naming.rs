//! Names of nodes: which can be given, and choosing one.

use insula_base::error::{Error, Kind};
use insula_driver::Driver;
use insula_driver::name::{self, Name};

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
pub(super) fn pick_name(driver: &Driver, asked: Option<&Name>) -> Result<Name, Error> {
    asked.map_or(Ok(()), check_name)?;
    let names = driver.node_names().map_err(module_failed)?;
    let taken: Vec<String> = names.iter().map(name::text).collect();
    match asked {
        None => Ok(Name::generate(&taken)),
        Some(name) if taken.iter().any(|one| one == name.as_str()) => Err(name_taken(name)),
        Some(name) => Ok(name.clone()),
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
