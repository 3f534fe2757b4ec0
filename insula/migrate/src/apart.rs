//! Does a move in a process of its own: a process that is half moved would be lost with the one that
//! moves it. That one outlives the command, also if the command is killed, and takes no signals.

#![allow(unsafe_code, reason = "fork has no safe form")]

use std::fs;
use std::io::{self, PipeWriter, Read, Write};

use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork, setsid};

use crate::failure::Failure;
use crate::stopped::NotStopped;

/// `oom_score_adj` of a process that is never killed for lack of memory.
const NEVER: &str = "-1000";

/// How a move has ended, as it is told by the process that has done it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// So many threads were moved.
    Moved(usize),
    /// The process goes on where it was, for this reason.
    Not(String),
    /// It was killed, for this reason.
    Lost(String),
}

/// Does a move, and waits for its end. This process must be single-threaded.
pub(crate) fn done_apart(
    move_it: impl FnOnce() -> Result<usize, NotStopped>,
) -> Result<Ended, Failure> {
    let failed = |error: io::Error| Failure::new("making a process that moves it", errno(&error));
    let (mut told, teller) = io::pipe().map_err(failed)?;
    // SAFETY: this process is single-threaded, so the child can do all that it could.
    match unsafe { fork() }.map_err(|error| failed(error.into()))? {
        ForkResult::Child => {
            drop(told);
            child(move_it, teller);
        }
        ForkResult::Parent { child } => {
            drop(teller);
            let mut text = Vec::new();
            // At an error it has told nothing.
            let _ = told.read_to_end(&mut text);
            let _ = waitpid(child, None);
            Ok(Ended::read(&text))
        }
    }
}

/// The process that moves another.
fn child(move_it: impl FnOnce() -> Result<usize, NotStopped>, mut teller: PipeWriter) -> ! {
    let _ = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
    // The terminal's signals, and those to the command's group, are not for it.
    let _ = setsid();
    // Without the right to it, it is as others.
    let _ = fs::write("/proc/self/oom_score_adj", NEVER);
    let ended = Ended::of(move_it());
    // The command may have been killed: then nobody wants to know.
    let _ = teller.write_all(&ended.text());
    std::process::exit(0);
}

fn errno(error: &io::Error) -> nix::errno::Errno {
    nix::errno::Errno::from_raw(error.raw_os_error().unwrap_or_default())
}

impl Ended {
    fn of(moved: Result<usize, NotStopped>) -> Self {
        match moved {
            Ok(threads) => Self::Moved(threads),
            Err(NotStopped::Failed(failure)) => Self::Not(failure.to_string()),
            Err(NotStopped::Obstacle(obstacle)) => Self::Not(obstacle.to_string()),
            Err(NotStopped::Lost(failure)) => Self::Lost(failure.to_string()),
        }
    }

    fn text(&self) -> Vec<u8> {
        match self {
            Self::Moved(threads) => format!("M{threads}"),
            Self::Not(why) => format!("N{why}"),
            Self::Lost(why) => format!("L{why}"),
        }
        .into_bytes()
    }

    fn read(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        match text.split_at_checked(1) {
            Some(("M", threads)) if threads.parse::<usize>().is_ok() => {
                Self::Moved(threads.parse().unwrap_or_default())
            }
            Some(("N", why)) => Self::Not(why.to_owned()),
            Some(("L", why)) => Self::Lost(why.to_owned()),
            _ => Self::Lost("the process that moves it was killed".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told() {
        for ended in [
            Ended::Moved(17),
            Ended::Not("it is stopped".into()),
            Ended::Lost("why".into()),
        ] {
            assert_eq!(Ended::read(&ended.text()), ended);
        }
        for silent in ["", "M", "Mx"] {
            assert!(matches!(Ended::read(silent.as_bytes()), Ended::Lost(_)));
        }
    }
}
