//! The kernel changes under the containers of a node, from Debian's 6.1 to 6.12 and back, while clients
//! read from them: no request fails, and the node keeps its name. An upgrade that fails midway, or
//! whose command is killed, is undone. On a base with a newer kernel, nodes get that, too.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::move_linux::failures::{freeze_restore, piped};
use super::move_linux::streams::Streams;
use super::move_linux::web::{self, Load};
use super::move_linux::{NAME, build_image, run_node, start_server};
use crate::base::support::insula_command::{
    Answer, assert_equal, command, insula, insula_json, insula_json_lines, names, text, try_insula,
    wait_for, with_cleanup,
};
use crate::base::support::virtio_modules::{NETWORK_MODULES, SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "upgrade",
    proves: "the kernel changes under a node's containers without a failed request, or nothing does",
    machine: Shape {
        emulator: Emulator::Backports,
        thread_per_core: true,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: std::time::Duration::from_secs(900),
    soak_limit: Some(std::time::Duration::from_secs(3600)),
    play,
};

/// The node, and the one beside it during an upgrade.
const NODE: &str = "site";
const BESIDE: &str = "site.upgrade";
/// Port of the base by which clients reach nginx.
const PORT: u16 = 8081;
/// Connections that live throughout.
const CONNECTIONS: usize = 10;

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    web::prepare()?;
    let played = with_cleanup(|| played(context));
    web::clean_up()?;
    played?;
    unload(&[&NETWORK_MODULES[..], &SOCKET_MODULES].concat())
}

fn played(context: &Context) -> Result<(), Finding> {
    let old = build_image(context, "6.1")?;
    let new = build_image(context, "6.12")?;
    run_node(NODE, &old)?;
    web::serve(NODE, Some(PORT))?;
    published()?;
    let clients = Clients {
        web: web::clients(format!("127.0.0.1:{PORT}"))?,
        streams: Streams::start(&start_server(NODE, &[])?, CONNECTIONS)?,
    };
    refusals(&new)?;
    clients.are_served_by(&context.release("6.1")?)?;
    upgrades(&new)?;
    clients.are_served_by(&context.release("6.12")?)?;
    if let Some(version) = context.newer_version_of_the_base()? {
        upgrades(&build_image(context, &version)?)?;
        clients.are_served_by(&context.release(&version)?)?;
        upgrades(&new)?;
        clients.are_served_by(&context.release("6.12")?)?;
    }
    target_killed(&old)?;
    clients.are_served_by(&context.release("6.12")?)?;
    if context.select(false, true) {
        interrupted(&old)?;
        clients.are_served_by(&context.release("6.12")?)?;
        command_killed(&old)?;
        clients.are_served_by(&context.release("6.1")?)?;
    }
    clients.end()?;
    insula(&["rm", "--force", NODE]).map(drop)
}

/// Those of both containers.
struct Clients {
    web: Load,
    streams: Streams,
}

impl Clients {
    /// All go on, on the one node that there is, which runs that kernel.
    fn are_served_by(&self, release: &str) -> Result<(), Finding> {
        let when = |error: Finding| error.when(&format!("with kernel {release}"));
        assert_equal(
            "the nodes",
            &names(&["ps", "--json"])?,
            &vec![NODE.to_owned()],
        )?;
        for container in [NAME, web::NAME] {
            let found = &insula_json(&["inspect", container])?[0];
            assert_equal("its node", &text(&found["node"]), &NODE.to_owned())?;
            assert_equal("its state", &text(&found["state"]), &"running".to_owned())?;
        }
        let runs = insula(&["exec", NODE, "--", "uname", "-r"])?;
        assert_equal("its kernel", &runs.trim().to_owned(), &release.to_owned())?;
        self.web.goes_on().map_err(when)?;
        self.streams.go_on().map_err(when)
    }

    fn end(self) -> Result<(), Finding> {
        println!("longest pause: {} ms", self.streams.longest_pause_ms());
        self.streams.end()?;
        insula(&["stop", NAME])?;
        insula(&["rm", NAME])?;
        web::end(self.web)?;
        // The port is free again.
        TcpListener::bind(("127.0.0.1", PORT))?;
        Ok(())
    }
}

/// nginx's port: it is open while there is the container, also if the process that forwards it is killed,
/// once somebody has looked at the containers. Another one does not get it.
fn published() -> Result<(), Finding> {
    let port = format!("127.0.0.1:{PORT}:80");
    wait_for("its port", || Ok(answers().then_some(())))?;
    let listed = insula(&["ps"])?;
    Finding::unless(listed.contains(&port), || listed.clone())?;
    let exec = ["exec", "--container", "other", "-d", NODE];
    let taken = [&exec[..], &["-p", &port, "--", "true"]].concat();
    try_insula(&taken)?.refused(125, &["8081", "cannot be opened"])?;
    let forwarder = format!("^insula publish {}", web::NAME);
    let found = Command::new("pgrep").args(["-f", &forwarder]).output()?;
    let pid = String::from_utf8_lossy(&found.stdout).trim().parse()?;
    kill(Pid::from_raw(pid), Signal::SIGKILL)?;
    wait_for("its port to be closed", || Ok((!answers()).then_some(())))?;
    insula(&["ps"])?;
    Finding::unless(answers(), || "its port is not open again".into())
}

/// Whether a server is reached by the port.
fn answers() -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", PORT))?;
        stream.write_all(b"GET /content HTTP/1.0\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "))
}

/// What is refused, and what is told, before anything is done.
fn refusals(new: &str) -> Result<(), Finding> {
    let to = |image| ["upgrade", NODE, "--image", image];
    try_insula(&to("none"))?.refused(1, &["no image 'none'", "nothing was touched"])?;
    try_insula(&to("lwk"))?.refused(1, &["has no agent", "nothing was touched"])?;
    try_insula(&["upgrade", "none", "--image", new])?.refused(1, &["no node 'none'"])?;
    let full = [
        "run", "--image", "lwk", "--name", "full", "--cpus", "2", "--memory", "64M",
    ];
    insula(&full)?;
    let no_room = [
        "no room for another node beside 'site'",
        "nothing was touched",
    ];
    try_insula(&to(new))?.refused(1, &no_room)?;
    insula(&["rm", "--force", "full"])?;
    let check = insula_json(&[&to(new)[..], &["--check", "--json"]].concat())?;
    let containers = Value::from(vec![NAME, web::NAME]);
    assert_equal("what is to be moved", &check["containers"], &containers)
}

fn upgrades(new: &str) -> Result<(), Finding> {
    let told = insula_json_lines(&["upgrade", NODE, "--image", new, "--json"])?;
    let events: Vec<_> = told.iter().map(|event| text(&event["event"])).collect();
    let wanted = [
        "started", "ready", "moved", "moved", "named", "stopped", "removed",
    ];
    assert_equal("its steps", &events, &wanted.map(str::to_owned).to_vec())
        .map_err(|error| error.when(&Value::from(told).to_string()))
}

/// Begins an upgrade, whose first restore is frozen.
fn begin_frozen(image: &str) -> Result<std::process::Child, Finding> {
    let mut upgrading = piped(command(&["upgrade", NODE, "--image", image]))?;
    wait_for("the node beside", || {
        let failed = upgrading.try_wait()?.is_some();
        Finding::unless(!failed, || "the upgrade has ended".into())?;
        let running = names(&["ps", "--json"])?;
        Ok(running.iter().any(|name| name == BESIDE).then_some(()))
    })?;
    match insula(&freeze_restore(BESIDE, NAME)) {
        Ok(_) => Ok(upgrading),
        Err(error) => {
            let output = upgrading.wait_with_output()?;
            let told = [output.stdout, output.stderr].concat();
            Err(error.when(&String::from_utf8_lossy(&told)))
        }
    }
}

/// The new node is killed while a container is restored there.
fn target_killed(image: &str) -> Result<(), Finding> {
    let upgrading = begin_frozen(image)?;
    insula(&["kill", BESIDE])?;
    let output = upgrading.wait_with_output()?;
    let undone = [
        "was not upgraded",
        "the node and its containers are as before",
    ];
    Answer::new(&["upgrade"], &output).refused(1, &undone)
}

/// The command is interrupted while a container is restored: that one is moved back.
fn interrupted(image: &str) -> Result<(), Finding> {
    let upgrading = begin_frozen(image)?;
    kill(Pid::from_raw(upgrading.id().cast_signed()), Signal::SIGINT)?;
    let thaw = "echo 0 > /sys/fs/cgroup/insula/shop/cgroup.freeze";
    insula(&["exec", BESIDE, "--", "sh", "-c", thaw])?;
    let output = upgrading.wait_with_output()?;
    let undone = [
        "it was interrupted",
        "the node and its containers are as before",
    ];
    Answer::new(&["upgrade"], &output).refused(1, &undone)?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let moved = told
        .lines()
        .filter(|line| line.contains("moved to"))
        .count();
    Finding::unless(moved == 2, || format!("not there and back: {told}"))
}

/// The command is killed, and the next one undoes what it has left before it upgrades the node.
fn command_killed(image: &str) -> Result<(), Finding> {
    let mut upgrading = begin_frozen(image)?;
    upgrading.kill()?;
    upgrading.wait()?;
    let told = insula(&["upgrade", NODE, "--image", image])?;
    print!("{told}");
    Finding::unless(
        told.contains("left by an upgrade that was interrupted"),
        || told.clone(),
    )
}
