//! Runs QEMU to its end, or until a time limit.

use std::fs::{self, File};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::boot_watch::BootWatch;
use super::monitor::Cores;
use super::running::{Running, WaitEnd};
use super::{FinalState, MachineError, Prepared, at};
use crate::host::tool::tail;

/// Most bytes of a log that an error quotes.
const TAIL_BYTES: usize = 6000;

/// Console of the task.
#[derive(Clone, Copy)]
pub(super) enum Console {
    /// This process's terminal, without a time limit.
    Terminal,
    /// Captured and, with `show`, also copied to this process's output.
    Captured { show: bool, limit: Duration },
}

/// A run that came to its end by itself.
#[derive(Default)]
pub(super) struct Ended {
    /// Output of the task.
    pub(super) output: Vec<u8>,
    /// Time from the start of QEMU to its end.
    pub(super) elapsed: Duration,
    /// How it ended and where its cores were, unless it was switched off.
    pub(super) abnormal_end: Option<String>,
}

/// Runs QEMU.
pub(super) fn run(
    mut command: Command,
    prepared: &Prepared,
    console: Console,
) -> Result<Ended, MachineError> {
    let started = Instant::now();
    let messages = File::create(prepared.qemu_log()).map_err(at(&prepared.qemu_log()))?;
    command.stderr(messages);
    let (ended, status) = match console {
        Console::Terminal => {
            let status = command.spawn().and_then(|mut child| child.wait());
            (Ended::default(), status.map_err(MachineError::Start)?)
        }
        Console::Captured { show, limit } => capture(command, prepared, show, limit)?,
    };
    if !status.success() {
        let message = fs::read_to_string(prepared.qemu_log()).unwrap_or_default();
        return Err(MachineError::Qemu {
            status: status.to_string(),
            message,
        });
    }
    Ok(Ended {
        elapsed: started.elapsed(),
        ..ended
    })
}

/// Runs QEMU until its machine has stopped or the time limit is reached.
fn capture(
    command: Command,
    prepared: &Prepared,
    show: bool,
    limit: Duration,
) -> Result<(Ended, ExitStatus), MachineError> {
    let mut running = Running::start(command, show).map_err(MachineError::Start)?;
    let end = running.wait(&mut BootWatch::new(prepared.log()), limit);
    let mut cores = Cores::default();
    if !end.is_expected() {
        cores = running.cores();
        // Kept with the other files of a failure.
        let _ = fs::write(prepared.cores(), &cores.0);
    }
    let (output, status) = running.end().map_err(MachineError::Start)?;
    let abnormal_end = match end {
        WaitEnd::Gone | WaitEnd::SwitchedOff => None,
        WaitEnd::Stopped(reason) => Some(format!("{reason}, with {cores}")),
        WaitEnd::Limit => {
            let ended = final_state(prepared, &output, &cores);
            return Err(MachineError::Limit(limit.as_secs(), ended));
        }
        WaitEnd::Boot => return Err(MachineError::Hang(final_state(prepared, &output, &cores))),
    };
    let ended = Ended {
        output,
        abnormal_end,
        ..Ended::default()
    };
    Ok((ended, status))
}

fn final_state(prepared: &Prepared, output: &[u8], cores: &Cores) -> FinalState {
    let log = fs::read(prepared.log()).unwrap_or_default();
    FinalState {
        output: tail(&String::from_utf8_lossy(output), TAIL_BYTES).to_owned(),
        log_path: prepared.log(),
        log: tail(&String::from_utf8_lossy(&log), TAIL_BYTES).to_owned(),
        cores: cores.to_string(),
    }
}

/// Rows and columns of this process's terminal, 0 where there is none.
pub(super) fn terminal_size() -> (u16, u16) {
    let output = Command::new("stty")
        .arg("size")
        .stdin(Stdio::inherit())
        .output();
    let text = output
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    let mut numbers = text.split_whitespace().filter_map(|word| word.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}
