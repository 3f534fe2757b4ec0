//! Containers on the lightweight kernel.
//!
//! Their processes are made by the ordinary runtime, by the container's own configuration, with its root, namespaces, control
//! group, users, capabilities and filters. Each then executes `insula-proxy` in place of its program, and so becomes the proxy
//! of that on the container's node: calls are delegated to a process that is restricted as any container's. What it needs for that
//! it inherits, since the container has neither: a descriptor of the node, and one of `insula-proxy` itself, a copy that nobody
//! can write.

use std::os::fd::OwnedFd;
use std::process::{ExitCode, ExitStatus};

use insula_base::error::Error;
use insula_base::root::Root;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node as node;
use insula_supervisor as supervisor;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};

use super::arguments::Arguments;
use super::create::{Bundle, check_node};
use super::exec::{PROCESS, ProcessFile};
use super::node::{self as container_node, Network, NodeKind};
use super::passed::Passed;
use super::pod::Inside;
use super::runtime::Runtime;
use super::state::{Base, Record, State};
use super::{exec, exit_code, hooks, namespaces, rewrite, stand_in};

/// Creates a container, and with the verb `run` runs it: its node is there before it.
///
/// # Errors
/// Why it is refused; nothing is left behind.
pub(super) fn create(
    arguments: &Arguments,
    runtime: &Runtime,
    (bundle, driver): (&Bundle, &Driver),
) -> Result<ExitCode, Error> {
    let passed = Passed::of(arguments);
    let (record, config) = container(bundle, &passed)?;
    check_node(bundle, &record)?;
    let state = State::of(&record.id);
    state.create(&record, &config)?;
    // First the guard: this process may be killed as soon as there is a node.
    let made = stand_in::start_guard(&record).and_then(|_guard| {
        start_node(driver, &record)?;
        let words = passed.announced(&bundle.words(arguments, &record));
        let descriptors = passed.mappings(descriptor(driver, &record.node)?, [])?;
        runtime.run_passing(&words.words(), descriptors, arguments.verb == "run")
    });
    let is_kept = made.as_ref().is_ok_and(ExitStatus::success);
    if !is_kept && !bundle.is_known(arguments, runtime) {
        let removed = stand_in::remove_own(driver, &record);
        state.remove(Some(&record));
        removed?;
    }
    Ok(exit_code(made?))
}

/// What is kept of a container, and its configuration with `insula-proxy` in place of its program.
fn container(bundle: &Bundle, passed: &Passed) -> Result<(Record, Value), Error> {
    namespaces::check(&bundle.config)?;
    let node = container_node::name(&bundle.id)?;
    let (id, kind) = (&bundle.id, NodeKind::Lightweight);
    let mut spec = container_node::spec(&bundle.config, (id, kind), &bundle.rootfs)?;
    // They are the container's own, on the base.
    (spec.rootfs, spec.hostname, spec.network) = (None, None, insula_node::NetworkSpec::None);
    let record = Record {
        id: bundle.id.clone(),
        bundle: bundle.path.clone(),
        node: node.clone(),
        spec,
        kernel: None,
        network: Network::None,
        process: bundle.config.process.clone().unwrap_or_default(),
        root: bundle.root(),
        mounts: Vec::new(),
        hooks: bundle.config.hooks.clone(),
        base: Base::default(),
        pid_file: bundle.pid_file(),
        name: node.clone(),
        inside: Inside::default(),
        member: None,
        kind,
    };
    let mut config = bundle.value.clone();
    config["root"]["path"] = json!(bundle.rootfs);
    for mount in config["mounts"].as_array_mut().into_iter().flatten() {
        if let Ok(known) = serde_json::from_value(mount.clone())
            && rewrite::is_bind(&known)
        {
            mount["source"] = json!(rewrite::resolve(known, &bundle.path).source);
        }
    }
    prepend(passed, &mut config["process"], &node);
    hooks::wrap(&mut config, &bundle.config.hooks, &bundle.id)?;
    Ok((record, config))
}

fn start_node(driver: &Driver, record: &Record) -> Result<(), Error> {
    let request = container_node::request(&record.spec, None, &record.node)?;
    let started = supervisor::run(driver, &Root::default(), &request, insula_driver::tsc())?;
    match started.unsupervised {
        Some(why) => Err(Error::new(why).nothing_kept()),
        None => Ok(()),
    }
}

/// Runs a further process of a container: that of a file, or of the command line's.
///
/// # Errors
/// Why it is refused.
pub(super) fn exec(
    arguments: &Arguments,
    runtime: &Runtime,
    record: &Record,
) -> Result<ExitCode, Error> {
    let driver = Driver::open()?;
    let passed = Passed::of(arguments);
    let words = passed.announced(arguments);
    let descriptors = passed.mappings(descriptor(&driver, &record.node)?, [])?;
    let Some((mut process, described)) = exec::described(arguments)? else {
        let words = words.with_program(&own_words(&passed, &record.node));
        let ran = runtime.run_passing(&words.words(), descriptors, true);
        return Ok(exit_code(ran?));
    };
    record.check_program(&described)?;
    prepend(&passed, &mut process, &record.node);
    let file = ProcessFile::new(record)?;
    let words = file.describe(&words, &process, &PROCESS);
    let ran = words.and_then(|words| runtime.run_passing(&words.words(), descriptors, true));
    file.forget(arguments, &ran);
    Ok(exit_code(ran?))
}

/// Waits for the end of a container's process, if there is one.
pub(super) fn wait_for_end(record: &Record) {
    let id = record.pid().and_then(|id| i32::try_from(id).ok());
    let process = id.and_then(Pid::from_raw);
    let process = process.and_then(|id| pidfd_open(id, PidfdFlags::empty()).ok());
    if let Some(process) = process {
        // Interrupted by nothing.
        let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], None);
    }
}

/// The words by which a process executes `insula-proxy`, before those of its program.
fn own_words(passed: &Passed, node: &Name) -> Vec<String> {
    passed.words(&[&passed.number().to_string(), node.as_str()])
}

/// Has a process execute `insula-proxy`.
fn prepend(passed: &Passed, process: &mut Value, node: &Name) {
    let own = own_words(passed, node).into_iter().map(Value::from);
    let found = process["args"].as_array().cloned().unwrap_or_default();
    process["args"] = own.chain(found).collect();
}

/// A descriptor of a node.
fn descriptor(driver: &Driver, name: &Name) -> Result<OwnedFd, Error> {
    let handle = node::find(driver, name)?;
    match handle.is_paused() {
        true => Err(node::is_paused(name)),
        false => Ok(handle.node.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn a_program_stays_as_it_is_behind_the_proxy() {
        let mut process = json!({"args": ["sh", "-c", "true"], "cwd": "/srv"});
        let words = ["create", "web"].map(OsString::from);
        let passed = Passed::of(&Arguments::parse(words));
        prepend(&passed, &mut process, &"web".parse().unwrap());
        let args = json!(["/proc/self/fd/4", "3", "web", "sh", "-c", "true"]);
        assert_eq!(process, json!({"args": args, "cwd": "/srv"}));
    }
}
