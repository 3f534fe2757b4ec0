//! Commands that are as podman's: `ps` with filters, `port`, `wait`, `kill -s`, `version`.

use std::process::{Child, Stdio};

use serde_json::Value;

use super::{CLIENT, SERVER, WAITS};
use crate::base::Finding;
use crate::base::support::insula_command::{
    assert_equal, command, insula, insula_json, insula_json_lines, try_insula, wait_for,
};

const CONTAINER: &str = "waits";

pub(super) fn play() -> Result<(), Finding> {
    let server = SERVER.1;
    assert_equal(
        "a program without --",
        &insula(&["exec", server, "echo", "-n", "-e", "x"])?.as_str(),
        &"x",
    )?;
    listed()?;
    let all = insula(&["port", server])?;
    assert_equal(
        "ports",
        &all.as_str(),
        &"80/tcp -> 127.0.0.1:8080\n80/tcp -> 0.0.0.0:8082\n",
    )?;
    let one = insula(&["port", server, "80/tcp"])?;
    assert_equal("a port", &one.as_str(), &"127.0.0.1:8080\n0.0.0.0:8082\n")?;
    try_insula(&["port", server, "81"])?.refused(1, &["no port leads to port 81"])?;
    let versions = insula_json(&["version", "--json"])?;
    assert_equal(
        "revision",
        &versions["module"]["revision"],
        &versions["revision"],
    )?;
    try_insula(&["images"])?.refused(2, &["insula image ls"])?;
    is_in_the_background()?;
    container_is_signalled()?;
    node_is_waited_for()
}

fn listed() -> Result<(), Finding> {
    let filter = [
        "ps",
        "--filter",
        "name=rooted",
        "--filter",
        "status=running",
    ];
    let names = insula(&[&filter[..], &["-q"]].concat())?;
    let mut names: Vec<_> = names.lines().collect();
    names.sort_unstable();
    assert_equal("names", &names, &vec![SERVER.1, CLIENT])?;
    let labelled = insula(&["ps", "-q", "--filter", "label=tier=front"])?;
    assert_equal("the labelled one", &labelled, &format!("{}\n", SERVER.1))?;
    let format = [
        "ps",
        "-a",
        "--filter",
        "name=6.12",
        "--format",
        "{{.Names}}={{.State}}",
    ];
    let line = insula(&format)?;
    assert_equal("a line", &line, &format!("{CLIENT}=running\n"))
}

/// The program's own status is that of `wait`.
fn container_is_signalled() -> Result<(), Finding> {
    let start = ["exec", "--container", CONTAINER, "-d", SERVER.1];
    insula(&[&start[..], &["/bin/sh", "-c", WAITS]].concat())?;
    wait_for("the container's handler", || {
        Ok(insula(&["logs", CONTAINER])?
            .contains("ready")
            .then_some(()))
    })?;
    try_insula(&["kill", "-s", "HUP", SERVER.1])?.refused(1, &["no signals but KILL"])?;
    let waiting = Waiting::start(CONTAINER)?;
    insula(&["kill", "-s", "HUP", CONTAINER])?;
    waiting.tells("9\n")?;
    let again = insula(&["wait", CONTAINER])?;
    assert_equal("status of one that has ended", &again.as_str(), &"9\n")?;
    try_insula(&["kill", CONTAINER])?.refused(1, &["it does not run"])?;
    let exited = [
        "ps",
        "-q",
        "--filter",
        "state=exited",
        "--filter",
        "name=waits",
    ];
    assert_equal("exited", &insula(&exited)?.as_str(), &"waits\n")?;
    let pruned = insula(&["prune", "--filter", "name=waits"])?;
    assert_equal("what is pruned", &pruned.as_str(), &"waits\n")
}

/// A program goes on without the command that has started it, and prints into the node's log.
fn is_in_the_background() -> Result<(), Finding> {
    let script = "echo begun; sleep 1; echo $WHO >&2";
    let exec = ["exec", "-d", "-e", "WHO=alone", "-u", "0", SERVER.1];
    let printed = insula(&[&exec[..], &["/bin/sh", "-c", script]].concat())?;
    assert_equal("what it prints", &printed.as_str(), &"")?;
    for line in ["sh: begun", "sh: alone"] {
        wait_for(&format!("`{line}` in the log"), || {
            Ok(insula(&["logs", SERVER.1])?.contains(line).then_some(()))
        })?;
    }
    // One that there is not says so there.
    insula(&["exec", "-d", SERVER.1, "no-such-program"])?;
    wait_for("the reason in the log", || {
        let log = insula(&["logs", SERVER.1])?;
        let is_told = |line: &str| line.contains("no-such-program: ");
        Ok(log.lines().any(is_told).then_some(()))
    })
}

fn node_is_waited_for() -> Result<(), Finding> {
    let waiting = Waiting::start(CLIENT)?;
    insula(&["kill", CLIENT])?;
    waiting.tells("137\n")?;
    is_started_and_renamed(CLIENT)?;
    // A container ends with its node.
    let start = ["exec", "--container", CONTAINER, "-d", SERVER.1];
    insula(&[&start[..], &["/bin/sleep", "100000"]].concat())?;
    let waiting = Waiting::start(CONTAINER)?;
    insula(&["rm", "--force", SERVER.1])?;
    waiting.tells("137\n")
}

/// A node that has stopped is started again; what is in it is found by its new name.
fn is_started_and_renamed(node: &str) -> Result<(), Finding> {
    const NEW: &str = "renamed";
    for _ in 0..2 {
        insula(&["start", node])?;
        assert_equal(
            "starts",
            &insula_json(&["inspect", node])?[0]["starts"],
            &2.into(),
        )?;
    }
    let start = ["exec", "--container", CONTAINER, "-d", node];
    insula(&[&start[..], &["/bin/sleep", "100000"]].concat())?;
    for (new, why) in [
        ("base", "no node can be called"),
        (SERVER.1, "already"),
        (CONTAINER, "that of a container"),
    ] {
        try_insula(&["rename", node, new])?.refused(1, &[why])?;
    }
    try_insula(&["rename", CONTAINER, NEW])?.refused(1, &["is a container"])?;
    try_insula(&["start", CONTAINER])?.refused(1, &["runs once"])?;
    insula(&["rename", node, NEW])?;
    try_insula(&["inspect", node])?.refused(1, &["there is no node"])?;
    let place = insula_json(&["inspect", CONTAINER])?[0]["node"].clone();
    assert_equal("where the container is", &place, &NEW.into())?;
    insula(&["exec", NEW, "busybox", "true"])?;
    insula(&["rm", "--force", CONTAINER])?;
    insula(&["rename", NEW, node])?;
    let renamed = ["events", "--no-stream", "--json", node];
    let events = insula_json_lines(&renamed)?;
    let is_it = |event: &Value| event["status"] == "rename" && event["attributes"]["old"] == NEW;
    Finding::unless(events.iter().any(is_it), || format!("no event: {events:?}"))
}

/// `insula wait`, while what it waits for goes on.
struct Waiting(Child);

impl Waiting {
    /// Starts it, and sees that it has not ended when two other commands have.
    fn start(name: &str) -> Result<Self, Finding> {
        let mut child = command(&["wait", name])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        for _ in 0..2 {
            insula(&["inspect", name])?;
        }
        let ended = child.try_wait()?;
        Finding::unless(ended.is_none(), || format!("it does not wait: {ended:?}"))?;
        Ok(Self(child))
    }

    /// It ends, with this status told.
    fn tells(self, expected: &str) -> Result<(), Finding> {
        let output = self.0.wait_with_output()?;
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_equal("the status that is told", &told.as_str(), &expected)
    }
}
