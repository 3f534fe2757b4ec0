//! The `insula` command: parses, calls the libraries, prints.

mod attach;
mod cli;
mod completion;
mod compose;
mod container;
mod create;
mod env_file;
mod events;
mod examples;
mod exec;
mod image;
mod logs;
mod machine;
mod manual;
mod migrate;
mod network;
mod node;
mod oci;
mod output;
mod podman;
mod policy;
mod port;
mod postmortem;
mod prune;
mod ps;
mod report;
#[cfg(test)]
mod schema;
mod servers;
mod snapshot;
mod stats;
mod supervise;
mod targets;
mod top;
mod upgrade;
mod version;
mod wait;
mod watch;

use std::error::Error;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use insula_base::root::Root;
use insula_driver::Driver;
use insula_node::Handle;

use cli::{Cli, Command, Kill, Nodes, Remove, Stop, operands};
use targets::Targets;

/// An error to print; its text is complete in itself.
type Failure = Box<dyn Error>;

/// What a subcommand works with.
struct Context {
    root: Root,
    start_tsc: u64,
}

impl Context {
    /// Opens the module; done only by commands that need it.
    fn driver(&self) -> Result<Driver, Failure> {
        Ok(Driver::open()?)
    }
}

/// Runs the command: exit status 0 on success, 1 if it was refused or failed, 2 if misused; or that
/// of a program in a node.
fn main() -> ExitCode {
    let start_tsc = insula_driver::tsc();
    let mut words = std::env::args_os();
    if insula_oci::is_meant(&words.next().unwrap_or_default()) {
        return insula_oci::main(words);
    }
    completion::answer(Cli::command);
    let words = operands::named(Cli::command(), std::env::args_os().collect());
    let cli = Cli::try_parse_from(words).unwrap_or_else(|error| podman::explained(error).exit());
    let context = Context {
        root: Root::default(),
        start_tsc,
    };
    match dispatch(&context, cli.command) {
        Ok(status) => status,
        Err(failure) if output::is_closed_pipe(failure.as_ref()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::print_error(failure.as_ref());
            if output::is_json() {
                // The reader may have gone.
                let _ = output::json(&output::FailureView::new(failure.as_ref()));
            }
            ExitCode::FAILURE
        }
    }
}

fn dispatch(context: &Context, command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Machine { command } => return machine::machine(context, command),
        Command::Image { command } => return image::image(context, command),
        Command::Network { command } => return network::network(context, command),
        Command::Run(mut options) => {
            env_file::add_to(&mut options.node)?;
            if exec::is_once(&options.node) {
                return exec::run_once(context, *options);
            }
            return node::run(context, *options);
        }
        Command::Create(mut options) => {
            env_file::add_to(&mut options.node)?;
            create::create(context, *options)?
        }
        Command::Snapshot { node, name } => snapshot::snapshot(context, &node, &name)?,
        Command::Exec(options) => return exec::exec(context, &options),
        Command::Move(options) => migrate::migrate(context, &options)?,
        Command::Checkpoint {
            name,
            export,
            leave_running,
        } => container::checkpoint(context, &name, &export, leave_running)?,
        Command::Restore(options) => container::restore(context, &options)?,
        Command::Upgrade {
            name,
            image,
            check,
            time,
            json,
        } => {
            let options = upgrade::Options { check, json };
            upgrade::upgrade(context, (&name, &image), time, options)?;
        }
        Command::Servers { command } => servers::servers(context, command)?,
        Command::Policy { command } => policy::policy(context, &command)?,
        Command::Attach(options) => return attach::attach(context, &options),
        Command::Console { name, detach_keys } => {
            return exec::console(context, &name, detach_keys);
        }
        Command::Cp { from, to } => exec::copy(context, &from, &to)?,
        Command::Ps(options) => ps::ps(context, &options)?,
        Command::Stats(options) => stats::stats(context, &options)?,
        Command::Top(options) => top::top(context, &options)?,
        Command::Events(options) => events::events(context, &options)?,
        Command::Inspect(options) => node::inspect(context, &options)?,
        Command::Stop(Stop { names, all, time }) => {
            let targets = Targets::nodes(context, names, all, |node| !node.is_stopped())?;
            return targets.each(|name| node::stop(context, name, time));
        }
        Command::Kill(Kill { names, all, signal }) => {
            let targets = Targets::nodes(context, names, all, |node| !node.is_stopped())?;
            return targets.each(|name| node::kill(context, name, signal.0));
        }
        Command::Wait(options) => wait::wait(context, &options.names)?,
        Command::Pause(Nodes { names, all }) => {
            let targets = Targets::nodes(context, names, all, node::can_be_paused)?;
            return targets.each(|name| node::pause(context, name));
        }
        Command::Resume(Nodes { names, all }) => {
            let targets = Targets::nodes(context, names, all, Handle::is_paused)?;
            return targets.each(|name| node::resume(context, name));
        }
        Command::Start(Nodes { names, all }) => {
            let mut targets = Targets::nodes(context, names, all, node::can_be_started)?;
            if all.all {
                targets.extend(create::names(context)?);
            }
            return targets.each(|name| node::start(context, name));
        }
        Command::Rename { name, new } => node::rename(context, &name, &new)?,
        Command::Restart { nodes, time } => {
            let targets = Targets::nodes(context, nodes.names, nodes.all, |_| true)?;
            return targets.each(|name| node::restart(context, name, time));
        }
        Command::Update(options) => node::update(context, &options)?,
        Command::Rm(Remove { names, all, force }) => {
            let mut targets = Targets::nodes(context, names, all, |node| {
                force || node.is_stopped() && !node.is_restarting()
            })?;
            if all.all {
                targets.extend(create::names(context)?);
            }
            return targets.each(|name| node::remove(context, name, force));
        }
        Command::Prune { filter, .. } => return prune::prune(context, &filter),
        Command::Port(options) => port::port(context, &options)?,
        Command::Version { json } => version::version(context, json)?,
        Command::Logs(options) => logs::logs(context, &options)?,
        Command::Dump(options) => postmortem::dump(context, options)?,
        Command::Postmortem(options) => postmortem::kept(context, &options)?,
        Command::Backtrace(options) => postmortem::backtrace(context, &options)?,
        Command::Debug(options) => postmortem::debug(context, &options)?,
        Command::Watch(options) => return watch::watch(context, &options),
        Command::Oci { part } => return oci::part(context, &part),
        Command::Completion { shell } => completion::register(shell)?,
        Command::Man { folder } => manual::write(Cli::command(), &folder)?,
        Command::Up(options) => return compose::up(context, &options),
        Command::Down(options) => return compose::down(context, &options),
        Command::Publish { name } => container::publish(context, &name)?,
        Command::Supervise { here: true, .. } => supervise::supervise(context)?,
        Command::Supervise { names, .. } => node::supervise(context, &names)?,
    }
    Ok(ExitCode::SUCCESS)
}
