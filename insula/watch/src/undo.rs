//! Undoing repairs.

use insula_base::error::Error;
use insula_base::root::Root;
use insula_driver::name::Name;
use insula_node::Handle;
use insula_node::events::{NodeEvent, Reader, Status};

use crate::finding::REPAIR;
use crate::repair::Repair;
use crate::repair_node::repair_node;

/// Undoes the last repair of a node that was not undone, in its present run, by what the node's events
/// say of it. Returns the event of the repair.
///
/// # Errors
/// When there is none, or it cannot be undone any more; nothing was changed.
pub fn undo_repair(root: &Root, handle: &Handle, name: &Name) -> Result<NodeEvent, Error> {
    let failed = || Error::new(format!("no repair of the node '{name}' is undone"));
    let events = Reader::new(root).read_new();
    let events = events.map_err(|error| failed().because(error).unchanged())?;
    let (event, repair) = last_repair(events, name.as_str()).ok_or_else(|| {
        failed()
            .because("there is none in this run of it")
            .unchanged()
    })?;
    repair_node(handle, &repair.inverse())?;
    let undone = NodeEvent {
        attributes: event.attributes.clone(),
        ..NodeEvent::now(name.as_str(), Status::Undone)
    };
    let recorded = undone.record(root);
    recorded
        .map_err(|error| Error::new("the repair is undone, but not recorded").because(error))?;
    Ok(event)
}

/// The last repair in these events that was not undone, since the node's last start.
fn last_repair(events: Vec<NodeEvent>, name: &str) -> Option<(NodeEvent, Repair)> {
    let mut repairs = Vec::new();
    for event in events.into_iter().filter(|event| event.name == name) {
        match event.status {
            Status::Start | Status::Restart | Status::Died | Status::Remove => repairs.clear(),
            Status::Repaired => {
                let text = event.attributes.get(REPAIR);
                let repair = text.and_then(|text| serde_json::from_str(text).ok());
                repairs.extend(repair.map(|repair| (event, repair)));
            }
            Status::Undone => drop(repairs.pop()),
            _ => {}
        }
    }
    repairs.pop()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Finding, Kind};

    fn event(status: Status, address: u64) -> NodeEvent {
        let repair = Repair::of_words(&[(address, 1, 2)]);
        let finding = Finding::new(Kind::ListCorrupted, "a", "b").with_repair(Some(repair));
        finding.event("web", status)
    }

    fn last(events: &[NodeEvent]) -> Option<u64> {
        let (_, repair) = last_repair(events.to_vec(), "web")?;
        Some(repair.exchanges[0].address)
    }

    #[test]
    fn the_last_repair_is_undone_first() {
        let repaired = |address| event(Status::Repaired, address);
        assert_eq!(last(&[]), None);
        assert_eq!(last(&[event(Status::Found, 8)]), None);
        assert_eq!(last(&[repaired(8), repaired(16)]), Some(16));
        let undone = event(Status::Undone, 16);
        assert_eq!(last(&[repaired(8), repaired(16), undone.clone()]), Some(8));
        assert_eq!(last(&[repaired(8), undone]), None);
    }

    #[test]
    fn only_those_of_this_run_and_node_count() {
        let repaired = event(Status::Repaired, 8);
        let other = NodeEvent {
            name: "other".to_owned(),
            ..repaired.clone()
        };
        assert_eq!(last(&[other]), None);
        let restart = NodeEvent::now("web", Status::Restart);
        assert_eq!(last(&[repaired, restart]), None);
    }
}
