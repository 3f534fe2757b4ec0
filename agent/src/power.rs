//! Ending the node.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount_remount};
use rustix::process::{Pid, Signal, kill_process};
use rustix::system::{RebootCommand, reboot};
use signal_hook::consts::{SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::say::say;

/// How long programs may take to end by themselves.
const GRACE: Duration = Duration::from_secs(5);
/// How often they are looked at.
const INTERVAL: Duration = Duration::from_millis(20);

/// Bytes of the kernel's `struct input_event`: two words of time, kind, code, value.
const EVENT_SIZE: usize = 24;
/// `EV_KEY`, `KEY_POWER`, pressed.
const PRESSED: [u8; 8] = [1, 0, 116, 0, 1, 0, 0, 0];

static ENDING: AtomicBool = AtomicBool::new(false);

/// Whether the node is about to end.
pub(crate) fn is_ending() -> bool {
    ENDING.load(Ordering::Relaxed)
}

/// Ends the node when its power button is pressed, or a program in it says so as to busybox' init.
pub(crate) fn watch() {
    let devices = fs::read_dir("/dev/input").into_iter().flatten().flatten();
    for device in devices.map(|entry| entry.path()) {
        thread::spawn(move || {
            if wait_for_press(&device).is_ok() {
                say("the power button was pressed");
                end(RebootCommand::PowerOff);
            }
        });
    }
    match Signals::new([SIGTERM, SIGUSR2]) {
        Ok(mut signals) => drop(thread::spawn(move || match signals.forever().next() {
            Some(SIGTERM) => end(RebootCommand::Restart),
            _ => end(RebootCommand::PowerOff),
        })),
        Err(error) => say(&format!("signals are not heard: {error}")),
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

/// Has all programs end, and the node.
pub(crate) fn end(how: RebootCommand) {
    if ENDING.swap(true, Ordering::Relaxed) {
        return;
    }
    signal_all(Signal::TERM);
    let began = Instant::now();
    while began.elapsed() < GRACE && signal_all(Signal::CONT) {
        thread::sleep(INTERVAL);
    }
    signal_all(Signal::KILL);
    rustix::fs::sync();
    // A disk is left as if it had been unmounted. Not every root can be.
    let _ = mount_remount("/", MountFlags::RDONLY, c"");
    if let Err(error) = reboot(how) {
        say(&format!("the node cannot end: {error}"));
    }
}

/// Signals all other programs; whether there are any.
fn signal_all(signal: Signal) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let programs: Vec<_> = ids.filter(|&id: &i32| id != 1 && is_program(id)).collect();
    for pid in programs.iter().filter_map(|&id| Pid::from_raw(id)) {
        // It may have ended meanwhile.
        let _ = kill_process(pid, signal);
    }
    !programs.is_empty()
}

/// Threads of the kernel, and what has ended already, have no words.
fn is_program(id: i32) -> bool {
    fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|words| !words.is_empty())
}
