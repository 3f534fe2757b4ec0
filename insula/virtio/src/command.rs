//! Running commands of the base with a timeout.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Timeout of a command while a node's driver waits; each only makes a request to the kernel.
pub(super) const DRIVER_WAITS: Duration = Duration::from_secs(5);
/// Time a killed process gets to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval at which an exit is polled.
const INTERVAL: Duration = Duration::from_millis(2);

/// Runs the command to its end.
///
/// # Errors
/// It cannot be run, does not exit in time, or fails (with its standard error).
pub(super) fn run(command: &mut Command, limit: Duration) -> io::Result<()> {
    run_within(command.stdout(Stdio::null()), limit).map(drop)
}

/// Runs the command to its end, and returns its standard output: as much as a pipe holds.
///
/// # Errors
/// As [`run`].
pub(super) fn output(command: &mut Command, limit: Duration) -> io::Result<Vec<u8>> {
    let mut child = run_within(command.stdout(Stdio::piped()), limit)?;
    read_left(child.stdout.take())
}

fn run_within(command: &mut Command, limit: Duration) -> io::Result<Child> {
    let name = command.get_program().to_string_lossy().into_owned();
    let command = command.stdin(Stdio::null()).stderr(Stdio::piped());
    let spawned = command.spawn();
    let mut child = spawned.map_err(|error| named(&name, error))?;
    if !exits_within(&mut child, limit) {
        kill(child);
        let text = format!("{name} did not end within {limit:?}");
        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
    }
    let status = child.wait()?;
    if status.success() {
        return Ok(child);
    }
    let message = read_left(child.stderr.take())?;
    let message = String::from_utf8_lossy(&message);
    Err(io::Error::other(format!("{name}: {}", message.trim())))
}

fn named(name: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{name}: {error}"))
}

/// What is in a pipe.
fn read_left(pipe: Option<impl Read + AsFd>) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    if let Some(mut pipe) = pipe {
        // A child that it left running may hold the pipe open: do not wait for end of file.
        let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
        nix::fcntl::fcntl(&pipe, flags)?;
        let _ = pipe.read_to_end(&mut read);
    }
    Ok(read)
}

/// Waits for its exit; false after `limit`.
pub(super) fn exits_within(child: &mut Child, limit: Duration) -> bool {
    let began = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if began.elapsed() > limit {
            return false;
        }
        thread::sleep(INTERVAL);
    }
    true
}

/// Kills a process. Returns whether it has exited: one that waits for storage may exit much later,
/// and a thread reaps it then.
pub(super) fn kill(mut child: Child) -> bool {
    // It may have exited already. Until it is reaped, its id is not reused.
    let _ = child.kill();
    if exits_within(&mut child, KILL_TIMEOUT) {
        return true;
    }
    // If there is no thread, it stays a zombie until this process exits.
    let _ = thread::Builder::new()
        .name("reap".into())
        .spawn(move || child.wait());
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_command_that_does_not_end_is_killed() {
        let began = Instant::now();
        let error = run_within(Command::new("sleep").arg("60"), INTERVAL).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn output_is_returned() {
        let read = output(Command::new("sh").args(["-c", "echo so it is"]), LIMIT);
        assert_eq!(read.unwrap(), b"so it is\n");
        let missing = run(&mut Command::new("/no/such/command"), LIMIT).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(missing.to_string().starts_with("/no/such/command: "));
    }

    #[test]
    fn a_failure_carries_the_commands_standard_error() {
        let failed = run(
            Command::new("sh").args(["-c", "echo so it is >&2; exit 1"]),
            LIMIT,
        );
        assert_eq!(failed.unwrap_err().to_string(), "sh: so it is");
        run(&mut Command::new("true"), LIMIT).unwrap();
    }
}
