//! Running QEMU to its end, or to the end of patience.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::boot_watch::BootWatch;
use super::{GivenUp, MachineError, Prepared, at};
use crate::tool::tail;

/// Most bytes of a log that an error repeats.
const TAIL_BYTES: usize = 6000;
/// How often a booting machine is looked at.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Where the task's console is.
#[derive(Clone, Copy)]
pub(super) enum Console {
    /// This process's terminal, for as long as the user likes.
    Terminal,
    /// Nowhere: what is printed is kept and, with `show`, also copied to this
    /// process's output.
    Captured { show: bool, limit: Duration },
}

/// A run that came to its end by itself.
pub(super) struct Ended {
    /// What the task printed.
    pub(super) output: Vec<u8>,
    /// From the start of QEMU to its end.
    pub(super) elapsed: Duration,
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
    let (output, status) = match console {
        Console::Terminal => {
            let status = command.spawn().and_then(|mut child| child.wait());
            (Vec::new(), status.map_err(MachineError::Start)?)
        }
        Console::Captured { show, limit } => {
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            capture(
                command.spawn().map_err(MachineError::Start)?,
                prepared,
                show,
                limit,
            )?
        }
    };
    if !status.success() {
        let message = fs::read_to_string(prepared.qemu_log()).unwrap_or_default();
        return Err(MachineError::Qemu {
            status: status.to_string(),
            message,
        });
    }
    Ok(Ended {
        output,
        elapsed: started.elapsed(),
    })
}

/// Why a machine was ended.
enum Patience {
    /// It was not: it ended by itself.
    Lasted,
    /// Its time was up.
    Limit,
    /// It hung before the task had begun.
    Boot,
}

/// Waits for the end of what the child prints, which is the child's end.
fn capture(
    mut child: Child,
    prepared: &Prepared,
    show: bool,
    limit: Duration,
) -> Result<(Vec<u8>, ExitStatus), MachineError> {
    let (ended, end) = mpsc::channel();
    let pipe = child.stdout.take();
    let reader = thread::spawn(move || {
        let output = pipe.map_or_else(Vec::new, |pipe| read_all(pipe, show));
        // Nobody listens any more if patience is at its end.
        let _ = ended.send(());
        output
    });
    let patience = wait(&end, &mut BootWatch::new(prepared.log()), limit);
    if !matches!(patience, Patience::Lasted) {
        child.kill().map_err(MachineError::Start)?;
    }
    let status = child.wait().map_err(MachineError::Start)?;
    let output = reader.join().unwrap_or_default();
    match patience {
        Patience::Lasted => Ok((output, status)),
        Patience::Limit => Err(MachineError::Limit(
            limit.as_secs(),
            given_up(prepared, &output),
        )),
        Patience::Boot => Err(MachineError::Hang(given_up(prepared, &output))),
    }
}

fn wait(end: &mpsc::Receiver<()>, boot: &mut BootWatch, limit: Duration) -> Patience {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if end.recv_timeout(left.min(WATCH_INTERVAL)).is_ok() {
            return Patience::Lasted;
        }
        if left.is_zero() {
            return Patience::Limit;
        }
        if boot.hangs() {
            return Patience::Boot;
        }
    }
}

/// Reads to the end. What was read before an error counts.
fn read_all(mut pipe: impl Read, show: bool) -> Vec<u8> {
    let (mut output, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match pipe.read(&mut piece) {
            Ok(0) => return output,
            Ok(size) => {
                output.extend_from_slice(&piece[..size]);
                if show {
                    // Output that nobody wants is no reason to stop the machine.
                    let mut out = io::stdout().lock();
                    let _ = out.write_all(&piece[..size]).and_then(|()| out.flush());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return output,
        }
    }
}

fn given_up(prepared: &Prepared, output: &[u8]) -> GivenUp {
    let log = fs::read(prepared.log()).unwrap_or_default();
    GivenUp {
        output: tail(&String::from_utf8_lossy(output), TAIL_BYTES).to_owned(),
        log_path: prepared.log(),
        log: tail(&String::from_utf8_lossy(&log), TAIL_BYTES).to_owned(),
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
