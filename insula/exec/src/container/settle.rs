//! Deciding where a container is whose move was interrupted.
//!
//! The source decides ([`MoveStep`](insula_agent::container::MoveStep)): if it still has the container,
//! it goes on there, and the target removes what it has restored. Otherwise it goes on at the target.

use std::thread;
use std::time::{Duration, Instant};

use insula_agent::container::{ContainerRequest, Phase};
use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_driver::Driver;
use insula_driver::name::Name;

use super::ask::{TIMEOUT, ask};
use super::record::{self, ContainerRecord, Records, read};
use super::state::ask_node;
use crate::agent::to_agent_at_once;

/// Time in which a source sees that the connection of the move has ended, and the interval of looks.
const SETTLED_TIMEOUT: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(20);

/// The container of that name, if there is one.
///
/// # Errors
/// When its record cannot be read, or an interrupted move of it cannot be settled.
pub fn find(
    driver: impl FnOnce() -> Result<Driver, Error>,
    root: &Root,
    name: &Name,
) -> Result<Option<ContainerRecord>, Error> {
    match read(root, name)? {
        Some(record) if record.moving_to.is_some() => settled(&driver()?, root, record).map(Some),
        found => Ok(found),
    }
}

/// All containers, by name. One whose move cannot be settled is left as it is.
pub(super) fn all(driver: &Driver, root: &Root) -> Result<Vec<ContainerRecord>, Error> {
    let mut records = record::all(root)?;
    for record in &mut records {
        if record.moving_to.is_some()
            && let Ok(settled) = settled(driver, root, record.clone())
        {
            *record = settled;
        }
    }
    Ok(records)
}

/// The record of a container with an interrupted move, settled; unless it is being moved now.
fn settled(
    driver: &Driver,
    root: &Root,
    record: ContainerRecord,
) -> Result<ContainerRecord, Error> {
    let Some(_lock) = record::try_lock_moves(root)? else {
        return Ok(record);
    };
    // The move may have ended meanwhile.
    match read(root, &record.name)? {
        Some(record) if record.moving_to.is_some() => settle(driver, root, record),
        now => Ok(now.unwrap_or(record)),
    }
}

/// Settles a move that nobody else works on, and returns the record as it is then.
pub(super) fn settle(
    driver: &Driver,
    root: &Root,
    mut record: ContainerRecord,
) -> Result<ContainerRecord, Error> {
    let Some(target) = record.moving_to.take() else {
        return Ok(record);
    };
    let stays = source_has_it(driver, &record)?;
    let request = ContainerRequest::Settle {
        name: record.name.to_string(),
        resume: !stays,
    };
    let told = to_agent_at_once(driver, &target)
        .and_then(|stream| ask(&target, &stream, TIMEOUT, request));
    match told {
        // One that has ended has nothing to remove, and nothing that could go on.
        Err(error) if !has_ended(driver, &target) => return Err(error),
        _ => {}
    }
    if !stays {
        record.node = target;
    }
    Records::lock(root)?.write(&record)?;
    Ok(record)
}

fn has_ended(driver: &Driver, node: &Name) -> bool {
    match insula_node::find(driver, node) {
        Ok(handle) => !handle.is_running(),
        Err(error) => error.kind == Kind::NoNode,
    }
}

/// Whether the source still has the container, once it knows.
pub(super) fn source_has_it(driver: &Driver, record: &ContainerRecord) -> Result<bool, Error> {
    let began = Instant::now();
    loop {
        let there = match ask_node(driver, &record.node) {
            Err(error) if error.kind == Kind::NoNode => return Ok(false),
            there => there?,
        };
        let found = there
            .iter()
            .find(|one| one.spec.name == record.name.as_str());
        match found.map(|one| one.phase) {
            None => return Ok(false),
            Some(Phase::Moving) if began.elapsed() < SETTLED_TIMEOUT => thread::sleep(INTERVAL),
            Some(_) => return Ok(true),
        }
    }
}
