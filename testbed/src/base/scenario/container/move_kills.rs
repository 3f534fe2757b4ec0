//! A party of a move is killed at a random moment, again and again: the command, an agent, a CRIU, a node.
//! Each time the container answers in exactly one node, with all that it had, or was lost with its node, which
//! is told; nothing else is left of it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Output};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::move_linux::failures::piped;
use super::move_linux::streams::Streams;
use super::move_linux::{NAME, build_image, has_none, run_node, runs_on, start_server};
use crate::base::support::insula_command::{
    assert_equal, command, insula, text, try_insula, wait_at_most, wait_for, with_cleanup,
};
use crate::base::support::virtio_modules::{NETWORK_MODULES, SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::machine::Emulator;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "move_kills",
    proves: "a container is whole, and in one place, after any party of its move was killed",
    machine: Shape {
        emulator: Emulator::Backports,
        thread_per_core: true,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[],
    limit: Duration::from_secs(3000),
    soak_limit: Some(Duration::from_secs(6 * 3600)),
    play,
};

/// Both nodes, by their kernels' versions.
const NODES: [&str; 2] = ["6.1", "6.12"];
/// Connections that live as long as the container.
const CONNECTIONS: usize = 4;
/// Within what time it is known where the container is: a server of an agent that was killed is started again,
/// and waits for a CRIU that its predecessor has started.
const SETTLED_TIMEOUT: Duration = Duration::from_secs(180);
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
/// Kills the server of a node's agent after a while in milliseconds.
const KILL_AGENT: &str = r#"
import os, signal, sys, time
server = os.getppid()
print("ready", flush=True)
time.sleep(int(sys.argv[1]) / 1000)
os.kill(server, signal.SIGKILL)
"#;

/// What is told when CRIU was killed amid a dump.
const MAY_FAIL: &str = "they may fail";

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Party {
    Command,
    AgentOfSource,
    AgentOfTarget,
    CriuOfSource,
    CriuOfTarget,
    Source,
    Target,
}

const PARTIES: [Party; 7] = [
    Party::Command,
    Party::AgentOfSource,
    Party::AgentOfTarget,
    Party::CriuOfSource,
    Party::CriuOfTarget,
    Party::Source,
    Party::Target,
];

impl Party {
    /// The part of a move in which it is killed. That of CRIU begins with CRIU.
    fn part(self) -> f64 {
        match self {
            Self::CriuOfSource | Self::CriuOfTarget => 0.4,
            _ => 1.0,
        }
    }
}

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    with_cleanup(|| played(context))?;
    unload(&[&NETWORK_MODULES[..], &SOCKET_MODULES].concat())
}

fn played(context: &Context) -> Result<(), Finding> {
    for version in NODES {
        run_node(version, &build_image(context, version)?)?;
    }
    let count = context.count(7, 200);
    let seed = fastrand::u64(..);
    println!("{count} kills with the seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut server = Server::start(NODES[0])?;
    let mut outcomes = Outcomes::default();
    for number in 0..count {
        let usual = server.moves()?;
        let party = PARTIES[number as usize % PARTIES.len()];
        let after = usual.mul_f64(random.f64() * party.part());
        let what = format!("kill {number}, {party:?} after {after:?}");
        let output = server.killed(party, after)?;
        println!("{what}: {}", told(&output));
        let may_fail = told(&output).contains(MAY_FAIL);
        let goes_on = server.goes_on(context, (party, may_fail), &mut outcomes);
        let when = |error: Finding| error.when(&format!("{what} ({})", told(&output)));
        server = goes_on.map_err(when)?;
    }
    println!("of {count}: {outcomes:?}");
    server.streams.end()?;
    insula(&["rm", "--force", NAME])?;
    NODES
        .iter()
        .try_for_each(|node| insula(&["rm", "--force", node]).map(drop))
}

/// What the kills have led to.
#[derive(Debug, Default)]
struct Outcomes {
    moved: u32,
    stayed: u32,
    lost_with_its_node: u32,
    /// CRIU was killed while it executed code of its own in the program, which has ended, as was told.
    damaged: u32,
}

/// The container, and its clients.
struct Server {
    at: &'static str,
    address: String,
    streams: Streams,
}

impl Server {
    fn start(at: &'static str) -> Result<Self, Finding> {
        let address = start_server(at, &[])?;
        let streams = Streams::start(&address, CONNECTIONS)?;
        Ok(Self {
            at,
            address,
            streams,
        })
    }

    fn target(&self) -> &'static str {
        NODES[usize::from(self.at == NODES[0])]
    }

    /// Moves it, and returns how long that took.
    fn moves(&mut self) -> Result<Duration, Finding> {
        let target = self.target();
        let began = Instant::now();
        insula(&["move", NAME, target])?;
        self.at = target;
        Ok(began.elapsed())
    }

    /// Begins a move and kills a party of it. Returns what the command has told.
    fn killed(&self, party: Party, after: Duration) -> Result<Output, Finding> {
        let (source, target) = (self.at, self.target());
        let killer = match party {
            Party::AgentOfSource => Some(killer(source, KILL_AGENT, after)?),
            Party::AgentOfTarget => Some(killer(target, KILL_AGENT, after)?),
            Party::CriuOfSource => Some(killer(source, KILL_CRIU, after)?),
            Party::CriuOfTarget => Some(killer(target, KILL_CRIU, after)?),
            Party::Command | Party::Source | Party::Target => None,
        };
        let mut moving = piped(command(&["move", NAME, target]))?;
        if killer.is_none() {
            // The moment that is drawn: nothing is waited for.
            thread::sleep(after);
        }
        match party {
            Party::Command => moving.kill()?,
            Party::Source => insula(&["kill", source]).map(drop)?,
            Party::Target => insula(&["kill", target]).map(drop)?,
            _ => {}
        }
        let output = moving.wait_with_output()?;
        if let Some(mut killer) = killer {
            killer.kill()?;
            killer.wait()?;
        }
        Ok(output)
    }

    /// It goes on in one node, or was lost with the one that was killed.
    fn goes_on(
        self,
        context: &Context,
        (party, may_fail): (Party, bool),
        outcomes: &mut Outcomes,
    ) -> Result<Self, Finding> {
        let killed = match party {
            Party::Source => Some(self.at),
            Party::Target => Some(self.target()),
            _ => None,
        };
        let found = settled()?;
        let node = NODES.into_iter().find(|node| found["node"] == **node);
        let at = node.ok_or_else(|| Finding::new(format!("it is on {}", found["node"])))?;
        if let Some(node) = killed {
            restart(node)?;
        }
        nothing_is_held()?;
        if killed == Some(at) {
            outcomes.lost_with_its_node += 1;
            return lost(&found, at);
        }
        let release = context.release(at)?;
        let runs = assert_equal("its state", &text(&found["state"]), &"running".to_owned())
            .and_then(|()| runs_on(&self.address, at, &release, &self.streams));
        match runs {
            // By CRIU's code in it; connections are given back.
            Err(error) if may_fail && has_ended()? => {
                println!("it has failed: {error}");
                outcomes.damaged += 1;
                insula(&["rm", "--force", NAME])?;
                NODES.iter().try_for_each(|node| has_none(node))?;
                return Self::start(at);
            }
            runs => runs?,
        }
        *match at == self.at {
            true => &mut outcomes.stayed,
            false => &mut outcomes.moved,
        } += 1;
        Ok(Self { at, ..self })
    }
}

/// Whether the program has ended, and not since it could not use its connections.
fn has_ended() -> Result<bool, Finding> {
    let state = text(&settled()?["state"]);
    Ok(state == "exited" && !insula(&["logs", NAME])?.contains("PermissionError"))
}

/// The container, once it runs or has ended.
fn settled() -> Result<Value, Finding> {
    wait_at_most(SETTLED_TIMEOUT, "it to be settled where it is", || {
        // It cannot be told while an agent is started again.
        let Ok(found) = try_insula(&["inspect", NAME])?.succeeded() else {
            return Ok(None);
        };
        let found: Value = serde_json::from_str(&found)?;
        let state = text(&found[0]["state"]);
        let is_settled = ["running", "exited"].contains(&state.as_str());
        Ok(is_settled.then(|| found[0].clone()))
    })
}

/// It has ended with its node, which was started again; another one takes its place, for it has left nothing.
fn lost(found: &Value, at: &'static str) -> Result<Server, Finding> {
    assert_equal("its state", &text(&found["state"]), &"exited".to_owned())?;
    assert_equal("its status", &found["exit_code"], &Value::Null)?;
    insula(&["rm", NAME])?;
    NODES.iter().try_for_each(|node| has_none(node))?;
    Server::start(at)
}

/// Starts a killed node again, and waits for its agent.
fn restart(node: &str) -> Result<(), Finding> {
    insula(&["restart", node])?;
    insula(&["exec", node, "--", "true"]).map(drop)
}

/// The base has no device any more by which packets are held.
fn nothing_is_held() -> Result<(), Finding> {
    wait_for("all packets to be sent on", || {
        let mut held = false;
        for device in fs::read_dir("/sys/class/net")? {
            held |= device?
                .file_name()
                .to_string_lossy()
                .starts_with("insula-h");
        }
        Ok((!held).then_some(()))
    })
}

/// Starts a script in a node that kills somebody after that time.
fn killer(node: &str, script: &str, after: Duration) -> Result<Child, Finding> {
    let ms = after.as_millis().to_string();
    let mut killer = piped(command(&["exec", node, "--", "python3", "-c", script, &ms]))?;
    let mut line = String::new();
    let output = killer.stdout.as_mut();
    output.map_or(Ok(0), |output| BufReader::new(output).read_line(&mut line))?;
    Finding::unless(line == "ready\n", || format!("who kills says `{line}`"))?;
    Ok(killer)
}

fn told(output: &Output) -> String {
    let told = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&told).trim().replace('\n', "; ")
}
