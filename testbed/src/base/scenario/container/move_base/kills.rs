//! A party of a move between the base and a node is killed at a random moment, again and again: each time the
//! container is in one of both, with all its connections.

use std::path::Path;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use super::{BASE, FREEZE, NODE, agents, processes};
use crate::base::Finding;
use crate::base::scenario::container::move_linux::failures::piped;
use crate::base::scenario::container::move_linux::{NAME, has_none, inspected};
use crate::base::support::insula_command::{command, insula, text, try_insula, wait_for};

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Party {
    Command,
    AgentOfBase,
    AgentOfNode,
    /// Only when it restores: of a dump the program may not survive it.
    CriuOfBase,
}

const PARTIES: [Party; 4] = [
    Party::Command,
    Party::AgentOfBase,
    Party::AgentOfNode,
    Party::CriuOfBase,
];

/// Kills so many times. `serves` checks that the container serves where it is.
pub(super) fn play(
    count: u64,
    serves: impl Fn(&str) -> Result<(), Finding>,
) -> Result<(), Finding> {
    let seed = fastrand::u64(..);
    println!("{count} kills with the seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut moved = 0;
    for number in 0..count {
        let usual = moves()?;
        let at = place()?;
        let to = if at == BASE { NODE } else { BASE };
        let party = PARTIES[number as usize % PARTIES.len()];
        let after = usual.mul_f64(random.f64());
        let what = format!("kill {number}, from {at}, {party:?} after {after:?}");
        killed(party, to, after)?;
        settled(&serves, &mut moved, &at).map_err(|error| error.when(&what))?;
    }
    println!("of {count} kills {moved} came after the move");
    Ok(())
}

fn place() -> Result<String, Finding> {
    Ok(text(&inspected()?["node"]))
}

/// Moves it to the other place. Returns how long that takes.
fn moves() -> Result<Duration, Finding> {
    let began = Instant::now();
    let to = if place()? == BASE { NODE } else { BASE };
    insula(&["move", NAME, to])?;
    Ok(began.elapsed())
}

/// Begins a move, and kills a party of it.
fn killed(party: Party, to: &str, after: Duration) -> Result<(), Finding> {
    let mut moving = piped(command(&["move", NAME, to]))?;
    // The moment that is drawn: nothing is waited for.
    thread::sleep(after);
    kill_party(party, to, &mut moving)?;
    moving.wait()?;
    Ok(())
}

fn kill_party(party: Party, to: &str, moving: &mut Child) -> Result<(), Finding> {
    let found = match party {
        Party::Command => {
            moving.kill()?;
            Vec::new()
        }
        Party::AgentOfNode => {
            // Its parent is the server, with which it ends.
            let words = ["exec", NODE, "--", "sh", "-c", "kill -9 $PPID"];
            try_insula(&words).map(drop)?;
            Vec::new()
        }
        Party::AgentOfBase => agents("serve-base")?,
        Party::CriuOfBase if to == BASE => {
            processes(|words| words.contains(&&b"--images-dir"[..]))?
        }
        Party::CriuOfBase => Vec::new(),
    };
    for pid in found {
        // It may have ended.
        let _ = kill(pid, Signal::SIGKILL);
    }
    Ok(())
}

/// It is in one place, and serves there.
fn settled(
    serves: impl Fn(&str) -> Result<(), Finding>,
    moved: &mut u32,
    from: &str,
) -> Result<(), Finding> {
    let at = wait_for("it to be settled where it is", || {
        // It cannot be told while an agent is started again.
        let Ok(found) = inspected() else {
            return Ok(None);
        };
        Ok((found["state"] == "running").then(|| text(&found["node"])))
    })?;
    *moved += u32::from(at != from);
    serves(&at)?;
    match at == BASE {
        true => has_none(NODE),
        false => wait_for("the base to have nothing of it", || {
            Ok((!Path::new(FREEZE).exists()).then_some(()))
        }),
    }
}
