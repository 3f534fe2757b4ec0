//! Nodes that are created and started later, and commands that are attached to their programs.

mod created;
mod terminal;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::agent::make_programs;
use crate::base::support::insula_command::{
    assert_equal, command, insula, try_insula, wait_for, with_cleanup,
};
use crate::base::support::nodes::in_node::build_image;
use crate::base::support::virtio_modules::{SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "attach",
    proves: "nodes are created before they are started, and commands attach to their programs as with podman",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: std::time::Duration::from_secs(600),
    soak_limit: None,
    play,
};

const CONTENT: &str = "/tmp/attach-content";
const IMAGE: &str = "attach";
const NODE: &str = "web";
/// Prints what it reads, until there is no more or a signal comes.
const ECHOES: &str = "trap 'echo caught; exit 9' TERM; echo ready; \
                      while read line; do echo got $line; echo of $line >&2; done; echo no more; exit 4";
/// Reacts to nothing.
const IGNORES: &str = "trap '' INT; exec sleep 100000";
/// What a shell says of a program that SIGKILL has ended.
const KILLED: i32 = 137;

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    make_programs(CONTENT)?;
    let played = with_cleanup(|| {
        build_image(context, IMAGE, "6.12", &["--content", CONTENT])?;
        created::is_started_later()?;
        streams()?;
        signals()?;
        node_ends()?;
        is_left()?;
        terminal::is_detached_from()?;
        in_the_foreground()?;
        without_a_program()
    });
    fs::remove_dir_all(CONTENT)?;
    played?;
    unload(&SOCKET_MODULES)
}

/// The options of a node whose program is this script.
fn options<'a>(name: &'a str, more: &[&'a str], script: &'a str) -> Vec<&'a str> {
    let node = ["--image", IMAGE, "--name", name, "--memory", "128M"];
    [&node, more, &["--", "/bin/sh", "-c", script]].concat()
}

/// An attached command.
struct Attached {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Attached {
    fn start(words: &[&str]) -> Result<Self, Finding> {
        let mut child = command(&[&["attach"], words].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take();
        let output = output.ok_or_else(|| Finding::new("no output"))?;
        Ok(Self {
            input: child.stdin.take(),
            output: BufReader::new(output),
            child,
        })
    }

    /// Sends lines until the program answers: it may be attached only then.
    fn says(&mut self, line: &str) -> Result<(), Finding> {
        if let Some(input) = &mut self.input {
            writeln!(input, "{line}")?;
        }
        self.sees(&format!("got {line}"))
    }

    /// Reads lines up to this one.
    fn sees(&mut self, wanted: &str) -> Result<(), Finding> {
        let mut seen = String::new();
        while self.output.read_line(&mut seen)? > 0 {
            if seen.lines().last() == Some(wanted) {
                return Ok(());
            }
        }
        let mut errors = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            stderr.read_to_string(&mut errors)?;
        }
        Err(Finding::new(format!("no `{wanted}` in {seen:?}; {errors}")))
    }

    fn signal(&self, signal: Signal) -> Result<(), Finding> {
        Ok(kill(Pid::from_raw(self.child.id().try_into()?), signal)?)
    }

    fn has_ended(&mut self) -> Result<bool, Finding> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Ends its input, then waits for its end.
    fn end(mut self) -> Result<ExitStatus, Finding> {
        drop(self.input.take());
        let ended = wait_for("an attached command to end", || {
            Ok(self.child.try_wait()?)
        });
        if ended.is_err() {
            self.child.kill()?;
        }
        ended
    }

    fn ends_with(self, status: i32) -> Result<(), Finding> {
        assert_equal("its status", &self.end()?.code(), &Some(status))
    }
}

/// Two commands see the same, one is left behind, and the end of input reaches the program.
fn streams() -> Result<(), Finding> {
    let mut first = Attached::start(&[NODE])?;
    first.says("one")?;
    let mut second = Attached::start(&["--no-stdin", "--sig-proxy=false", NODE])?;
    // It may be attached only after some of that.
    wait_for("the second command to be attached", || {
        first.says("again")?;
        let attached = insula(&["exec", NODE, "--", "busybox", "netstat", "-nxa"])?;
        let is_connected =
            |line: &&str| line.contains("CONNECTED") && line.contains("@insula-main-program");
        Ok((attached.lines().filter(is_connected).count() == 2).then_some(()))
    })?;
    first.says("two")?;
    second.sees("got two")?;
    second.signal(Signal::SIGTERM)?;
    assert_equal("how it has ended", &second.end()?.code(), &None)?;
    first.says("three")?;
    for line in ["sh: ready", "sh: got one", "sh: of three"] {
        wait_for(&format!("`{line}` in the log"), || {
            Ok(insula(&["logs", NODE])?.contains(line).then_some(()))
        })?;
    }
    drop(first.input.take());
    first.sees("no more")?;
    first.ends_with(4)?;
    is_stopped(NODE, "power-off")
}

/// Waits until a node has stopped for this reason.
fn is_stopped(node: &str, reason: &str) -> Result<(), Finding> {
    wait_for(&format!("{node} to stop"), || {
        let states = ["ps", "-a", "--filter", "state=stopped"];
        let listed = insula(&[&states[..], &["--filter", &format!("name={node}")]].concat())?;
        Ok(listed.contains(reason).then_some(()))
    })
}

/// A signal is passed on, also when the node is told to stop.
fn signals() -> Result<(), Finding> {
    for by_node in [false, true] {
        insula(&["start", NODE])?;
        let mut attached = Attached::start(&[NODE])?;
        attached.says("one")?;
        match by_node {
            true => drop(insula(&["stop", NODE])?),
            false => attached.signal(Signal::SIGTERM)?,
        }
        attached.sees("caught")?;
        attached.ends_with(9)?;
        is_stopped(NODE, "power-off")?;
    }
    Ok(())
}

/// A node that is killed ends what is attached to it.
fn node_ends() -> Result<(), Finding> {
    insula(&["start", NODE])?;
    let mut attached = Attached::start(&[NODE])?;
    attached.says("one")?;
    insula(&["kill", NODE])?;
    attached.ends_with(KILLED)?;
    try_insula(&["attach", NODE])?.refused(125, &["is not running"])?;
    insula(&["rm", NODE]).map(drop)
}

/// A program that does not react, as in a node that hangs, can be left.
fn is_left() -> Result<(), Finding> {
    insula(
        &[
            &["run", "-d"],
            &options("deaf", &["--interactive"], IGNORES)[..],
        ]
        .concat(),
    )?;
    insula(&["exec", "deaf", "--", "busybox", "true"])?;
    let mut attached = Attached::start(&["deaf"])?;
    wait_for("the command to leave its program", || {
        attached.signal(Signal::SIGINT)?;
        Ok(attached.has_ended()?.then_some(()))
    })?;
    let (status, _) = crate::base::support::nodes::in_node::script("deaf", "pidof sleep")?;
    assert_equal("whether the program goes on", &status, &0)?;
    insula(&["rm", "--force", "deaf"]).map(drop)
}

/// `insula run -i` is attached from the program's beginning, and ends with it.
fn in_the_foreground() -> Result<(), Finding> {
    let run = ["run", "-i", "--rm", "--memory", "128M", "--name", "front"];
    let script = "echo first; cat; echo last >&2; exit 6";
    let mut command = command(&[&run[..], &[IMAGE, "/bin/sh", "-c", script]].concat());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        writeln!(input, "its input")?;
    }
    let ended = child.wait_with_output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (output, errors) = (text(&ended.stdout), text(&ended.stderr));
    assert_equal("its output", &output.as_str(), &"first\nits input\n")?;
    assert_equal("its errors", &errors.as_str(), &"last\n")?;
    assert_equal("its status", &ended.status.code(), &Some(6))?;
    wait_for("the node to be removed", || {
        let listed = insula(&["ps", "-a", "--quiet"])?;
        Ok((!listed.contains("front")).then_some(()))
    })
}

/// A node without a program has a console; one of the lightweight kernel has nothing of its own.
fn without_a_program() -> Result<(), Finding> {
    insula(&[
        "run", "--image", IMAGE, "--name", "plain", "--memory", "128M",
    ])?;
    let mut attached = Attached::start(&["plain"])?;
    if let Some(input) = &mut attached.input {
        writeln!(input, "exit 5")?;
    }
    attached.ends_with(5)?;
    insula(&["rm", "--force", "plain"])?;
    insula(&[
        "run", "--image", "lwk", "--name", "quiet", "--memory", "64M",
    ])?;
    try_insula(&["attach", "quiet"])?.refused(125, &["lightweight kernel", "insula exec quiet"])?;
    insula(&["rm", "--force", "quiet"]).map(drop)
}
