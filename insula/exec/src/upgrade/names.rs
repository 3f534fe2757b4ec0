//! The moment at which the new node takes the old one's name.

use insula_base::error::Error;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node as node;

use super::{Upgrade, plan};
use crate::container::{self, ContainerRecord, Records};

/// Exchanges the names of the two nodes if no container runs on the old one; false if one does. No
/// container is started or moved meanwhile.
pub(super) fn exchange_if_empty(upgrade: &Upgrade<'_>) -> Result<bool, Error> {
    let (driver, root) = (upgrade.driver, upgrade.root);
    let (old, new) = (upgrade.request.node, &upgrade.beside);
    let _moves = container::lock_moves(root)?;
    let is_moving = |record: &ContainerRecord| {
        let ends = record.moving_to.iter().chain([&record.node]);
        let mut ends = ends.filter(|end| **end == *old || **end == *new);
        record.moving_to.is_some() && ends.next().is_some()
    };
    for record in container::all(driver, root)?.into_iter().filter(is_moving) {
        // Its record would name the wrong node.
        container::settle(driver, root, record)?;
    }
    let records = Records::lock(root)?;
    if !plan::running(driver, &records.located(driver)?, old)?.is_empty() {
        return Ok(false);
    }
    exchange(driver, old, new)?;
    for record in records.located(driver)? {
        records.write(&record)?;
    }
    Ok(true)
}

fn exchange(driver: &Driver, one: &Name, other: &Name) -> Result<(), Error> {
    let exchanged = node::find(driver, one)?
        .node
        .exchange_names(&other.to_abi());
    exchanged.map_err(|error| {
        Error::new(format!("'{one}' and '{other}' cannot exchange their names")).because(error)
    })
}
