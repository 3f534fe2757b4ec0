//! `insula up | down`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use insula::compose::{
    self, Deed, Event, FILE, Locked, Plan, PlanError, Present, Project, Report, Scope, Tell,
};
use insula::name::Name;
use insula::node::Stopped;
use insula::report::duration;
use insula::units::CpuList;

use super::cli::{Down, Projects, Up};
use super::node::all;
use super::{Context, Failure, output};

pub(super) fn up(context: &Context, options: &Up) -> Result<ExitCode, Failure> {
    let projects = match read(&options.projects.file, options.project.as_ref()) {
        Ok(projects) => projects,
        Err(failure) => return refuse(failure, options.projects.json),
    };
    let driver = context.driver()?;
    let names = projects.iter().map(|project| &project.name);
    let locked = (!options.dry_run).then(|| lock(context, names));
    let _locked = locked.transpose()?;
    let present = Present::read(&driver, &context.root, &all(&driver)?)?;
    let plan = match Plan::new(&context.root, &projects, &present) {
        Ok(plan) => plan,
        Err(error) => return refuse(error.into(), options.projects.json),
    };
    if options.dry_run {
        return show(&plan.report(), options.projects.json);
    }
    let patience = patience(&options.projects);
    let tell = teller(&options.projects);
    let report = compose::up(&driver, &context.root, plan, patience, tell)?;
    finish(&report, options.projects.json)
}

pub(super) fn down(context: &Context, options: &Down) -> Result<ExitCode, Failure> {
    let by_name = |name: &Name| Scope {
        name: name.clone(),
        file: None,
        waits: compose::Waits::new(),
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
    let present = Present::read(&driver, &context.root, &all(&driver)?)?;
    let (patience, tell) = (patience(&options.projects), teller(&options.projects));
    let report = compose::down(&driver, &present, &scopes, options.images, patience, tell)?;
    if report.nodes.is_empty() && report.images.is_empty() {
        output::note("there is nothing of it to take down");
    }
    finish(&report, options.projects.json)
}

/// Waits until no other command brings up or takes down any of these.
fn lock<'a>(
    context: &Context,
    projects: impl Iterator<Item = &'a Name>,
) -> Result<Locked, Failure> {
    Ok(compose::lock(&context.root, projects, |project| {
        output::note(&format!(
            "another command brings up or takes down the project '{project}': waiting for it"
        ));
    })?)
}

/// Reads files; tells all that is wrong in any of them by itself.
fn read(paths: &[PathBuf], name: Option<&Name>) -> Result<Vec<Project>, Failure> {
    let default = [PathBuf::from(FILE)];
    let sources = compose::sources(if paths.is_empty() { &default } else { paths })?;
    if sources.is_empty() {
        output::note("there is no file whose name ends in .toml");
    }
    let mut projects = Vec::new();
    let mut mistakes = Vec::new();
    for source in &sources {
        match Project::read(source, name) {
            Ok(project) => projects.push(project),
            Err(more) => mistakes.extend(more),
        }
    }
    if mistakes.is_empty() {
        Ok(projects)
    } else {
        Err(PlanError(mistakes).into())
    }
}

/// Mistakes in files are told as JSON too, for editors.
fn refuse(failure: Failure, json: bool) -> Result<ExitCode, Failure> {
    match failure.downcast_ref::<PlanError>() {
        Some(PlanError(mistakes)) if json => {
            output::complain(failure.as_ref());
            let mut told = output::failure_as_json(failure.as_ref());
            told["mistakes"] = serde_json::json!(mistakes);
            output::json(&told)?;
            Ok(ExitCode::FAILURE)
        }
        _ => Err(failure),
    }
}

fn patience(options: &Projects) -> Duration {
    Duration::from_secs(options.time.into())
}

/// Who tells what happens: nobody when JSON is to be printed in the end.
fn teller(options: &Projects) -> Tell<'static> {
    if options.json {
        &|event| tell_failure(event)
    } else {
        &|event| tell(event)
    }
}

fn tell(event: &Event) {
    tell_failure(event);
    if let Some(text) = text(event) {
        // When the reader has gone, what was begun is still to be done.
        let _ = output::line(&text);
    }
}

fn tell_failure(event: &Event) {
    if let Event::NodeFailed(error) = event {
        output::complain(error);
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
        Event::NodeKept(name) => format!("node {name}: unchanged"),
        Event::NodeRemoved(name, None) => format!("node {name}: removed"),
        Event::NodeRemoved(name, Some(Stopped::ByItself)) => {
            format!("node {name}: switched itself off, removed")
        }
        Event::NodeRemoved(name, Some(Stopped::ByForce { was_asked: true })) => {
            format!("node {name}: stopped, removed")
        }
        Event::NodeRemoved(name, Some(Stopped::ByForce { was_asked: false })) => {
            format!("node {name}: stopped without having waited for its power button, removed")
        }
        Event::NodeStarted(started) => {
            format!("node {}: started on {}", started.name, cores(&started.cpus))
        }
        Event::NodeReady(name, ns) => format!("node {name}: ready after {}", duration(*ns)),
        Event::NodeFailed(_) => return None,
    })
}

fn cores(cpus: &CpuList) -> String {
    let word = if cpus.0.len() == 1 { "core" } else { "cores" };
    format!("{word} {cpus}")
}

/// What would be done.
fn show(report: &Report, json: bool) -> Result<ExitCode, Failure> {
    if json {
        output::json(report)?;
    } else {
        output::print(&plan_text(report))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn plan_text(report: &Report) -> String {
    let word = |deed: Deed| match deed {
        Deed::Keep => "unchanged",
        Deed::Add => "to be added",
        Deed::Replace => "to be replaced",
        Deed::Start => "to be started",
        Deed::Restart => "to be ended and started anew",
        Deed::Remove => "to be removed",
    };
    let images = report.images.iter();
    let images = images.map(|image| format!("image {}: {}\n", image.name, word(image.deed)));
    let nodes = report.nodes.iter().map(|node| {
        let cores = node
            .cpus
            .as_ref()
            .map(|cpus| format!(" on {}", cores(cpus)));
        let (name, deed) = (&node.name, word(node.deed));
        format!("node {name}: {deed}{}\n", cores.unwrap_or_default())
    });
    images.chain(nodes).collect()
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
    use insula::compose::{ImageReport, NodeReport};

    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn node(text: &str, deed: Deed, cpus: Option<&[u32]>) -> NodeReport {
        NodeReport {
            name: name(text),
            project: name("shop"),
            deed,
            cpus: cpus.map(|cpus| CpuList(cpus.to_vec())),
            started: None,
            ready_ns: None,
            error: None,
        }
    }

    #[test]
    fn a_plan_as_text_and_as_json() {
        let report = Report {
            images: vec![ImageReport {
                name: name("debian"),
                project: name("shop"),
                deed: Deed::Replace,
            }],
            nodes: vec![
                node("db", Deed::Keep, None),
                node("web", Deed::Start, Some(&[3])),
                node("mail", Deed::Restart, Some(&[1, 2])),
                node("old", Deed::Remove, None),
            ],
        };
        insta::assert_snapshot!(plan_text(&report));
        insta::assert_snapshot!(serde_json::to_string_pretty(&report).unwrap());
    }

    #[test]
    fn what_happens_is_told() {
        let db = name("db");
        let events = [
            Event::ImageAdded(&db),
            Event::ImageReplaced(&db),
            Event::ImageRemoved(&db),
            Event::NodeKept(&db),
            Event::NodeRemoved(&db, None),
            Event::NodeRemoved(&db, Some(Stopped::ByItself)),
            Event::NodeRemoved(&db, Some(Stopped::ByForce { was_asked: true })),
            Event::NodeRemoved(&db, Some(Stopped::ByForce { was_asked: false })),
            Event::NodeReady(&db, 1_250_000_000),
        ];
        let lines: Vec<_> = events.iter().filter_map(text).collect();
        insta::assert_snapshot!(lines.join("\n"));
    }
}
