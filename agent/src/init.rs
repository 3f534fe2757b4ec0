//! The first process (init).

use std::fs;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use insula_agent::options::Options;
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, WaitOptions, WaitStatus, setrlimit, wait};
use rustix::system::RebootCommand;
use socket2::Socket;

use crate::log::log;
use crate::main_program::MainProgram;
use crate::{
    clock, containers, drivers, files, interfaces, main_program, power, resolver, root, server,
};

/// Pause before a restart of the server, and while there is no child.
const PAUSE: Duration = Duration::from_secs(1);

/// Descriptors that programs may have, and to how many they can raise that: systemd's defaults. Linux' own maximum is 4096,
/// fewer than servers have connections.
const DESCRIPTORS: Rlimit = Rlimit {
    current: Some(1024),
    maximum: Some(524_288),
};

/// Runs init. Never returns, since the kernel would panic.
pub(crate) fn run() -> ! {
    files::mount_all();
    // Without that programs have fewer.
    let _ = setrlimit(Resource::Nofile, DESCRIPTORS);
    // By default the kernel rate-limits lines from user space.
    let _ = fs::write("/proc/sys/kernel/printk_devkmsg", "on\n");
    drivers::load_all();
    power::watch();
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let options = Options::parse(&line);
    set_clock(&options);
    let entered = enter(&options);
    let socket = main_program::listen(&options);
    if entered.is_ok() {
        resolver::configure(options.root, &options.resolver);
        interfaces::configure(options.network);
    }
    // Programs that it starts find root and network as the node's program does.
    let mut processes = Processes {
        server: start_server(),
        program: None,
    };
    match entered {
        Ok(()) => {
            processes.program = start_program(options, socket);
            log("ready");
        }
        // Its program must not run on another root, but the node stays up for inspection.
        Err(error) => {
            drop(socket);
            log(&error);
        }
    }
    loop {
        processes.reap();
    }
}

/// Mounts the root and the volumes.
fn enter(options: &Options) -> Result<(), String> {
    let folders = options.folders();
    let entered = options
        .root
        .map_or(Ok(()), |root| root::enter(root, folders));
    entered.map_err(|error| format!("the root cannot be mounted: {error}"))?;
    let mounted = root::mount_volumes(&options.volumes, folders);
    mounted.map_err(|error| format!("a volume cannot be mounted: {error}"))
}

/// Sets the clock from the base's time on the command line, advanced by the time stamp counter
/// since then.
fn set_clock(options: &Options) {
    let Some(base) = options.clock else {
        return;
    };
    let now_ns = base.unix_ns_at(clock::time_stamp());
    let set = now_ns.ok_or_else(|| Errno::INVAL.into());
    // Between the counter's reading and the setting this process may have been interrupted.
    let set = set.and_then(clock::set).and_then(|()| clock::follow(base));
    if let Err(error) = set {
        log(&format!("the clock cannot be set: {error}"));
    }
}

/// Init's own children.
struct Processes {
    server: Option<Pid>,
    program: Option<MainProgram>,
}

impl Processes {
    /// Waits for the exit of any child and handles it.
    fn reap(&mut self) {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if self.is_program(pid) => {
                let program = self.program.take();
                thread::spawn(move || {
                    if let Some(program) = program {
                        program.end(containers::exit_status(status));
                    }
                    log(&format!("the program has ended: {}", describe(status)));
                    power::shut_down(RebootCommand::PowerOff);
                });
            }
            Ok(Some((pid, status))) if Some(pid) == self.server && !power::is_shutting_down() => {
                log(&format!("the server has exited: {}", describe(status)));
                thread::sleep(PAUSE);
                self.server = start_server();
            }
            // An orphan: a container's first process if the server was killed.
            Ok(Some((pid, status))) => {
                containers::keep_status(pid, containers::exit_status(status))
            }
            Ok(None) | Err(Errno::INTR) => {}
            Err(_) => thread::sleep(PAUSE),
        }
    }

    fn is_program(&self, pid: Pid) -> bool {
        self.program
            .as_ref()
            .is_some_and(|program| program.pid() == pid)
    }
}

fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => format!("status {status}"),
        (_, signal) => format!("signal {}", signal.unwrap_or_default()),
    }
}

fn start_server() -> Option<Pid> {
    let mut command = Command::new("/proc/self/exe");
    let server = command.arg(server::SERVE).spawn();
    match server {
        Ok(child) => {
            let server = id(&child);
            power::keep_server(Some(server));
            Some(server)
        }
        Err(error) => {
            log(&format!("the server cannot be started: {error}"));
            None
        }
    }
}

/// Starts the node's main program, if any. Without it the node ends.
fn start_program(options: Options, socket: Option<Socket>) -> Option<MainProgram> {
    MainProgram::start(options, socket).unwrap_or_else(|error| {
        log(&format!("the program cannot be started: {error}"));
        thread::spawn(|| power::shut_down(RebootCommand::PowerOff));
        None
    })
}

fn id(child: &Child) -> Pid {
    Pid::from_child(child)
}
