//! Containers: `insula exec --container`, and what other commands do for them.

mod processes;

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use insula_base::error::Error;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_exec::container::{
    self, CheckpointRequest, ContainerMove, ContainerRecord, ContainerView, Location,
    RestoreRequest, StartRequest,
};
use insula_node::{BASE, Handle, NodeView};
use nix::unistd::dup2_stdout;
use serde::Serialize;

use super::cli::{Exec, Logs, Move, Restore};
use super::exec::{FAILED, fail};
use super::{Context, Failure, output};
use crate::report::{Align, Table};

/// Starts a container, and prints its name or, unless detached, its output until it ends.
pub(super) fn start(context: &Context, name: &Name, options: &Exec) -> Result<ExitCode, Failure> {
    let driver = context.driver()?;
    let request = StartRequest {
        name,
        location: &Location::from(options.name.clone()),
        rootfs: options.rootfs.as_deref(),
        words: &options.words,
        environment: &options.environment,
        publish: &options.publish,
        directory: options.workdir.as_ref(),
    };
    let record = match container::start(&driver, &context.root, &request) {
        Ok(record) => record,
        Err(error) => return Ok(fail(&error, FAILED)),
    };
    if options.detach {
        output::line(name.as_str())?;
        return Ok(ExitCode::SUCCESS);
    }
    let status = container::log(&driver, &record, true, io::stdout().lock())?;
    Ok(ExitCode::from(status.status()))
}

/// The container of that name, if there is one.
pub(super) fn find(context: &Context, name: &Name) -> Result<Option<ContainerRecord>, Failure> {
    Ok(container::find(Driver::open, &context.root, name)?)
}

/// Refuses a node's name that a container has.
pub(super) fn check_name(context: &Context, name: Option<&Name>) -> Result<(), Failure> {
    match name {
        Some(name) if find(context, name)?.is_some() => Err(has_name(name).into()),
        _ => Ok(()),
    }
}

fn has_name(name: &Name) -> Error {
    Error::new(format!("the name '{name}' is that of a container"))
        .untouched()
        .hint("choose another: `insula ps` lists them")
}

/// The error of a container that is to be started again.
pub(super) fn cannot_start(container: &ContainerRecord) -> Error {
    let name = &container.name;
    Error::new(format!("'{name}' is a container, which runs once"))
        .unchanged()
        .hint(format!(
            "`insula rm {name}`, then start it by `insula exec --container {name}` again"
        ))
}

/// The error of a container that is to get another name.
pub(super) fn cannot_rename(container: &ContainerRecord) -> Error {
    let what = format!("'{}' is a container, which keeps its name", container.name);
    Error::new(what).unchanged()
}

/// All containers, if there can be any.
pub(super) fn list(context: &Context, nodes: &[Handle]) -> Result<Vec<ContainerView>, Failure> {
    match nodes {
        [] if container::names(&context.root).is_empty() => Ok(Vec::new()),
        _ => Ok(container::list(&context.driver()?, &context.root)?),
    }
}

/// What `ps` lists as JSON: a node with its containers, or a container of the base.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub(super) enum Listed {
    Node {
        #[serde(flatten)]
        node: Box<NodeView>,
        /// Containers in it.
        containers: Vec<ContainerView>,
    },
    Container(ContainerView),
}

/// Nodes, each with its containers, and the containers of the base.
pub(super) fn with_nodes(nodes: Vec<NodeView>, containers: &[ContainerView]) -> Vec<Listed> {
    let of = |place: &str| {
        let own = containers.iter();
        let own = own.filter(|one| one.record.node.as_str() == place);
        own.cloned().collect::<Vec<_>>()
    };
    let with = |node: NodeView| Listed::Node {
        containers: of(&node.name),
        node: Box::new(node),
    };
    let base = of(BASE).into_iter().map(Listed::Container);
    nodes.into_iter().map(with).chain(base).collect()
}

/// Prints a table of containers, if there are any.
pub(super) fn print(containers: &[ContainerView]) -> Result<(), Failure> {
    match containers {
        [] => Ok(()),
        containers => output::print(&format!("\n{}", table(containers))),
    }
}

fn table(containers: &[ContainerView]) -> Table {
    let columns = ["CONTAINER", "STATE", "NODE", "ADDRESS", "PORTS", "COMMAND"];
    let mut table = Table::new(&columns.map(|column| (column, Align::Left)));
    for view in containers {
        let record = &view.record;
        let address = record.address.map(|address| address.to_string());
        table.row([
            record.name.to_string(),
            state_text(view),
            place(record),
            address.unwrap_or_else(|| "-".to_owned()),
            ports(record),
            record.command.join(" "),
        ]);
    }
    table
}

/// Where its processes are.
pub(super) fn place(record: &ContainerRecord) -> String {
    match &record.lwk_node {
        Some(node) => node.to_string(),
        None => record.node.to_string(),
    }
}

/// Its state, with the status of its program.
pub(super) fn state_text(view: &ContainerView) -> String {
    match view.exit_code {
        Some(code) => format!("{} ({code})", view.state),
        None => view.state.to_owned(),
    }
}

/// Its published ports; `-` if there are none.
fn ports(record: &ContainerRecord) -> String {
    match &record.publish[..] {
        [] => "-".to_owned(),
        ports => ports
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(","),
    }
}

/// Everything known about the container of that name, if there is one.
pub(super) fn inspect(context: &Context, name: &Name) -> Result<Option<ContainerView>, Failure> {
    let Some(record) = find(context, name)? else {
        return Ok(None);
    };
    Ok(Some(container::view(&context.driver()?, &record)))
}

pub(super) fn stop(
    context: &Context,
    record: &ContainerRecord,
    time_s: u32,
) -> Result<(), Failure> {
    Ok(container::stop(&context.driver()?, record, time_s)?)
}

pub(super) fn remove(
    context: &Context,
    record: &ContainerRecord,
    force: bool,
) -> Result<(), Failure> {
    let driver = context.driver()?;
    Ok(container::remove(&driver, &context.root, record, force)?)
}

pub(super) fn logs(
    context: &Context,
    record: &ContainerRecord,
    options: &Logs,
) -> Result<(), Failure> {
    if options.json || options.tail.is_some() || options.needs_times() {
        let what = format!("'{}' is a container: its log has no records", record.name);
        let hint = "leave out --json, --tail, --since, --until and --timestamps";
        return Err(Error::new(what).hint(hint).into());
    }
    let driver = context.driver()?;
    container::log(&driver, record, options.follow, io::stdout().lock())?;
    Ok(())
}

/// Moves a container to another kernel, or tells whether it can be moved.
pub(super) fn migrate(context: &Context, name: &Name, options: &Move) -> Result<(), Failure> {
    let (driver, to) = (context.driver()?, Location::from(options.name.clone()));
    if processes::are_meant(&driver, &context.root, name, &to)? {
        return processes::migrate(context, &driver, name, options);
    }
    if options.check {
        container::check_move(&driver, &context.root, name, &to)?;
        return output::line(&format!("container '{name}' can be moved to '{to}'"));
    }
    let request = ContainerMove {
        name,
        target: &to,
        pre_copy: options.pre_copy(),
    };
    let moved = container::move_to(&driver, &context.root, &request)?;
    let stood_ms = moved.stood_still.as_secs_f64() * 1e3;
    let before = match moved.pre_copied_bytes {
        0 => String::new(),
        bytes => format!(" after {} KiB", bytes >> 10),
    };
    output::line(&format!(
        "container '{name}' runs on '{to}': {} KiB of images{before}, stood still for {stood_ms:.0} ms, {} \
         packets held",
        moved.image_bytes >> 10,
        moved.held_packets
    ))
}

/// Writes a container to a folder.
pub(super) fn checkpoint(
    context: &Context,
    name: &Name,
    folder: &Path,
    leave_running: bool,
) -> Result<(), Failure> {
    let request = CheckpointRequest {
        name,
        folder,
        leave_running,
    };
    let written = container::checkpoint(&context.driver()?, &context.root, &request)?;
    let stood_ms = written.stood_still.as_secs_f64() * 1e3;
    output::line(&format!(
        "container '{name}' is in {}: {} KiB, stood still for {stood_ms:.0} ms",
        folder.display(),
        written.bytes >> 10
    ))
}

/// Restores a container of a folder, and prints its name. Of a node of the lightweight kernel its processes go on
/// there, and the container is on the base.
pub(super) fn restore(context: &Context, options: &Restore) -> Result<(), Failure> {
    let driver = context.driver()?;
    let location = Location::from(options.node.clone());
    let on_lwk = match &location {
        Location::Base => false,
        Location::Node(node) => processes::runs_lwk(&driver, node)?,
    };
    let request = RestoreRequest {
        folder: &options.import,
        location: if on_lwk { &Location::Base } else { &location },
        rootfs: options.rootfs.as_deref(),
        name: options.name.as_ref(),
        publish: &options.publish,
        close_connections: options.tcp_close,
    };
    let record = container::restore(&driver, &context.root, &request)?;
    if on_lwk {
        let moved = processes::to_node(&driver, &context.root, &record.name, &options.node);
        moved.map_err(|error| {
            // It goes on in the folder, or wherever its images are from.
            let removed = container::remove(&driver, &context.root, &record, true);
            let what = format!("the container '{}' was not restored", record.name);
            match removed {
                Ok(()) => error.context(what).nothing_kept(),
                Err(_) => error.context(what).leaving("it is on the base"),
            }
        })?;
    }
    output::line(record.name.as_str())
}

/// Forwards the published ports of a container, until it is removed.
pub(super) fn publish(context: &Context, name: &Name) -> Result<(), Failure> {
    let to_null = || {
        let null = File::options().write(true).open("/dev/null")?;
        Ok(dup2_stdout(null)?)
    };
    let served = container::serve_ports(&context.root, name, io::stdout(), to_null);
    if let Err(error) = &served {
        // Who started it reads that.
        output::print(&error.to_string())?;
    }
    Ok(served?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_as_a_table() {
        let view = |name: &str, exit_code: Option<u8>| ContainerView {
            record: ContainerRecord {
                name: name.parse().unwrap(),
                node: "web".parse().unwrap(),
                node_id: None,
                moving_to: None,
                lwk_node: None,
                rootfs: None,
                address: exit_code.is_none().then(|| [10, 78, 255, 1].into()),
                publish: exit_code
                    .is_none()
                    .then(|| "8080:80".parse().unwrap())
                    .into_iter()
                    .collect(),
                command: vec!["/bin/server".into(), "-x".into()],
                created_unix_s: 0,
            },
            state: if exit_code.is_none() {
                "running"
            } else {
                "exited"
            },
            exit_code,
            pid: None,
        };
        let table = table(&[view("shop", None), view("old", Some(3))]).to_string();
        let lines: Vec<_> = table.lines().map(str::trim_end).collect();
        assert_eq!(
            lines[1],
            "shop       running     web   10.78.255.1  0.0.0.0:8080:80  /bin/server -x"
        );
        assert_eq!(
            lines[2],
            "old        exited (3)  web   -            -                /bin/server -x"
        );
    }
}
