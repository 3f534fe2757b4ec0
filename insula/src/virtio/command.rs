//! Commands of the base that are run and waited for, but not for ever.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long any of them may take: they only ask the kernel for something.
const LIMIT: Duration = Duration::from_secs(5);
/// How long a process that was killed may take to end.
const KILLED_LIMIT: Duration = Duration::from_secs(1);
/// How often it is looked whether one has ended.
const INTERVAL: Duration = Duration::from_millis(2);

/// Runs the command.
///
/// # Errors
/// That it cannot be run, does not end, or fails: with what it said last.
pub(super) fn run(command: &mut Command) -> io::Result<()> {
    run_within(command, LIMIT)
}

fn run_within(command: &mut Command, limit: Duration) -> io::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if !ends_within(&mut child, limit) {
        end(child);
        let text = format!("{name} did not end within {limit:?}");
        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
    }
    let status = child.wait()?;
    if status.success() {
        return Ok(());
    }
    let mut complaint = Vec::new();
    if let Some(mut stderr) = child.stderr.take() {
        // What it left running may hold its output: only what is there already is read.
        nix::fcntl::fcntl(
            &stderr,
            nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK),
        )?;
        let _ = stderr.read_to_end(&mut complaint);
    }
    let complaint = String::from_utf8_lossy(&complaint);
    Err(io::Error::other(format!("{name}: {}", complaint.trim())))
}

/// Whether it has ended before so much time has gone by.
pub(super) fn ends_within(child: &mut Child, limit: Duration) -> bool {
    let began = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if began.elapsed() > limit {
            return false;
        }
        thread::sleep(INTERVAL);
    }
    true
}

/// Ends a process by force. Whether it has ended when this returns: one that waits for its storage may
/// do so long after it was killed, and is waited for by somebody else.
pub(super) fn end(mut child: Child) -> bool {
    // It may have ended by itself. As long as nobody has waited for it, its id is nobody else's.
    let _ = child.kill();
    if ends_within(&mut child, KILLED_LIMIT) {
        return true;
    }
    // Without a thread it is waited for by nobody until this process ends.
    let _ = thread::Builder::new()
        .name("reap".into())
        .spawn(move || child.wait());
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_end_is_ended() {
        let began = Instant::now();
        let error = run_within(Command::new("sleep").arg("60"), INTERVAL).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn what_fails_is_told_in_its_own_words() {
        let failed = run(Command::new("sh").args(["-c", "echo so it is >&2; exit 1"]));
        assert_eq!(failed.unwrap_err().to_string(), "sh: so it is");
        run(&mut Command::new("true")).unwrap();
    }
}
