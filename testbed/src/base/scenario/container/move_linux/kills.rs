//! A party of a move is killed at a random moment, again and again: the container answers in exactly
//! one node, with all that it had.

use std::io::{BufRead, BufReader};
use std::process::{Child, Output};
use std::thread;
use std::time::{Duration, Instant};

use super::failures::piped;
use super::streams::Streams;
use super::{NAME, inspected, runs_on};
use crate::base::support::insula_command::{command, insula, text, wait_for};
use crate::base::{Context, Finding};

/// Both nodes, by their names.
const NODES: [&str; 2] = super::NODES;
/// Kills the first CRIU of a node a while after it was started; its argument is the while in
/// milliseconds. It may be that none is started.
const KILL_CRIU: &str = r#"
import glob, os, signal, sys, time
def criu():
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            words = open(path, "rb").read().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"/ld.so") and b"--images-dir" in words:
            return int(path.split("/")[2])
print("ready", flush=True)
end = time.monotonic() + 20
while time.monotonic() < end:
    if pid := criu():
        time.sleep(int(sys.argv[1]) / 1000)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        break
    time.sleep(0.002)
"#;

/// Who is killed.
#[derive(Clone, Copy, Debug)]
enum Party {
    Command,
    CriuOfSource,
    CriuOfTarget,
    Target,
}

impl Party {
    /// The part of a move in which it is killed. A target is killed before it has the container, which
    /// would end with it.
    fn part(self) -> f64 {
        match self {
            Self::Command => 1.0,
            Self::CriuOfSource | Self::CriuOfTarget => 0.3,
            Self::Target => 0.6,
        }
    }
}

const PARTIES: [Party; 4] = [
    Party::Command,
    Party::CriuOfSource,
    Party::CriuOfTarget,
    Party::Target,
];

pub(super) fn play(address: &str, context: &Context, streams: &Streams) -> Result<(), Finding> {
    // In a long run only: connections have been seen to stand still for 90 s and more after the command
    // was killed, and it is not known yet why.
    let count = context.count(0, 200);
    if count == 0 {
        return Ok(());
    }
    let seed = fastrand::u64(..);
    println!("{count} kills with the seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut at = text(&inspected()?["node"]);
    let mut usual = unharmed(&mut at)?;
    let mut moved = 0;
    for number in 0..count {
        let party = PARTIES[number as usize % PARTIES.len()];
        let source = at.clone();
        let target = other(&source);
        let after = usual.mul_f64(random.f64() * party.part());
        let output = killed(party, &source, target, after)?;
        at = where_it_runs(&output)?;
        let what =
            format!("kill {number} ({party:?} after {after:?}; it is on {at}, was on {source})");
        let release = context.release(&at)?;
        let goes_on = runs_on(address, &at, &release, streams);
        goes_on.map_err(|error| error.when(&format!("{what}; {}", told(&output))))?;
        println!("{what}: {}", told(&output));
        moved += u64::from(at != source);
        usual = unharmed(&mut at)?;
    }
    if at != NODES[0] {
        unharmed(&mut at)?;
    }
    println!("{moved} of {count} moves were made in spite of a kill");
    Ok(())
}

/// The node on which it runs, once its agents know that the move has ended.
fn where_it_runs(output: &Output) -> Result<String, Finding> {
    let found = wait_for("it to run", || {
        let found = inspected()?;
        Ok((text(&found["state"]) == "running").then_some(found))
    });
    let found = found.map_err(|error| error.when(&told(output)))?;
    Ok(text(&found["node"]))
}

fn other(node: &str) -> &'static str {
    NODES[usize::from(node == NODES[0])]
}

/// Moves it, and returns how long that took.
fn unharmed(at: &mut String) -> Result<Duration, Finding> {
    let target = other(at);
    let began = Instant::now();
    insula(&["move", NAME, target])?;
    target.clone_into(at);
    Ok(began.elapsed())
}

/// Begins a move and kills a party of it. Returns what the command has told.
fn killed(party: Party, source: &str, target: &str, after: Duration) -> Result<Output, Finding> {
    let killer = match party {
        Party::CriuOfSource => Some(kill_criu(source, after)?),
        Party::CriuOfTarget => Some(kill_criu(target, after)?),
        Party::Command | Party::Target => None,
    };
    let mut moving = piped(command(&["move", NAME, target]))?;
    if killer.is_none() {
        // The moment that is drawn: nothing is waited for.
        thread::sleep(after);
    }
    match party {
        Party::Command => moving.kill()?,
        Party::Target => insula(&["kill", target]).map(drop)?,
        Party::CriuOfSource | Party::CriuOfTarget => {}
    }
    let output = moving.wait_with_output()?;
    if let Some(mut killer) = killer {
        killer.kill()?;
        killer.wait()?;
    }
    if matches!(party, Party::Target) {
        restart(target)?;
    }
    Ok(output)
}

/// Starts a killed target again, and waits for its agent.
fn restart(target: &str) -> Result<(), Finding> {
    insula(&["restart", target])?;
    insula(&["exec", target, "--", "true"]).map(drop)
}

/// Has CRIU killed in a node, a part of the time after it has begun.
fn kill_criu(node: &str, after: Duration) -> Result<Child, Finding> {
    let ms = after.as_millis().to_string();
    let mut killer = piped(command(&[
        "exec", node, "--", "python3", "-c", KILL_CRIU, &ms,
    ]))?;
    let mut line = String::new();
    let output = killer.stdout.as_mut();
    output.map_or(Ok(0), |output| BufReader::new(output).read_line(&mut line))?;
    Finding::unless(line == "ready\n", || {
        format!("who kills CRIU says `{line}`")
    })?;
    Ok(killer)
}

fn told(output: &Output) -> String {
    let told = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&told).trim().replace('\n', "; ")
}
