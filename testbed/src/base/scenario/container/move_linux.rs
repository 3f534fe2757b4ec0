//! Servers with live connections move from one Linux node to another and back: between Debian's 6.1
//! and 6.12, with failures that leave them where they were.

mod checks;
pub(super) mod failures;
pub(super) mod state;
pub(super) mod streams;
pub(super) mod web;

use serde_json::Value;

use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, text, try_insula, wait_for, with_cleanup,
};
use crate::base::support::virtio_modules::{NETWORK_MODULES, SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;
use crate::host::payload::equipment::{CRIU_PATH, MODULES_PATH};
use streams::Streams;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "move_linux",
    proves: "a container moves between Linux nodes with its connections, or stays where it was",
    machine: Shape {
        emulator: Emulator::Backports,
        thread_per_core: true,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: std::time::Duration::from_secs(1500),
    soak_limit: Some(std::time::Duration::from_secs(4 * 3600)),
    play,
};

/// The nodes, by their kernels' versions.
const NODES: [&str; 2] = ["6.1", "6.12"];
/// The container.
pub(super) const NAME: &str = "shop";
/// Connections that live throughout.
const CONNECTIONS: usize = 10;
/// Moves there and back, in a long run.
const ROUNDS: u64 = 100;
/// Status with which the server ends when it is asked to.
const STATUS: u8 = 7;
/// Echoes what its clients send. Each new client is logged, with the kernel that runs it.
const SERVER: &str = r#"
import os, selectors, signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
door = socket.create_server(("", 80), backlog=64)
kept = open("/tmp/kept", "w+")
kept.write("kept in memory")
kept.flush()
os.unlink("/tmp/kept")
chosen = selectors.DefaultSelector()
chosen.register(door, selectors.EVENT_READ)
print("ready", flush=True)
while True:
    for key, _ in chosen.select():
        if key.fileobj is door:
            peer, _ = door.accept()
            chosen.register(peer, selectors.EVENT_READ)
            kept.seek(0)
            print(os.getpid(), socket.gethostname(), os.uname().release, kept.read(), flush=True)
        elif some := key.fileobj.recv(65536):
            key.fileobj.sendall(some)
        else:
            chosen.unregister(key.fileobj)
            key.fileobj.close()
"#;

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    web::prepare()?;
    let played = with_cleanup(|| played(context));
    web::clean_up()?;
    played?;
    unload(&[&NETWORK_MODULES[..], &SOCKET_MODULES].concat())
}

fn played(context: &Context) -> Result<(), Finding> {
    for version in NODES {
        start_node(context, version)?;
    }
    state::play("6.1", "6.12", context)?;
    // `upgrade` moves nginx in every run.
    if context.select(false, true) {
        web::play()?;
    }
    let start = [
        "exec",
        "--container",
        NAME,
        "-d",
        "6.1",
        "--",
        "python3",
        "-c",
        SERVER,
    ];
    insula(&start)?;
    logged("ready")?;
    refusals(&start)?;
    checks::play("6.1", "6.12")?;
    let address = text(&inspected()?["address"]);
    let streams = Streams::start(&address, CONNECTIONS)?;
    for round in 0..context.count(1, ROUNDS) {
        for (to, release) in [
            ("6.12", context.release("6.12")?),
            ("6.1", context.release("6.1")?),
        ] {
            insula(&["move", "--check", NAME, to])?;
            let told = insula(&["move", NAME, to])?;
            println!("round {round}: {}", told.trim_end());
            // Some are always on their way.
            Finding::unless(!told.contains(" 0 packets held"), || told.clone())?;
            runs_on(&address, to, &release, &streams)?;
        }
    }
    failures::play(&address, context, &streams)?;
    println!(
        "longest pause of a connection: {} ms",
        streams.longest_pause_ms()
    );
    streams.end()?;
    ends()
}

fn start_node(context: &Context, version: &str) -> Result<(), Finding> {
    let image = build_image(context, version)?;
    run_node(version, &image)
}

/// Builds an image of that kernel with CRIU. Returns its name.
pub(super) fn build_image(context: &Context, version: &str) -> Result<String, Finding> {
    let release = context.release(version)?;
    let modules = format!("{MODULES_PATH}/{release}");
    let image = image_name(version);
    let criu = format!("--criu={CRIU_PATH}");
    let build = ["image", "build", &image, "--installed", &release];
    insula(&[&build[..], &["--module-folder", &modules, &criu]].concat())?;
    Ok(image)
}

fn image_name(version: &str) -> String {
    format!("image-{version}")
}

/// Starts a node that can have containers.
pub(super) fn run_node(name: &str, image: &str) -> Result<(), Finding> {
    let run = ["run", "--image", image, "--name", name, "--memory", "512M"];
    insula(&[&run[..], &["--network", "--rootfs", "/", "--overlay"]].concat()).map(drop)
}

/// Starts the server as a container on a node. Returns its address.
pub(super) fn start_server(node: &str, options: &[&str]) -> Result<String, Finding> {
    let exec = ["exec", "--container", NAME, "-d"];
    let server = [node, "--", "python3", "-c", SERVER];
    insula(&[&exec[..], options, &server].concat())?;
    logged("ready")?;
    Ok(text(&inspected()?["address"]))
}

/// Everything that is known about the container.
pub(super) fn inspected() -> Result<Value, Finding> {
    Ok(insula_json(&["inspect", NAME])?[0].clone())
}

/// Waits until its log has a line.
fn logged(line: &str) -> Result<(), Finding> {
    wait_for_line(NAME, line)
}

/// Waits until a container's log has a line.
pub(super) fn wait_for_line(container: &str, line: &str) -> Result<(), Finding> {
    wait_for(&format!("the line `{line}`"), || {
        let log = insula(&["logs", container])?;
        Ok(log.lines().any(|one| one == line).then_some(()))
    })
}

/// Names, nodes and programs that a container cannot have.
fn refusals(start: &[&str]) -> Result<(), Finding> {
    try_insula(start)?.refused(125, &[NAME, "nothing was touched"])?;
    let on = |name, node| ["exec", "--container", name, "-d", node, "--", "true"];
    try_insula(&on("6.12", "6.1"))?.refused(125, &["that of a node"])?;
    try_insula(&on("other", "none"))?.refused(125, &["no node 'none'"])?;
    try_insula(&on("a/b", "6.1"))?.refused(2, &["valid name"])?;
    try_insula(&["run", "--image", "image-6.1", "--name", NAME])?.refused(1, &["a container"])?;
    insula(&[
        "run", "--image", "lwk", "--name", "quiet", "--cpus", "1", "--memory", "64M",
    ])?;
    try_insula(&on("other", "quiet"))?.refused(125, &["lightweight kernel"])?;
    try_insula(&["move", NAME, "quiet"])?.refused(1, &["lightweight kernel"])?;
    insula(&["rm", "--force", "quiet"])?;
    try_insula(&["move", NAME, "6.1"])?.refused(1, &["is on '6.1' already"])?;
    try_insula(&["move", "none", "6.12"])?.refused(1, &["no container 'none'"])?;
    try_insula(&["rm", NAME])?.refused(1, &["it runs", "it was left as it is"])?;
    let missing = ["exec", "--container", "other", "6.12", "--", "/no/such"];
    try_insula(&missing)?.refused(127, &[])?;
    insula(&["rm", "other"]).map(drop)
}

/// The container is on that node and runs there, and the other has nothing of it.
pub(super) fn runs_on(
    address: &str,
    node: &str,
    release: &str,
    streams: &Streams,
) -> Result<(), Finding> {
    serves(address, node, release, streams)?;
    for other in NODES.iter().filter(|other| **other != node) {
        has_none(other)?;
    }
    Ok(())
}

/// The container is there and runs: all connections go on, and new ones are served, by that kernel.
pub(super) fn serves(
    address: &str,
    node: &str,
    release: &str,
    streams: &Streams,
) -> Result<(), Finding> {
    let found = inspected()?;
    assert_equal("its node", &text(&found["node"]), &node.to_owned())?;
    assert_equal("its state", &text(&found["state"]), &"running".to_owned())?;
    streams
        .go_on()
        .map_err(|error| error.when(&format!("on {node}")))?;
    let before = insula(&["logs", NAME])?.lines().count();
    Streams::start(address, 1)?.end()?;
    let line = format!("1 {NAME} {release} kept in memory");
    wait_for(&format!("the line `{line}` after {before} others"), || {
        let log = insula(&["logs", NAME])?;
        Ok(log
            .lines()
            .skip(before)
            .any(|one| one == line)
            .then_some(()))
    })
}

/// A node has nothing of the container.
pub(super) fn has_none(node: &str) -> Result<(), Finding> {
    // It may never have had one.
    let list = "ls /sys/fs/cgroup/insula /run/insula/containers 2>/dev/null; true";
    wait_for(&format!("the node {node} to have nothing of it"), || {
        let left = insula(&["exec", node, "--", "sh", "-c", list])?;
        Ok((!left.lines().any(|line| line == NAME)).then_some(()))
    })
}

/// It ends as any program, and its name is free again.
fn ends() -> Result<(), Finding> {
    insula(&["stop", NAME])?;
    let found = inspected()?;
    assert_equal("its status", &found["exit_code"], &Value::from(STATUS))?;
    insula(&["rm", NAME])?;
    try_insula(&["inspect", NAME])?.refused(1, &["no node"])
}
