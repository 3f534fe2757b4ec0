//! What the first process does.

use std::fs;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use insula_agent::Exec;
use insula_agent::options::Options;
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus, wait};
use rustix::system::RebootCommand;
use rustix::time::{ClockId, Timespec, clock_settime};

use crate::program::Program;
use crate::say::{pass_on, say};
use crate::{drivers, files, interfaces, power, root, server};

/// Before the server is started again, and while there is no process at all.
const PAUSE: Duration = Duration::from_secs(1);

/// Never returns: a kernel without first process panics.
pub(crate) fn run() -> ! {
    files::mount_usual();
    // The kernel else drops all but a few lines written by programs.
    let _ = fs::write("/proc/sys/kernel/printk_devkmsg", "on\n");
    drivers::load_all();
    power::watch();
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let options = Options::parse(&line);
    set_clock(&options);
    let entered = options.root.map_or(Ok(()), root::enter);
    let mut processes = Processes {
        server: start_server(),
        program: None,
    };
    match entered {
        Ok(()) => {
            interfaces::configure(options.network);
            processes.program = start_program(options);
            say("ready");
        }
        // What its program would do elsewhere nobody knows; but one can look at it.
        Err(error) => say(&format!("its root cannot be had: {error}")),
    }
    loop {
        processes.bury();
    }
}

/// A node starts without knowing the time. What the base has told stands since before the node's kernel was
/// unpacked; the counter that both share has gone on.
fn set_clock(options: &Options) {
    let Some(clock) = options.clock else {
        return;
    };
    let now = clock.unix_ns_at(time_stamp()).map(Duration::from_nanos);
    let now = now.and_then(|now| Timespec::try_from(now).ok());
    let set = now.ok_or(Errno::INVAL);
    if let Err(error) = set.and_then(|now| clock_settime(ClockId::Realtime, now)) {
        say(&format!("the clock cannot be set: {error}"));
    }
}

/// The time stamp counter.
#[allow(unsafe_code, reason = "the instruction has no safe name")]
fn time_stamp() -> u64 {
    // SAFETY: every x86-64 processor has it, and nobody keeps this process from reading it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// What the node is there for, by ids.
struct Processes {
    server: Option<Pid>,
    program: Option<Pid>,
}

impl Processes {
    /// Waits for the end of any process.
    fn bury(&mut self) {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if Some(pid) == self.program => {
                self.program = None;
                say(&format!("the program has ended: {}", told(status)));
                thread::spawn(|| power::end(RebootCommand::PowerOff));
            }
            Ok(Some((pid, status))) if Some(pid) == self.server && !power::is_ending() => {
                say(&format!("the server has ended: {}", told(status)));
                thread::sleep(PAUSE);
                self.server = start_server();
            }
            // An orphan.
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

fn told(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => format!("status {status}"),
        (_, signal) => format!("signal {}", signal.unwrap_or_default()),
    }
}

fn start_server() -> Option<Pid> {
    let mut command = Command::new("/proc/self/exe");
    let server = command.arg(server::SERVE).spawn();
    match server {
        Ok(child) => Some(id(&child)),
        Err(error) => {
            say(&format!("there is no server: {error}"));
            None
        }
    }
}

/// Starts the program for which the node is there, if there is one. What it prints is logged.
fn start_program(options: Options) -> Option<Pid> {
    let name = options.run.first()?;
    let name = String::from_utf8_lossy(name.rsplit(|&byte| byte == b'/').next()?).into_owned();
    let exec = Exec {
        words: options.run,
        ..Exec::default()
    };
    let program = match Program::start(&exec) {
        Ok(program) => program,
        Err(error) => {
            say(&format!("{name} cannot be started: {error}"));
            thread::spawn(|| power::end(RebootCommand::PowerOff));
            return None;
        }
    };
    for output in [program.stdout, program.stderr].into_iter().flatten() {
        let name = name.clone();
        thread::spawn(move || pass_on(&name, output));
    }
    Some(id(&program.child))
}

fn id(child: &Child) -> Pid {
    Pid::from_child(child)
}
