//! Where containers are and what they do.

use std::time::Duration;

use insula_agent::container::{ContainerAnswer, ContainerRequest, ContainerState, Phase};
use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_driver::Driver;
use serde::Serialize;

use super::ask::ask;
use super::ports;
use super::record::{ContainerRecord, Records};
use super::settle;
use crate::agent::Location;

/// Time that an agent has to say what it has. A node that hangs must not stop others from being
/// listed.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A container as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ContainerView {
    /// What is known of it here.
    #[serde(flatten)]
    pub record: ContainerRecord,
    /// `running`, `moving`, `exited`, or `unknown` if its node's agent does not answer.
    pub state: &'static str,
    /// Status of its program, as of a shell, if that has ended by itself. Without one its node has
    /// ended.
    pub exit_code: Option<u8>,
    /// Process id of its first process in its node, or on the base.
    pub pid: Option<u32>,
}

/// All containers, by name. Records of containers whose nodes were removed are removed, and ports opened
/// again whose process was killed.
///
/// # Errors
/// When records cannot be read.
pub fn list(driver: &Driver, root: &Root) -> Result<Vec<ContainerView>, Error> {
    let records = settle::all(driver, root)?;
    // Best effort: the containers themselves run.
    let _ = ports::ensure(root, &records);
    let mut views = Vec::new();
    let mut places: Vec<_> = records.iter().map(|record| &record.node).collect();
    places.sort();
    places.dedup();
    for place in places {
        let there = ask_there(driver, place);
        for record in records.iter().filter(|record| record.node == *place) {
            match &there {
                Err(error) if error.kind == Kind::NoNode => {
                    Records::lock(root)?.remove(&record.name)?
                }
                there => views.push(seen(record, there.as_deref())),
            }
        }
    }
    views.sort_by(|one, two| one.record.name.cmp(&two.record.name));
    Ok(views)
}

/// The container with this record.
#[must_use]
pub fn view(driver: &Driver, record: &ContainerRecord) -> ContainerView {
    seen(record, ask_there(driver, &record.node).as_deref())
}

/// What an agent has; nothing if its node does not run.
pub(crate) fn ask_there(driver: &Driver, at: &Location) -> Result<Vec<ContainerState>, Error> {
    if !at.is_running(driver)? {
        return Ok(Vec::new());
    }
    let stream = at.connect_at_once(driver)?;
    match ask(at, &stream, TIMEOUT, ContainerRequest::List)? {
        ContainerAnswer::List(list) => Ok(list),
        _ => Ok(Vec::new()),
    }
}

fn seen(record: &ContainerRecord, there: Result<&[ContainerState], &Error>) -> ContainerView {
    let mut view = ContainerView {
        record: record.clone(),
        state: "unknown",
        exit_code: None,
        pid: None,
    };
    let Ok(there) = there else {
        return view;
    };
    let found = there
        .iter()
        .find(|state| state.spec.name == record.name.as_str());
    view.pid = found.and_then(|state| state.pid);
    view.state = match found.map(|state| state.phase) {
        Some(Phase::Running) => "running",
        Some(Phase::Moving | Phase::Restored) => "moving",
        Some(Phase::Exited(status)) => {
            view.exit_code = Some(status.status());
            "exited"
        }
        None => "exited",
    };
    view
}

#[cfg(test)]
mod tests {
    use insula_agent::ExitStatus;
    use insula_agent::container::ContainerSpec;

    use super::*;

    #[test]
    fn states_are_those_of_the_agent() {
        let record = ContainerRecord {
            name: "shop".parse().unwrap(),
            node: "web".parse().unwrap(),
            node_id: None,
            moving_to: None,
            lwk_node: None,
            rootfs: None,
            address: None,
            publish: Vec::new(),
            command: Vec::new(),
            created_unix_s: 0,
        };
        let state = |phase| ContainerState {
            spec: ContainerSpec {
                name: "shop".into(),
                ..ContainerSpec::default()
            },
            pid: Some(7),
            phase,
        };
        let of = |there: Result<&[ContainerState], &Error>| {
            let view = seen(&record, there);
            (view.state, view.exit_code)
        };
        assert_eq!(of(Ok(&[state(Phase::Running)])), ("running", None));
        let killed = Phase::Exited(ExitStatus::Killed(9));
        assert_eq!(of(Ok(&[state(killed)])), ("exited", Some(137)));
        assert_eq!(of(Ok(&[])), ("exited", None));
        assert_eq!(of(Err(&Error::new("no answer"))), ("unknown", None));
    }
}
