//! `insula up | down`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use insula_base::units::CpuList;
use insula_compose::{
    self as compose, Action, CurrentState, Event, FILE, Locked, Observer, Plan, PlanError, Project,
    Report, Scope,
};
use insula_driver::name::Name;
use insula_node::Stopped;
use insula_servers::ServerAction;

use super::cli::{Down, Projects, Up};
use super::node::all;
use super::output::FailureView;
use super::{Context, Failure, output};
use crate::report::duration;

pub(super) fn up(context: &Context, options: &Up) -> Result<ExitCode, Failure> {
    let projects = match read(&options.projects.file, options.project.as_ref()) {
        Ok(projects) => projects,
        Err(failure) => return refuse(failure, options.projects.json),
    };
    let driver = context.driver()?;
    let names = projects.iter().map(|project| &project.name);
    let locked = (!options.dry_run).then(|| lock(context, names));
    let _locked = locked.transpose()?;
    let current = CurrentState::read(&driver, &context.root, &all(&driver)?)?;
    let plan = match Plan::new(&context.root, &projects, &current) {
        Ok(plan) => plan,
        Err(error) => return refuse(error.into(), options.projects.json),
    };
    if options.dry_run {
        return show(&plan.report(), options.projects.json);
    }
    let timeout = timeout(&options.projects);
    let observer = observer(&options.projects);
    let report = compose::up(&driver, &context.root, plan, timeout, observer)?;
    finish(&report, options.projects.json)
}

pub(super) fn down(context: &Context, options: &Down) -> Result<ExitCode, Failure> {
    let by_name = |name: &Name| Scope {
        name: name.clone(),
        file: None,
        dependencies: compose::Dependencies::new(),
    };
    let mut scopes: Vec<_> = options.project.iter().map(by_name).collect();
    if scopes.is_empty() || !options.projects.file.is_empty() {
        match read(&options.projects.file, None) {
            Ok(projects) => scopes.extend(projects.iter().map(Scope::from)),
            Err(failure) => {
                output::note("`insula down --project NAME` needs no file");
                return refuse(failure, options.projects.json);
            }
        }
    }
    let driver = context.driver()?;
    let _locked = lock(context, scopes.iter().map(|scope| &scope.name))?;
    let current = CurrentState::read(&driver, &context.root, &all(&driver)?)?;
    let (timeout, observer) = (timeout(&options.projects), observer(&options.projects));
    let report = compose::down(
        (&driver, &context.root),
        &current,
        &scopes,
        options.images,
        timeout,
        observer,
    )?;
    if report.nodes.is_empty() && report.networks.is_empty() && report.images.is_empty() {
        output::note("nothing to stop or remove");
    }
    finish(&report, options.projects.json)
}

/// Waits until no other command works on any of these projects.
fn lock<'a>(
    context: &Context,
    projects: impl Iterator<Item = &'a Name>,
) -> Result<Locked, Failure> {
    Ok(compose::lock(&context.root, projects, |project| {
        output::note(&format!(
            "another command is running for the project '{project}': waiting for it"
        ));
    })?)
}

/// Reads files; reports all errors of each file by itself.
pub(super) fn read(paths: &[PathBuf], name: Option<&Name>) -> Result<Vec<Project>, Failure> {
    let default = [PathBuf::from(FILE)];
    let sources = compose::sources(if paths.is_empty() { &default } else { paths })?;
    if sources.is_empty() {
        output::note("no file name ends in .toml");
    }
    let mut projects = Vec::new();
    let mut diagnostics = Vec::new();
    for source in &sources {
        match Project::read(source, name) {
            Ok(project) => projects.push(project),
            Err(more) => diagnostics.extend(more),
        }
    }
    if diagnostics.is_empty() {
        Ok(projects)
    } else {
        Err(PlanError(diagnostics).into())
    }
}

/// Reports errors in files as JSON too, for editors.
fn refuse(failure: Failure, json: bool) -> Result<ExitCode, Failure> {
    match failure.downcast_ref::<PlanError>() {
        Some(refused) if json => {
            output::print_error(failure.as_ref());
            let view = FailureView::new(&refused.error());
            output::json(&view.with_diagnostics(&refused.0))?;
            Ok(ExitCode::FAILURE)
        }
        _ => Err(failure),
    }
}

fn timeout(options: &Projects) -> Duration {
    Duration::from_secs(options.time.into())
}

/// The observer of events: with JSON only failures are printed as they happen.
fn observer(options: &Projects) -> Observer<'static> {
    if options.json {
        &|event| print_failure(event)
    } else {
        &|event| print_event(event)
    }
}

fn print_event(event: &Event) {
    print_failure(event);
    if let Some(text) = text(event) {
        // When the reader has gone, the work goes on.
        let _ = output::line(&text);
    }
}

fn print_failure(event: &Event) {
    if let Event::NetworkFailed(error) | Event::NodeFailed(error) = event {
        output::print_error(error);
    }
    if let Event::NodeStarted(started) = event {
        super::node::note_started(started);
    }
}

fn text(event: &Event) -> Option<String> {
    Some(match event {
        Event::ImageAdded(name) => format!("image {name}: added"),
        Event::ImageReplaced(name) => format!("image {name}: replaced"),
        Event::ImageRemoved(name) => format!("image {name}: removed"),
        Event::NetworkAdded(name) => format!("network {name}: created"),
        Event::NetworkReplaced(name) => format!("network {name}: replaced"),
        Event::NetworkRemoved(name) => format!("network {name}: removed"),
        Event::NodeKept(name) => format!("node {name}: unchanged"),
        Event::NodeRemoved(name, None) => format!("node {name}: removed"),
        Event::NodeRemoved(name, Some(Stopped::ByItself)) => {
            format!("node {name}: powered off, removed")
        }
        Event::NodeRemoved(name, Some(Stopped::ByForce { was_asked: true })) => {
            format!("node {name}: killed after the timeout, removed")
        }
        Event::NodeRemoved(name, Some(Stopped::ByForce { was_asked: false })) => {
            format!("node {name}: killed (its kernel did not handle the power button), removed")
        }
        Event::NodeStarted(started) => {
            format!("node {}: started on {}", started.name, cores(&started.cpus))
        }
        Event::NodeReady(name, ns) => format!("node {name}: ready after {}", duration(*ns)),
        Event::Server { node, name, action } => {
            let done = match action {
                ServerAction::Keep => "unchanged",
                ServerAction::Start => "started",
                ServerAction::Move => "moved to other cores",
                ServerAction::Restart => "started again",
                ServerAction::Remove => "stopped",
            };
            format!("server {node} {name}: {done}")
        }
        Event::NetworkFailed(_) | Event::NodeFailed(_) => return None,
    })
}

fn cores(cpus: &CpuList) -> String {
    let word = if cpus.0.len() == 1 { "core" } else { "cores" };
    format!("{word} {cpus}")
}

/// Prints what would be done.
fn show(report: &Report, json: bool) -> Result<ExitCode, Failure> {
    if json {
        output::json(report)?;
    } else {
        output::print(&plan_text(report))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn plan_text(report: &Report) -> String {
    let word = |action: Action| match action {
        Action::Keep => "unchanged",
        Action::Add => "to be added",
        Action::Replace => "to be replaced",
        Action::Start => "to be started",
        Action::Restart => "to be stopped and started again",
        Action::Remove => "to be removed",
    };
    let images = report.images.iter();
    let images = images.map(|image| format!("image {}: {}\n", image.name, word(image.action)));
    let networks = report.networks.iter();
    let networks = networks.map(|one| format!("network {}: {}\n", one.name, word(one.action)));
    let nodes = report.nodes.iter().map(|node| {
        let cores = node
            .cpus
            .as_ref()
            .map(|cpus| format!(" on {}", cores(cpus)));
        let (name, action) = (&node.name, word(node.action));
        format!("node {name}: {action}{}\n", cores.unwrap_or_default())
    });
    images.chain(networks).chain(nodes).collect()
}

fn finish(report: &Report, json: bool) -> Result<ExitCode, Failure> {
    if json {
        output::json(report)?;
    }
    Ok(if report.is_good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use insula_compose::{ImageReport, NetworkReport, NodeReport};

    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn node(text: &str, action: Action, cpus: Option<&[u32]>) -> NodeReport {
        NodeReport {
            name: name(text),
            project: name("shop"),
            action,
            cpus: cpus.map(|cpus| CpuList(cpus.to_vec())),
            started: None,
            ready_ns: None,
            servers: Vec::new(),
            error: None,
        }
    }

    #[test]
    fn a_plan_as_text_and_as_json() {
        let report = Report {
            images: vec![ImageReport {
                name: name("debian"),
                project: name("shop"),
                action: Action::Replace,
            }],
            networks: vec![NetworkReport {
                name: name("back"),
                project: name("shop"),
                action: Action::Add,
                error: None,
            }],
            nodes: vec![
                node("db", Action::Keep, None),
                node("web", Action::Start, Some(&[3])),
                node("mail", Action::Restart, Some(&[1, 2])),
                node("old", Action::Remove, None),
            ],
        };
        insta::assert_snapshot!(plan_text(&report));
        insta::assert_snapshot!(serde_json::to_string_pretty(&report).unwrap());
    }

    #[test]
    fn events_as_text() {
        let db = name("db");
        let events = [
            Event::ImageAdded(&db),
            Event::ImageReplaced(&db),
            Event::ImageRemoved(&db),
            Event::NetworkAdded(&db),
            Event::NetworkReplaced(&db),
            Event::NetworkRemoved(&db),
            Event::NodeKept(&db),
            Event::NodeRemoved(&db, None),
            Event::NodeRemoved(&db, Some(Stopped::ByItself)),
            Event::NodeRemoved(&db, Some(Stopped::ByForce { was_asked: true })),
            Event::NodeRemoved(&db, Some(Stopped::ByForce { was_asked: false })),
            Event::NodeReady(&db, 1_250_000_000),
            Event::Server {
                node: &db,
                name: &db,
                action: ServerAction::Move,
            },
        ];
        let lines: Vec<_> = events.iter().filter_map(text).collect();
        insta::assert_snapshot!(lines.join("\n"));
    }
}
