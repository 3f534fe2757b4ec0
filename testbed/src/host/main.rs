//! The command `testbed`: an emulated machine to try Insula on.

mod arguments;
#[cfg(feature = "scenarios")]
mod scenarios;

use std::error::Error;
use std::io::{IsTerminal, stdin, stdout};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use arguments::{Arguments, MachineArguments, Request};
use clap::Parser;
use testbed::host::kernels::{self, Flavour, Kernel};
use testbed::host::machine::{Accelerator, Emulator, Machine, Task};
use testbed::host::payload::module::{self, ModuleError};
use testbed::host::payload::{Payload, equipment, programs};
use testbed::host::project;
use testbed::host::root::Root;

/// Exit status when the machine itself fails, not the command in it: as of env(1) and chroot(1).
const STATUS_OWN_FAILURE: u8 = 125;

fn main() -> ExitCode {
    match execute(Arguments::parse().request) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("testbed: {error}");
            ExitCode::from(STATUS_OWN_FAILURE)
        }
    }
}

fn execute(request: Request) -> Result<u8, Box<dyn Error>> {
    match request {
        Request::Fetch {
            all,
            bench,
            applications,
            conformance,
            installed,
            backports,
            ready,
        } => {
            let extra = [
                (bench, Root::Bench),
                (applications, Root::Applications),
                (conformance, Root::Conformance),
                (installed, Root::Installed),
            ];
            let extra = extra.iter().filter(|(is, _)| *is).map(|(_, root)| *root);
            fetch((all, backports), extra)?;
            match ready {
                true => make_ready(),
                false => Ok(0),
            }
        }
        Request::Module { kernel } => build_modules(&kernel, module::build_with_test_drivers),
        Request::Programs { project_only } => {
            match project_only {
                true => programs::build(&mut progress).map(drop),
                false => programs::build_all(&mut progress).map(drop),
            }?;
            Ok(0)
        }
        Request::Run {
            machine,
            bare,
            project_only,
            limit_s,
            command,
        } => {
            let mut payload = match (bare, project_only) {
                (true, _) => Payload::default(),
                (_, true) => equipment::assemble_for_users(machine.kernel, &mut progress)?,
                _ => equipment::assemble(machine.kernel, &mut progress)?,
            };
            payload.load_module = !bare && !machine.no_module;
            run(&machine, &payload, limit_s, command)
        }
        Request::Shell { machine } => shell(&machine),
        #[cfg(feature = "scenarios")]
        Request::Scenario(arguments) => scenarios::play(&arguments),
    }
}

/// Prints progress to stderr: stdout belongs to the machine.
fn progress(line: &str) {
    eprintln!("testbed: {line}");
}

/// Fetches what usual machines need, at the same time, for that is mostly waiting; then the other root disks.
fn fetch(
    (all, backports): (bool, bool),
    extra: impl Iterator<Item = Root>,
) -> Result<(), Box<dyn Error>> {
    let _guard = project::lock()?;
    thread::scope(|scope| {
        let emulator = backports.then(|| scope.spawn(|| Emulator::Backports.fetch(&mut progress)));
        let root = scope.spawn(|| Root::Test.image(&mut progress));
        let kernels = fetch_kernels(all);
        emulator.map(joined).transpose()?;
        joined(root)?;
        kernels
    })?;
    for root in extra {
        root.image(&mut progress)?;
    }
    Ok(())
}

/// Builds the module for the usual kernels while it is tried whether KVM works, which is mostly waiting where it does not.
fn make_ready() -> Result<u8, Box<dyn Error>> {
    thread::scope(|scope| {
        let accelerator = scope.spawn(|| Accelerator::detect(Flavour::V6_12, &mut progress));
        let built = build_modules(&Flavour::USUAL, module::build);
        joined(accelerator)?;
        built
    })
}

fn fetch_kernels(all: bool) -> Result<(), Box<dyn Error>> {
    let flavours: &[Flavour] = if all { &Flavour::ALL } else { &Flavour::USUAL };
    for &flavour in flavours {
        let kernel = kernels::fetch(flavour, &mut progress)?;
        println!("{flavour}: {}", kernel.release);
    }
    Ok(())
}

/// What a thread has returned.
fn joined<T, E: Error + 'static>(
    thread: ScopedJoinHandle<'_, Result<T, E>>,
) -> Result<T, Box<dyn Error>> {
    match thread.join() {
        Ok(outcome) => Ok(outcome?),
        Err(panic) => resume_unwind(panic),
    }
}

fn build_modules(
    flavours: &[Flavour],
    build: fn(&Kernel) -> Result<PathBuf, ModuleError>,
) -> Result<u8, Box<dyn Error>> {
    let _guard = project::lock()?;
    for &flavour in flavours {
        let path = build(&kernels::fetch(flavour, &mut progress)?)?;
        println!("{}", path.display());
    }
    Ok(0)
}

fn run(
    arguments: &MachineArguments,
    payload: &Payload,
    limit_s: u64,
    command: Vec<String>,
) -> Result<u8, Box<dyn Error>> {
    let machine = Machine {
        limit: Duration::from_secs(limit_s),
        ..machine(arguments)?
    };
    let outcome = machine.run(&Task::Command(command), payload, true, &mut progress)?;
    match outcome.status {
        Some(status) => Ok(u8::try_from(status).unwrap_or(STATUS_OWN_FAILURE)),
        None => Err(outcome
            .fail("the machine went down before the command had ended".into())
            .into()),
    }
}

fn shell(arguments: &MachineArguments) -> Result<u8, Box<dyn Error>> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        return Err("a shell needs a terminal; `testbed run -- COMMAND` does not".into());
    }
    let payload = equipped(arguments)?;
    let machine = machine(arguments)?;
    progress("booting; `exit` ends the machine, and so does Ctrl-] x when it hangs");
    let outcome = machine.run(&Task::Shell, &payload, false, &mut progress)?;
    match outcome.status {
        Some(_) => Ok(0),
        None => Err(outcome
            .fail("the machine went down by itself".into())
            .into()),
    }
}

fn chosen_or_detected(
    chosen: Option<Accelerator>,
    base: Flavour,
) -> Result<Accelerator, Box<dyn Error>> {
    Ok(match chosen {
        Some(accelerator) => accelerator,
        None => Accelerator::detect(base, &mut progress)?,
    })
}

fn equipped(arguments: &MachineArguments) -> Result<Payload, Box<dyn Error>> {
    let mut payload = equipment::assemble(arguments.kernel, &mut progress)?;
    payload.load_module = !arguments.no_module;
    Ok(payload)
}

fn machine(arguments: &MachineArguments) -> Result<Machine, Box<dyn Error>> {
    let accelerator = chosen_or_detected(arguments.accelerator, arguments.kernel)?;
    Ok(Machine {
        cpus: arguments.cpus,
        memory_mib: arguments.memory,
        numa_nodes: arguments.numa_nodes,
        spare_devices: arguments.spare_devices,
        emulator: arguments.emulator,
        accelerator,
        root: arguments.root(),
        append: arguments.append.clone(),
        qemu_arguments: arguments.qemu.clone(),
        ..Machine::new(arguments.kernel)
    })
}
