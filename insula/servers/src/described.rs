//! Servers that a project's file describes.

use insula_base::error::Error;
use insula_base::root::Root;
use insula_driver::Driver;
use insula_driver::name::Name;
use serde::Serialize;

use super::change::{find, move_to, start, stop};
use super::record::{self, Place, ServerRecord, ServerSpec};
use super::supervisor;

/// What is done for a server to be as described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ServerAction {
    /// It is kept running as described.
    Keep,
    /// It is started.
    Start,
    /// It is moved to other cores.
    Move,
    /// It is stopped, and started with another command.
    Restart,
    /// It is stopped: it is described no more.
    Remove,
}

impl ServerAction {
    /// What has to be done for a server, of which there may be a record.
    fn of(record: Option<&ServerRecord>, spec: &ServerSpec) -> Self {
        match record {
            None => Self::Start,
            Some(record) if record.spec.command != spec.command => Self::Restart,
            Some(record) if record.spec != *spec => Self::Move,
            Some(_) => Self::Keep,
        }
    }
}

/// Has a server of a node run as a project's file describes it. Returns what was done.
///
/// # Errors
/// When there is a server of that name that is not the project's, or it does not serve in time.
pub fn ensure(
    driver: &Driver,
    root: &Root,
    project: &Name,
    (node, name): (&Name, &Name),
    spec: &ServerSpec,
) -> Result<ServerAction, Error> {
    let found = find(driver, node)?;
    let record = record::read(root, found.info.id, name)?;
    if let Some(record) = &record {
        check_project(record, project, node)?;
    }
    let action = ServerAction::of(record.as_ref(), spec);
    let server = (node, name);
    let start = || start(driver, root, server, spec.clone(), Some(project));
    match action {
        ServerAction::Keep => supervisor::ensure(root, found.info.id, name)?,
        // All cores of the node, or one that is chosen: it starts there.
        ServerAction::Move if !spec.cpus.0.is_empty() && spec.place == Place::Fixed => {
            move_to(driver, root, server, &spec.cpus)?;
        }
        ServerAction::Start => start()?,
        ServerAction::Move | ServerAction::Restart | ServerAction::Remove => {
            stop(driver, root, node, name)?;
            start()?;
        }
    }
    Ok(action)
}

/// Stops the servers of a node that belong to a project, but for those of these names. Returns the names of
/// those that were stopped.
///
/// # Errors
/// When one does not end.
pub fn remove_others(
    driver: &Driver,
    root: &Root,
    project: &Name,
    node: &Name,
    wanted: &[&Name],
) -> Result<Vec<Name>, Error> {
    let id = insula_node::find(driver, node)?.info.id;
    let is_left = |record: &ServerRecord| {
        record.node_id == id
            && record.project.as_ref() == Some(project)
            && !wanted.contains(&&record.name)
    };
    let left = record::all(root)?.into_iter().filter(is_left);
    let left: Vec<_> = left.map(|record| record.name).collect();
    for name in &left {
        stop(driver, root, node, name)?;
    }
    Ok(left)
}

/// Refuses to change what somebody else has started.
fn check_project(record: &ServerRecord, project: &Name, node: &Name) -> Result<(), Error> {
    if record.project.as_ref() == Some(project) {
        return Ok(());
    }
    let name = &record.name;
    let what = format!("the node '{node}' has a server '{name}' that is not of this project");
    Err(Error::new(what)
        .untouched()
        .hint(format!("`insula servers stop {node} {name}` stops it")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(program: &str, cpus: &str) -> ServerSpec {
        ServerSpec {
            command: vec![program.into()],
            cpus: cpus.parse().unwrap(),
            place: Place::Fixed,
        }
    }

    fn record(spec: ServerSpec) -> ServerRecord {
        ServerRecord {
            node_id: 1,
            name: "file".parse().unwrap(),
            spec,
            project: Some("shop".parse().unwrap()),
        }
    }

    #[test]
    fn only_another_command_restarts() {
        let there = record(spec("files", "1"));
        let action = |program, cpus| ServerAction::of(Some(&there), &spec(program, cpus));
        assert_eq!(ServerAction::of(None, &there.spec), ServerAction::Start);
        assert_eq!(action("files", "1"), ServerAction::Keep);
        assert_eq!(action("files", "2"), ServerAction::Move);
        assert_eq!(action("blocks", "2"), ServerAction::Restart);
        let auto = ServerSpec {
            place: Place::Auto,
            ..there.spec.clone()
        };
        assert_eq!(ServerAction::of(Some(&there), &auto), ServerAction::Move);
    }

    #[test]
    fn a_server_of_somebody_else_is_left_alone() {
        let (shop, bank): (Name, Name) = ("shop".parse().unwrap(), "bank".parse().unwrap());
        let node = "quiet".parse().unwrap();
        let mut there = record(spec("files", "1"));
        assert!(check_project(&there, &shop, &node).is_ok());
        assert!(check_project(&there, &bank, &node).is_err());
        there.project = None;
        assert!(check_project(&there, &shop, &node).is_err());
    }
}
