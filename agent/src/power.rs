//! Power-off and reboot of the node.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount_remount};
use rustix::process::{Pid, Signal, kill_process};
use rustix::system::{RebootCommand, reboot};
use signal_hook::consts::{SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::log::log;
use crate::main_program;

/// Time programs get to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// Interval at which that is polled.
const INTERVAL: Duration = Duration::from_millis(20);

/// Size of `struct input_event`: two words of time, type, code, value.
const EVENT_SIZE: usize = 24;
/// `EV_KEY`, `KEY_POWER`, pressed.
const PRESSED: [u8; 8] = [1, 0, 116, 0, 1, 0, 0, 0];

static SHUTTING_DOWN: AtomicBool = AtomicBool::new(false);
/// Process id of the server, which ends last: it passes on how programs end.
static SERVER: AtomicI32 = AtomicI32::new(0);

/// Says which process is the server.
pub(crate) fn keep_server(pid: Option<Pid>) {
    SERVER.store(Pid::as_raw(pid), Ordering::Relaxed);
}

/// Whether the node is shutting down.
pub(crate) fn is_shutting_down() -> bool {
    SHUTTING_DOWN.load(Ordering::Relaxed)
}

/// Shuts the node down when its power button is pressed, or on the signals that busybox' init
/// takes.
pub(crate) fn watch() {
    let devices = fs::read_dir("/dev/input").into_iter().flatten().flatten();
    for device in devices.map(|entry| entry.path()) {
        thread::spawn(move || {
            if wait_for_press(&device).is_ok() {
                log("the power button was pressed");
                shut_down(RebootCommand::PowerOff);
            }
        });
    }
    match Signals::new([SIGTERM, SIGUSR2]) {
        Ok(mut signals) => drop(thread::spawn(move || match signals.forever().next() {
            Some(SIGTERM) => shut_down(RebootCommand::Restart),
            _ => shut_down(RebootCommand::PowerOff),
        })),
        Err(error) => log(&format!("signals cannot be handled: {error}")),
    }
}

/// Returns when the button is pressed, if this device has one.
fn wait_for_press(device: &Path) -> io::Result<()> {
    let mut events = File::open(device)?;
    let mut event = [0; EVENT_SIZE];
    loop {
        events.read_exact(&mut event)?;
        if event[16..] == PRESSED {
            return Ok(());
        }
    }
}

/// Ends all programs, then the node.
pub(crate) fn shut_down(how: RebootCommand) {
    if SHUTTING_DOWN.swap(true, Ordering::Relaxed) {
        return;
    }
    signal_all(Signal::TERM);
    let began = Instant::now();
    // Who is attached is told of the program's end before that of the node.
    while began.elapsed() < GRACE && (signal_all(Signal::CONT) || main_program::is_attached()) {
        thread::sleep(INTERVAL);
    }
    keep_server(None);
    signal_all(Signal::KILL);
    rustix::fs::sync();
    // Leaves a disk clean. Not every root can be remounted.
    let _ = mount_remount("/", MountFlags::RDONLY, c"");
    if let Err(error) = reboot(how) {
        log(&format!("the node cannot be shut down: {error}"));
    }
}

/// Signals all programs but this and the server; false if there are none.
fn signal_all(signal: Signal) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let server = SERVER.load(Ordering::Relaxed);
    let is_other = |id: &i32| ![1, server].contains(id) && is_program(*id);
    let programs: Vec<_> = ids.filter(is_other).collect();
    for pid in programs.iter().filter_map(|&id| Pid::from_raw(id)) {
        // It may have ended meanwhile.
        let _ = kill_process(pid, signal);
    }
    !programs.is_empty()
}

/// Kernel threads and zombies have an empty command line.
fn is_program(id: i32) -> bool {
    fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|words| !words.is_empty())
}
