//! `insula servers`.

use insula_base::units::CpuList;
use insula_servers::{self as servers, Place, ServerSpec, ServerView, here};

use super::cli::{Here, ServerStart, Servers};
use super::{Context, Failure, output};
use crate::report::{Align, Table};

const COLUMNS: [(&str, Align); 10] = [
    ("NODE", Align::Left),
    ("SERVER", Align::Left),
    ("STATE", Align::Left),
    ("CORES", Align::Left),
    ("PID", Align::Right),
    ("QUEUED", Align::Right),
    ("RECEIVED", Align::Right),
    ("CROSSED", Align::Right),
    ("BUSY", Align::Right),
    ("COMMAND", Align::Left),
];

pub(super) fn servers(context: &Context, command: Servers) -> Result<(), Failure> {
    let root = &context.root;
    match command {
        Servers::Ls { names, json } => {
            let listed = servers::list(&context.driver()?, root, &names)?;
            match json {
                true => output::json(&listed)?,
                false => output::print(&table(&listed).to_string())?,
            }
        }
        Servers::Start(options) => start(context, options)?,
        Servers::Move { server, cpus } => {
            let server = (&server.node, &server.name);
            servers::move_to(&context.driver()?, root, server, &cpus)?;
        }
        Servers::Restart(one) => {
            servers::restart(&context.driver()?, root, &one.node, &one.name)?;
        }
        Servers::Stop(one) => servers::stop(&context.driver()?, root, &one.node, &one.name)?,
        Servers::Logs(one) => {
            let printed = servers::log(&context.driver()?, root, &one.node, &one.name)?;
            output::print(&String::from_utf8_lossy(&printed))?;
        }
        Servers::Here { command } => on_this_node(command)?,
        Servers::Supervise { node_id, name } => {
            servers::supervise(context.driver()?, root, node_id, &name)?;
        }
    }
    Ok(())
}

fn start(context: &Context, options: ServerStart) -> Result<(), Failure> {
    let spec = ServerSpec {
        command: options.words,
        cpus: options.cpus.unwrap_or_default(),
        place: options.place,
    };
    let server = (&options.server.node, &options.server.name);
    servers::start(&context.driver()?, &context.root, server, spec, None)?;
    output::line(options.server.name.as_str())
}

fn on_this_node(command: Here) -> Result<(), Failure> {
    match command {
        Here::Ls => output::json(&here::list()?),
        Here::Watch => Ok(here::watch()?),
        Here::Place {
            name,
            cpus,
            alone: true,
        } => Ok(here::place(&name, &cpus.0)?),
        Here::Place { name, cpus, .. } => Ok(here::place_with_shards(&name, &cpus.0)?),
        Here::Exec { cpus, words } => Err(here::become_program(&cpus.0, &words).into()),
    }
}

fn table(listed: &[ServerView]) -> Table {
    let mut table = Table::new(&COLUMNS);
    for server in listed {
        let endpoint = server.endpoint.as_ref();
        let kept = server.kept.as_ref();
        let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let cpus = endpoint
            .filter(|one| one.pid.is_some())
            .map(|one| &one.cpus);
        table.row([
            server.node.clone(),
            server.name.clone(),
            server.state.to_owned(),
            shown(cpus.map(|cpus| cores(cpus, kept))),
            shown(endpoint.and_then(|one| one.pid).map(|pid| pid.to_string())),
            shown(endpoint.map(|one| one.queued.to_string())),
            shown(endpoint.map(|one| one.received.to_string())),
            shown(endpoint.map(|one| one.crossings.to_string())),
            shown(endpoint.map(|one| milliseconds(one.busy_ns))),
            shown(kept.map(|spec| spec.command.join(" "))),
        ]);
    }
    table
}

/// The cores of a server, and whether they are chosen for it.
fn cores(cpus: &CpuList, kept: Option<&ServerSpec>) -> String {
    match kept.is_some_and(|spec| spec.place == Place::Auto) {
        true => format!("{cpus} (auto)"),
        false => cpus.to_string(),
    }
}

fn milliseconds(ns: u64) -> String {
    format!("{}ms", ns / 1_000_000)
}

#[cfg(test)]
mod tests {
    use insula_servers::ServedEndpoint;

    use super::*;

    #[test]
    fn a_table_of_servers() {
        let endpoint = |name: &str, pid: Option<u32>| ServedEndpoint {
            name: name.to_owned(),
            pid,
            threads: 1,
            waiting: 1,
            queued: 3,
            served: 0,
            received: 1_000_000,
            crossings: 20,
            interrupts: 0,
            busy_ns: 1_234_567_890,
            cpus: "1-2".parse().unwrap(),
        };
        let server = |name: &str, state, endpoint, kept| ServerView {
            node: "quiet".into(),
            name: name.into(),
            state,
            endpoint,
            kept,
        };
        let spec = ServerSpec {
            command: vec!["insula-files".into(), "memory".into()],
            cpus: CpuList::default(),
            place: Place::Auto,
        };
        let listed = [
            server("disk", "waiting", Some(endpoint("disk", None)), None),
            server(
                "file",
                "running",
                Some(endpoint("file", Some(7))),
                Some(spec.clone()),
            ),
            server("net", "starting", None, Some(spec)),
        ];
        insta::assert_snapshot!(table(&listed));
    }
}
