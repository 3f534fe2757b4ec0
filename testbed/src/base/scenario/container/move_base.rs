//! A container is started on the base, moves to a Linux node of another version and back with its
//! connections, and lives on whatever is killed. When the last one has gone, the base is as before.

mod joined;
mod kills;
mod lightweight;
mod roots;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::move_linux::failures::piped;
use super::move_linux::streams::Streams;
use super::move_linux::{NAME, build_image, has_none, inspected, serves, start_server};
use crate::base::support::insula_command::{
    assert_equal, command, insula, text, try_insula, wait_for, with_cleanup,
};
use crate::base::support::virtio_modules::{NETWORK_MODULES, SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;
use crate::host::payload::equipment::CRIU_FOLDER;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "move_base",
    proves: "a container moves between the base and a Linux node with its connections",
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

/// The kernel of the node, and its name.
const NODE: &str = "6.1";
const BASE: &str = "base";
/// CRIU as an administrator installs one that is not a package's.
const CRIU: &str = "/usr/local/sbin/criu";
/// Modules that the base loads for cards of the agent and of containers, and for CRIU, besides those for nodes.
const MODULES: [&str; 10] = [
    "macvlan",
    "veth",
    "nf_conntrack_netlink",
    "raw_diag",
    "udp_diag",
    "tcp_diag",
    "inet_diag",
    "netlink_diag",
    "af_packet_diag",
    "unix_diag",
];
/// Where the server's port is published.
const PUBLISHED: &str = "127.0.0.1:8081";
/// Connections that live throughout, to the container's address, and as many to the published port.
const CONNECTIONS: usize = 2;
/// Moves there and back, in a long run.
const ROUNDS: u64 = 20;
/// The agent's folder, the base's interface to it and its network namespace, and its control groups.
const LEFT: [&str; 4] = [
    "/run/insula/base",
    "/sys/class/net/insula-base",
    "/run/netns/insula-base",
    "/sys/fs/cgroup/insula",
];
const FREEZE: &str = "/sys/fs/cgroup/insula/shop/cgroup.freeze";

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    let played = with_cleanup(|| played(context));
    let _ = fs::remove_file(CRIU);
    played?;
    unload(&[&MODULES[..], &NETWORK_MODULES, &SOCKET_MODULES].concat())
}

fn played(context: &Context) -> Result<(), Finding> {
    roots::play()?;
    nothing_is_left()?;
    let image = build_image(context, NODE)?;
    let run = ["run", "--image", &image, "--name", NODE, "--cpus", "1"];
    let more = [
        "--memory",
        "512M",
        "--network",
        "--rootfs",
        "/",
        "--overlay",
    ];
    insula(&[&run[..], &more].concat())?;
    let publish = format!("--publish={PUBLISHED}:80");
    let address = start_server(BASE, &[&publish])?;
    refusals(&image)?;
    joined::programs_join("6.12")?;
    let streams = Streams::start(&address, CONNECTIONS)?;
    let streams = streams.and(Streams::start_at(PUBLISHED, CONNECTIONS)?);
    let releases = [context.release("6.12")?, context.release(NODE)?];
    let on_base = || serves(&address, BASE, &releases[0], &streams);
    on_base()?;
    install_criu()?;
    joined::is_not_moved()?;
    roots::moves(&image, NODE)?;
    for round in 0..context.count(1, ROUNDS) {
        insula(&["move", "--check", NAME, NODE])?;
        let told = insula(&["move", NAME, NODE])?;
        println!("round {round}: {}", told.trim_end());
        serves(&address, NODE, &releases[1], &streams)?;
        joined::programs_join(NODE)?;
        // It was the last one there.
        nothing_is_left()?;
        let told = insula(&["move", NAME, BASE])?;
        println!("round {round}: {}", told.trim_end());
        on_base()?;
        has_none(NODE)?;
    }
    agents_killed()?;
    on_base().map_err(|error| error.when("after the base's agent was killed"))?;
    insula(&["move", NAME, NODE])?;
    move_killed()?;
    serves(&address, NODE, &releases[1], &streams)
        .map_err(|error| error.when("after a move to the base was killed"))?;
    insula(&["move", NAME, BASE])?;
    on_base()?;
    kills::play(context.count(0, 80), |at| {
        let release = &releases[usize::from(at == NODE)];
        serves(&address, at, release, &streams)
    })?;
    if text(&inspected()?["node"]) != BASE {
        insula(&["move", NAME, BASE])?;
    }
    lightweight::moves(&streams)?;
    on_base().map_err(|error| error.when("back from the lightweight kernel"))?;
    streams.end()?;
    lightweight::in_a_folder(&address)?;
    nothing_is_left()?;
    insula(&["stop", NODE])?;
    insula(&["rm", NODE]).map(drop)
}

/// What cannot be done is told before anything is.
fn refusals(image: &str) -> Result<(), Finding> {
    let other = ["other", "--rootfs", "/", NODE, "--", "true"];
    try_insula(&[&["exec", "--container"][..], &other].concat())?
        .refused(125, &["the root of the node"])?;
    for words in [&["move", NAME, BASE][..], &["move", "--check", NAME, BASE]] {
        try_insula(words)?.refused(1, &["is on 'base' already"])?;
    }
    try_insula(&["move", "--check", NAME, NODE])?.refused(1, &["the base lacks CRIU"])?;
    try_insula(&["run", "--image", image, "--name", NAME])?.refused(1, &["a container"])
}

/// Makes the payload's CRIU a program of the base.
fn install_criu() -> Result<(), Finding> {
    let script = format!(
        "#!/bin/sh\nexec {CRIU_FOLDER}/ld-linux-x86-64.so.2 --library-path {CRIU_FOLDER} \
         {CRIU_FOLDER}/criu \"$@\"\n"
    );
    fs::write(CRIU, script)?;
    Ok(fs::set_permissions(
        CRIU,
        fs::Permissions::from_mode(0o755),
    )?)
}

/// Ids of the processes of the base's agent in this role.
fn agents(role: &str) -> Result<Vec<Pid>, Finding> {
    processes(|words| {
        let program = words.first().copied().unwrap_or_default();
        let is_it = program.ends_with(b"/agent") || program == b"/proc/self/exe";
        is_it && words.get(1) == Some(&role.as_bytes())
    })
}

/// Ids of the processes with such command lines.
fn processes(is_it: impl Fn(&[&[u8]]) -> bool) -> Result<Vec<Pid>, Finding> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let pid = entry.file_name().to_string_lossy().parse();
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<_> = words.split(|&byte| byte == 0).collect();
        found.extend(pid.ok().filter(|_| is_it(&words)).map(Pid::from_raw));
    }
    Ok(found)
}

fn kill_agents(role: &str) -> Result<(), Finding> {
    // Until it executes another program, a child is seen as its parent.
    let agent = wait_for(&format!("one agent in the role `{role}`"), || {
        Ok(match agents(role)?[..] {
            [only] => Some(only),
            _ => None,
        })
    })?;
    Ok(kill(agent, Signal::SIGKILL)?)
}

/// The server of the agent is killed, and started again; then both of its processes are.
fn agents_killed() -> Result<(), Finding> {
    kill_agents("serve-base")?;
    let is_there = || {
        let state = text(&inspected()?["state"]);
        Ok((state == "running").then_some(()))
    };
    // While it is not there, commands start no second agent.
    wait_for("the container to be known again", is_there)?;
    kill_agents("base")?;
    kill_agents("serve-base")?;
    // The next command starts it.
    wait_for("the container to be known again", is_there)
}

/// The command is killed while the base restores: the container goes on in its node.
fn move_killed() -> Result<(), Finding> {
    let mut moving = piped(command(&["move", NAME, BASE]))?;
    wait_for("the restore to begin", || Ok(fs::write(FREEZE, "1").ok()))?;
    kill(Pid::from_raw(moving.id().cast_signed()), Signal::SIGKILL)?;
    moving.wait()?;
    fs::write(FREEZE, "0")?;
    wait_for("the base to have nothing of it", || {
        Ok((!Path::new(FREEZE).exists()).then_some(()))
    })?;
    assert_equal("its place", &text(&inspected()?["node"]).as_str(), &NODE)
}

/// Nothing of the base's agent is there.
fn nothing_is_left() -> Result<(), Finding> {
    for path in LEFT {
        Finding::unless(!Path::new(path).exists(), || format!("{path} is left"))?;
    }
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    Finding::unless(!mounts.contains("/run/insula/base"), || mounts.clone())?;
    wait_for("its processes to end", || {
        let left = [agents("base")?, agents("serve-base")?].concat();
        Ok(left.is_empty().then_some(()))
    })
}
