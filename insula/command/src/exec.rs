//! `insula exec`, `insula console`, `insula cp`, and `insula run` with a program on the lightweight
//! kernel.

use std::path::Path;
use std::process::ExitCode;

use insula_base::error::{Error, Kind};
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_exec::agent::{self, AgentExec, AgentPlace, CopyEnd, DetachKeys, Place};
use insula_exec::container::Location;
use insula_exec::program::{self, ProgramRequest};
use insula_image::BUILT_IN;
use insula_node::{self as node, Variable};

use super::cli::{Exec, NewNode, Run};
use super::{Context, Failure, output};

/// Exit status of a failure of Insula itself.
pub(super) const FAILED: u8 = 125;

/// Runs a program; exits as a shell would. On a node of the lightweight kernel it returns only on
/// failure.
pub(super) fn exec(context: &Context, options: &Exec) -> Result<ExitCode, Failure> {
    if let Some(container) = &options.container {
        return super::container::start(context, container, options);
    }
    let driver = context.driver()?;
    let AgentPlace { at, container } = place_of(context, &options.name)?;
    if container.is_some() || runs_own_programs(&driver, &options.name) {
        let request = AgentExec {
            at: &at,
            container: container.as_ref(),
            begins: None,
            restrictions: None,
            user: options.user.as_deref(),
            words: &options.words,
            environment: &options.environment,
            directory: options.workdir.clone(),
            interactive: options.interactive && !options.detach,
            terminal: options.tty,
            started: None,
            detach_keys: options.detach_keys.clone(),
        };
        return Ok(match options.detach {
            true => started(agent::start(&driver, &request)),
            false => in_node(&driver, &request),
        });
    }
    if options.detach {
        return Ok(refused(&is_own_process()));
    }
    if options.user.is_some() {
        return Ok(refused(&has_own_user(&options.name)));
    }
    let failure = become_program(
        context,
        &ProgramRequest {
            node: &options.name,
            words: &options.words,
            environment: &options.environment,
            directory: options.workdir.as_deref(),
            polls: options.polls,
            mounts: &options.mounts,
            network: options.net.as_deref(),
        },
    )?;
    Ok(refused(&failure))
}

/// Whether a node is to be started for a program of this system.
pub(super) fn is_once(options: &NewNode) -> bool {
    let is_built_in = |image: &Name| image.as_str() == BUILT_IN;
    options.spec.program.is_some() && options.spec.image.as_ref().is_some_and(is_built_in)
}

/// Starts a node for one program and becomes that program. If it cannot be started, the node is
/// removed again.
pub(super) fn run_once(context: &Context, mut options: Run) -> Result<ExitCode, Failure> {
    if options.detach {
        return Ok(refused(&is_own_process()));
    }
    let words = options.node.spec.program.take().unwrap_or_default();
    let environment = std::mem::take(&mut options.node.spec.env);
    let pair = |one: Variable| (one.name.into(), one.value.into());
    let environment: Vec<_> = environment.into_iter().map(pair).collect();
    let directory = options.node.spec.workdir.take();
    // It has this command's own.
    (options.node.spec.interactive, options.node.spec.tty) = (false, false);
    // From its working directory a relative path is another one.
    if directory.is_none()
        && let Err(failure) = program::resolve(&words)
    {
        return Ok(refused(&failure));
    }
    let name = super::node::start_for_a_program(context, options.node)?;
    let failure = become_program(
        context,
        &ProgramRequest {
            node: &name,
            words: &words,
            environment: &environment,
            directory: directory.as_deref().map(Path::as_os_str),
            polls: program::POLLS,
            mounts: &[],
            network: None,
        },
    )?;
    match node::remove(&context.driver()?, &name, true) {
        Err(error) if error.kind != Kind::NoNode => output::note(&error.to_string()),
        _ => {}
    }
    Ok(refused(&failure))
}

/// The error of a program on the lightweight kernel that is to run without the command.
fn is_own_process() -> Error {
    Error::new(
        "a program on the lightweight kernel is the command's own process, which cannot leave it",
    )
    .untouched()
    .hint("leave --detach out, and end the command line with `&`")
}

fn become_program(context: &Context, request: &ProgramRequest) -> Result<Error, Failure> {
    match program::exec(&context.driver()?, request) {
        Ok(never) => match never {},
        Err(failure) => Ok(failure),
    }
}

fn refused(failure: &Error) -> ExitCode {
    let status = match failure.kind {
        Kind::NoProgram => 127,
        Kind::NotExecutable => 126,
        _ => FAILED,
    };
    fail(failure, status)
}

/// Opens a shell in a Linux node, or in a container.
pub(super) fn console(
    context: &Context,
    name: &Name,
    detach_keys: DetachKeys,
) -> Result<ExitCode, Failure> {
    let driver = context.driver()?;
    let AgentPlace { at, container } = place_of(context, name)?;
    let request = AgentExec {
        at: &at,
        container: container.as_ref(),
        begins: None,
        restrictions: None,
        user: None,
        words: &[],
        environment: &[],
        directory: None,
        interactive: true,
        terminal: true,
        started: None,
        detach_keys,
    };
    Ok(in_node(&driver, &request))
}

/// The error of a user for a program of the lightweight kernel.
fn has_own_user(node: &Name) -> Error {
    Error::new(format!(
        "'{node}' runs the lightweight kernel, whose programs are this command's user's"
    ))
    .about("user")
    .leaving("nothing was started")
    .hint(format!(
        "`insula exec {node} -- setpriv --reuid USER --regid GROUP --clear-groups PROGRAM` gives it another one"
    ))
}

/// Where a node's or a container's programs run.
fn place_of(context: &Context, name: &Name) -> Result<AgentPlace, Failure> {
    Ok(match super::container::find(context, name)? {
        Some(record) => AgentPlace {
            at: record.node,
            container: Some(record.name),
        },
        None => AgentPlace {
            at: Location::Node(name.clone()),
            container: None,
        },
    })
}

fn end_of(context: &Context, place: &Place) -> Result<CopyEnd, Failure> {
    Ok(match place {
        Place::Base(path) => CopyEnd::Base(path.clone()),
        Place::Node(name, path) => CopyEnd::There(place_of(context, name)?, path.clone()),
    })
}

pub(super) fn copy(context: &Context, from: &Place, to: &Place) -> Result<(), Failure> {
    let ends = [end_of(context, from)?, end_of(context, to)?];
    let copied = agent::copy(&context.driver()?, &ends[0], &ends[1])?;
    if copied.skipped > 0 {
        output::note(&format!(
            "{} devices, pipes or sockets were skipped",
            copied.skipped
        ));
    }
    Ok(())
}

/// Whether a node's kernel has a user space of its own. If the node cannot be opened, the attempt
/// to run reports that.
fn runs_own_programs(driver: &Driver, name: &Name) -> bool {
    let record = node::find(driver, name)
        .ok()
        .and_then(|handle| handle.record);
    record.is_some_and(|record| record.is_linux())
}

fn in_node(driver: &Driver, request: &AgentExec<'_>) -> ExitCode {
    match agent::exec(driver, request) {
        Ok(ending) => ExitCode::from(ending.status()),
        Err(failure) if output::is_closed_pipe(&failure) => ExitCode::SUCCESS,
        Err(failure) => fail(&failure, FAILED),
    }
}

fn started(outcome: Result<(), Error>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => fail(&failure, FAILED),
    }
}

pub(super) fn fail(failure: &Error, status: u8) -> ExitCode {
    output::print_error(failure);
    ExitCode::from(status)
}
