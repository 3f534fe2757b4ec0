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
use insula_driver::name::{Name, text};

use super::ask::{TIMEOUT, ask};
use super::record::{self, ContainerRecord, Records, read};
use super::state::ask_there;
use crate::agent::Location;

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
    let Some(record) = read(root, name)? else {
        return Ok(None);
    };
    let driver = driver()?;
    let record = locate(&driver, record.clone())?.unwrap_or(record);
    match record.moving_to {
        Some(_) => settled(&driver, root, record).map(Some),
        None => Ok(Some(record)),
    }
}

/// A container's record with its node's name of now; none if that node was removed.
pub(crate) fn locate(
    driver: &Driver,
    mut record: ContainerRecord,
) -> Result<Option<ContainerRecord>, Error> {
    let (Some(id), Location::Node(node)) = (record.node_id, &record.node) else {
        return Ok(Some(record));
    };
    match insula_node::find(driver, node) {
        Ok(handle) if handle.info.id == id => return Ok(Some(record)),
        Err(error) if error.kind != Kind::NoNode => return Err(error),
        _ => {}
    }
    let nodes = insula_node::all(driver)?;
    let found = nodes.iter().find(|handle| handle.info.id == id);
    let name = found.and_then(|handle| text(&handle.info.name).parse().ok());
    Ok(name.map(|name| {
        record.node = Location::Node(name);
        record
    }))
}

/// All containers, by name. One whose move cannot be settled is left as it is; one whose node was
/// removed is removed.
pub(crate) fn all(driver: &Driver, root: &Root) -> Result<Vec<ContainerRecord>, Error> {
    let mut records = Vec::new();
    for record in record::all(root)? {
        let name = record.name.clone();
        match locate(driver, record)? {
            Some(record) => records.push(record),
            None => Records::lock(root)?.remove(&name)?,
        }
    }
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
        Some(now) if now.moving_to.is_some() => {
            let now = locate(driver, now)?.unwrap_or(record);
            settle(driver, root, now)
        }
        now => Ok(now.unwrap_or(record)),
    }
}

/// Settles a move that nobody else works on, and returns the record as it is then.
pub(crate) fn settle(
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
    let told = target
        .connect_at_once(driver)
        .and_then(|stream| ask(&target, &stream, TIMEOUT, request));
    match told {
        // One that has ended has nothing to remove, and nothing that could go on.
        Err(error) if !has_ended(driver, &target) => return Err(error),
        _ => {}
    }
    if !stays {
        record.node_id = target.node_id(driver);
        record.node = target;
    }
    Records::lock(root)?.write(&record)?;
    Ok(record)
}

/// Whether a kernel does not run any more.
pub(super) fn has_ended(driver: &Driver, at: &Location) -> bool {
    match at.is_running(driver) {
        Ok(runs) => !runs,
        Err(error) => error.kind == Kind::NoNode,
    }
}

/// Whether the source still has the container, once it knows.
pub(super) fn source_has_it(driver: &Driver, record: &ContainerRecord) -> Result<bool, Error> {
    let began = Instant::now();
    loop {
        let there = match ask_there(driver, &record.node) {
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
