//! `insula run | inspect | stop | kill | rm`.

pub(super) mod details;

use std::process::ExitCode;
use std::time::Duration;

use insula_base::error::Error;
use insula_driver::Driver;
use insula_driver::name::{Missing, Name};
use insula_exec::agent::set_clock;
use insula_exec::container::ContainerView;
use insula_image::Files;
use insula_node::delegation;
use insula_node::isolation::Isolation;
use insula_node::{
    self as node, Attachments, Handle, RunRequest, Source, Started, Stopped, UpdateRequest,
};
use insula_servers::remove_node;
use insula_supervisor as supervisor;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use serde::Serialize;

use super::cli::{Attach, Inspect, NewNode, Run, Update};
use super::create::CreatedDetails;
use super::targets::is_gone;
use super::{Context, Failure, attach, container, create, output, snapshot};
use crate::report::{Align, Table, duration};
use details::NodeDetails;

pub(super) fn run(context: &Context, options: Run) -> Result<ExitCode, Failure> {
    let (json, timing, is_attached) = (options.json, options.timing, options.attaches());
    let request = RunRequest {
        is_attached,
        ..request(options.node)?
    };
    container::check_name(context, request.name.as_ref())?;
    let driver = context.driver()?;
    let started = supervisor::run(&driver, &context.root, &request, context.start_tsc)?;
    if started.is_copy {
        snapshot::rename(&driver, &started)?;
    }
    note_started(&started);
    if is_attached {
        return attach::attach(
            context,
            &Attach::to_new(started.name.parse()?, options.detach_keys),
        );
    }
    match (json, timing) {
        (true, _) => output::json(&started),
        (false, true) => output::print(&timing_text(&started)),
        (false, false) => output::line(&started.name),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Prints notes on a started node: no supervisor, or cores shared with others.
pub(super) fn note_started(started: &Started) {
    if let Some(why) = &started.unsupervised {
        output::note(why);
    }
    let split = &started.half_cpus;
    if !split.0.is_empty() {
        output::note(&format!(
            "the cores {split} are not whole: another thread of each belongs to the base or \
             another node"
        ));
    }
}

/// Starts a node that powers off when the last of its programs has exited, and is removed then.
pub(super) fn start_for_a_program(
    context: &Context,
    mut options: NewNode,
) -> Result<Name, Failure> {
    let append = &mut options.spec.append;
    *append = [append.as_str(), delegation::ONCE]
        .join(" ")
        .trim_start()
        .to_owned();
    options.rm = true;
    let started = supervisor::run(
        &context.driver()?,
        &context.root,
        &request(options)?,
        context.start_tsc,
    )?;
    note_started(&started);
    Ok(started.name.parse()?)
}

pub(super) fn request(options: NewNode) -> Result<RunRequest, Failure> {
    let NewNode {
        mut spec,
        files,
        layout,
        name,
        rm,
        ..
    } = options;
    if let Some(error) = spec.check().err().into_iter().flatten().next() {
        return Err(error.into());
    }
    // Where that is unknown, relative paths are refused as missing.
    spec.resolve(&std::env::current_dir().unwrap_or_default());
    let source = match &spec.image {
        Some(image) => Source::Image(image.clone()),
        None => {
            let files = Files {
                kernel: files.kernel.unwrap_or_default(),
                initrd: files.initrd,
            };
            Source::Files(files, layout)
        }
    };
    Ok(RunRequest {
        source,
        name,
        cores: spec.cores(),
        attachments: Attachments::find(&spec)?,
        spec,
        described: None,
        remove: rm,
        is_created: false,
        is_attached: false,
    })
}

fn timing_text(started: &Started) -> String {
    let timing = &started.timing;
    let mut table = Table::new(&[("STEP", Align::Left), ("TIME", Align::Right)]);
    let steps = [
        ("take memory", timing.take_memory_ns),
        ("take cores", timing.take_cores_ns),
        ("load", timing.load_ns),
        ("lay out", timing.layout_ns),
        ("start", timing.start_ns),
        ("total", timing.total_ns),
    ];
    for (step, ns) in steps {
        table.row([step.to_owned(), duration(ns)]);
    }
    format!("{}\n{table}", started.name)
}

/// All nodes, with what their kernels' memory shows. Changes nothing.
pub(super) fn observe_all(driver: &Driver) -> Result<Vec<Handle>, Failure> {
    let mut handles = node::all(driver)?;
    handles.iter_mut().for_each(node::detect_crash);
    Ok(handles)
}

/// The node of that name, in the same way.
pub(super) fn observe(driver: &Driver, name: &Name) -> Result<Handle, Failure> {
    let mut handle = node::find(driver, name)?;
    node::detect_crash(&mut handle);
    Ok(handle)
}

/// All nodes, for commands that are about to change them: crashed ones are stopped, and those that
/// have lost their supervisor get a new one.
pub(super) fn all(driver: &Driver) -> Result<Vec<Handle>, Failure> {
    let mut handles = node::all(driver)?;
    maintain(driver, &mut handles)?;
    Ok(handles)
}

/// The node of that name, in the same way.
pub(super) fn find(driver: &Driver, name: &Name) -> Result<Handle, Failure> {
    let mut handle = node::find(driver, name)?;
    maintain(driver, std::slice::from_mut(&mut handle))?;
    Ok(handle)
}

fn maintain(driver: &Driver, handles: &mut [Handle]) -> Result<(), Failure> {
    for handle in &mut *handles {
        node::record_crash(handle)?;
    }
    for failure in supervisor::ensure_supervised(driver, handles) {
        output::note(&failure.to_string());
    }
    Ok(())
}

/// Starts a new supervisor for nodes that have lost theirs: for these, or for all.
pub(super) fn supervise(context: &Context, names: &[Name]) -> Result<(), Failure> {
    let driver = context.driver()?;
    match names {
        [] => all(&driver).map(drop),
        names => names
            .iter()
            .try_for_each(|name| find(&driver, name).map(drop)),
    }
}

/// What `inspect` shows.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub(super) enum Inspected {
    Node(Box<NodeDetails>),
    Created(Box<CreatedDetails>),
    Container(Box<ContainerView>),
}

pub(super) fn inspect(context: &Context, options: &Inspect) -> Result<(), Failure> {
    let driver = context.driver()?;
    let shown = options.names.iter().map(|name| {
        if let Some(container) = container::inspect(context, name)? {
            return Ok(Inspected::Container(Box::new(container)));
        }
        if let Some(created) = create::find(context, name)? {
            return Ok(Inspected::Created(Box::new(created.into())));
        }
        let details = NodeDetails::read(&observe(&driver, name)?);
        let details = details.map_err(|error| match error.errno {
            // It was removed meanwhile.
            Errno::ENODEV => node::unknown(&Missing::among(name.as_str(), [])).into(),
            _ => Failure::from(error),
        })?;
        Ok(Inspected::Node(Box::new(details)))
    });
    output::json(&shown.collect::<Result<Vec<_>, Failure>>()?)
}

pub(super) fn stop(context: &Context, name: &Name, time_s: u32) -> Result<(), Failure> {
    if let Some(container) = container::find(context, name)? {
        return container::stop(context, &container, time_s);
    }
    let timeout = Duration::from_secs(time_s.into());
    let stopped = node::stop(&context.driver()?, name, timeout)?;
    if let Stopped::ByForce { was_asked } = stopped
        && time_s > 0
    {
        let why = match was_asked {
            true => "",
            false => ": its kernel does not handle the power button",
        };
        output::note(&format!(
            "the node '{name}' did not power off within {time_s} s and was killed{why}"
        ));
    }
    Ok(())
}

pub(super) fn restart(context: &Context, name: &Name, time_s: u32) -> Result<(), Failure> {
    if let Some(created) = create::find(context, name)? {
        return create::start(context, &created);
    }
    let driver = context.driver()?;
    let handle = node::find(&driver, name)?;
    if !handle.is_stopped() {
        node::check_restart(&driver, &context.root, &handle)?;
        stop(context, name, time_s).or_else(|failure| match is_gone(&failure) {
            // It has ended meanwhile; if it was removed, that is found below.
            true => Ok(()),
            false => Err(failure),
        })?;
    }
    Ok(supervisor::restart(&driver, &context.root, name)?)
}

/// Whether it has stopped, and is not about to be started again.
pub(super) fn can_be_started(handle: &Handle) -> bool {
    handle.is_stopped() && !handle.is_restarting()
}

pub(super) fn start(context: &Context, name: &Name) -> Result<(), Failure> {
    if let Some(container) = container::find(context, name)? {
        return Err(container::cannot_start(&container).into());
    }
    if let Some(created) = create::find(context, name)? {
        return create::start(context, &created);
    }
    let driver = context.driver()?;
    match can_be_started(&node::find(&driver, name)?) {
        true => Ok(supervisor::restart(&driver, &context.root, name)?),
        false => Ok(()),
    }
}

pub(super) fn rename(context: &Context, name: &Name, new: &Name) -> Result<(), Failure> {
    container::check_name(context, Some(new))?;
    if let Some(container) = container::find(context, name)? {
        return Err(container::cannot_rename(&container).into());
    }
    Ok(node::rename(&context.driver()?, &context.root, name, new)?)
}

pub(super) fn update(context: &Context, options: &Update) -> Result<(), Failure> {
    let request = UpdateRequest {
        cpus: options.cpus,
        memory: options.memory,
    };
    let driver = context.driver()?;
    let view = node::update(&driver, &context.root, &options.name, request)?;
    match options.json {
        true => output::json(&view),
        false => output::line(&view.name),
    }
}

/// Whether its isolation lets it be paused.
pub(super) fn can_be_paused(handle: &Handle) -> bool {
    let record = handle.record.as_ref();
    let confined = record.is_some_and(|record| record.spec.isolation == Isolation::Vmm);
    confined && handle.is_running() && !handle.is_paused()
}

pub(super) fn kill(context: &Context, name: &Name, signal: Signal) -> Result<(), Failure> {
    let driver = context.driver()?;
    if let Some(container) = container::find(context, name)? {
        return Ok(insula_exec::container::signal(
            &driver,
            &container,
            signal as i32,
        )?);
    }
    if signal != Signal::SIGKILL {
        let what = format!("'{name}' is a node, which gets no signals but KILL");
        let hint = "`insula stop` presses its power button";
        return Err(Error::new(what).untouched().hint(hint).into());
    }
    Ok(node::kill(&driver, name)?)
}

pub(super) fn pause(context: &Context, name: &Name) -> Result<(), Failure> {
    Ok(node::pause(&context.driver()?, name)?)
}

pub(super) fn resume(context: &Context, name: &Name) -> Result<(), Failure> {
    let driver = context.driver()?;
    node::resume(&driver, name)?;
    // The base's clock may have been corrected meanwhile.
    set_clock(&driver, name)
        .map_err(|error| error.leaving("the node goes on, by its own clock").into())
}

pub(super) fn remove(context: &Context, name: &Name, force: bool) -> Result<(), Failure> {
    if let Some(container) = container::find(context, name)? {
        return container::remove(context, &container, force);
    }
    if create::remove(context, name)? {
        return Ok(());
    }
    Ok(remove_node(&context.driver()?, &context.root, name, force)?)
}

#[cfg(test)]
mod tests {
    use insula_base::units::CpuList;
    use insula_node::Timing;

    use super::*;

    #[test]
    fn a_start_as_a_table() {
        let timing = Timing {
            load_ns: 41_000_000,
            take_memory_ns: 1_500_000_000,
            take_cores_ns: 60_000_000,
            layout_ns: 900_000,
            start_ns: 210_000,
            total_ns: 1_610_000_000,
        };
        let started = Started {
            name: "web".into(),
            id: 1,
            cpus: CpuList(vec![3]),
            apic_ids: vec![3],
            half_cpus: CpuList::default(),
            timing,
            unsupervised: None,
            is_copy: false,
        };
        insta::assert_snapshot!(timing_text(&started));
    }
}
