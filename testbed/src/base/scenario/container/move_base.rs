//! A container is started on the base, moves to a Linux node of another version and back with its
//! connections, and lives on whatever is killed. When the last one has gone, the base is as before.

mod kills;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::move_linux::failures::piped;
use super::move_linux::streams::Streams;
use super::move_linux::{
    NAME, build_image, has_none, inspected, serves, start_server, wait_for_line,
};
use crate::base::support::insula_command::{
    Answer, assert_equal, command, insula, insula_json, text, try_insula, wait_for, with_cleanup,
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
/// The node of the lightweight kernel.
const QUIET: &str = "quiet";
/// Three processes, each of which tells its number again and again.
const MANY: &str = r#"
import os, time
number = 0
for other in (1, 2):
    if os.fork() == 0:
        number = other
        break
print("ready", flush=True)
while True:
    os.write(1, b"%d\n" % number)
    time.sleep(0.1)
"#;
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
/// Connections that live throughout.
const CONNECTIONS: usize = 4;
/// Moves there and back, in a long run.
const ROUNDS: u64 = 20;
/// The agent's folder, the base's interface to it and its network namespace, and its control groups.
const LEFT: [&str; 4] = [
    "/run/insula/base",
    "/sys/class/net/insula-base",
    "/run/netns/insula-base",
    "/sys/fs/cgroup/insula",
];
/// The container's record.
const RECORD: &str = "/run/insula/containers/shop.json";
const FREEZE: &str = "/sys/fs/cgroup/insula/shop/cgroup.freeze";

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    let played = with_cleanup(|| played(context));
    let _ = fs::remove_file(CRIU);
    played?;
    unload(&[&MODULES[..], &NETWORK_MODULES, &SOCKET_MODULES].concat())
}

fn played(context: &Context) -> Result<(), Finding> {
    programs_and_roots()?;
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
    let address = start_server(BASE)?;
    refusals(&image)?;
    programs_join("6.12")?;
    let streams = Streams::start(&address, CONNECTIONS)?;
    let releases = [context.release("6.12")?, context.release(NODE)?];
    let on_base = || serves(&address, BASE, &releases[0], &streams);
    on_base()?;
    install_criu()?;
    joined_is_not_moved()?;
    for round in 0..context.count(1, ROUNDS) {
        insula(&["move", "--check", NAME, NODE])?;
        let told = insula(&["move", NAME, NODE])?;
        println!("round {round}: {}", told.trim_end());
        serves(&address, NODE, &releases[1], &streams)?;
        programs_join(NODE)?;
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
    on_the_lightweight_kernel(&streams)?;
    on_base().map_err(|error| error.when("back from the lightweight kernel"))?;
    streams.end()?;
    in_a_folder(&address)?;
    nothing_is_left()?;
    insula(&["stop", NODE])?;
    insula(&["rm", NODE]).map(drop)
}

/// Containers of the base without any node: output and status, a root of their own, the world outside.
fn programs_and_roots() -> Result<(), Finding> {
    let on_base = |name, more: &[&str], program: &[&str]| {
        let exec = ["exec", "--container", name];
        insula(&[&exec[..], more, &["base", "--"], program].concat())
    };
    let output = on_base("first", &[], &["sh", "-c", "echo $$ $(hostname)"])?;
    assert_equal("its output", &output.as_str(), &"1 first\n")?;
    assert_equal("its log", &insula(&["logs", "first"])?, &output)?;
    let found = &insula_json(&["ps", "--json"])?[0];
    assert_equal("its name", &found["name"], &"first".into())?;
    assert_equal("its place", &found["node"], &BASE.into())?;
    assert_equal("its status", &found["exit_code"], &0.into())?;
    insula(&["rm", "first"])?;

    let root = Path::new("/run/root-of-second");
    fs::create_dir_all(root.join("bin"))?;
    for folder in ["dev", "proc", "sys", "run", "tmp"] {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::copy("/usr/sbin/busybox-testbed", root.join("bin/busybox"))?;
    let listed = on_base(
        "second",
        &["--rootfs", "/run/root-of-second"],
        &["/bin/busybox", "ls", "/"],
    )?;
    let listed: Vec<_> = listed.split_whitespace().collect();
    let expected = ["bin", "dev", "proc", "run", "sys", "tmp"];
    assert_equal("its root", &listed.as_slice(), &&expected[..])?;
    insula(&["rm", "second"])?;
    fs::remove_dir_all(root)?;

    let exec = ["exec", "--container"];
    try_insula(&[&exec[..], &["base", "base", "--", "true"]].concat())?
        .refused(125, &["that of the base"])?;
    let lost = ["other", "--rootfs", "/no/such", "base", "--", "true"];
    try_insula(&[&exec[..], &lost].concat())?.refused(125, &["/no/such", "root"])?;
    let missing = ["third", "base", "--", "/no/such"];
    try_insula(&[&exec[..], &missing].concat())?.refused(127, &[])?;
    insula(&["rm", "third"]).map(drop)
}

/// Programs are run in the container, under its kernel: with its processes, files and name, and as its users.
fn programs_join(kernel: &str) -> Result<(), Finding> {
    let script =
        "echo $(hostname) $(cat /proc/1/comm) $(id -un) $HOME $(uname -r | cut -d. -f1-2); cat";
    let run = |user: &[&str]| {
        let words = [&["exec", "-i"][..], user, &[NAME, "sh", "-c", script]].concat();
        let mut child = piped({
            let mut command = command(&words);
            command.stdin(Stdio::piped());
            command
        })?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(b"its input\n")?;
        }
        let output = child.wait_with_output()?;
        Answer::new(&words, &output).succeeded()
    };
    for (user, name, home) in [
        (&[][..], "root", "/root"),
        (&["--user", "nobody"], "nobody", "/nonexistent"),
    ] {
        let expected = format!("{NAME} python3 {name} {home} {kernel}\nits input\n");
        assert_equal("what it prints", &run(user)?, &expected)?;
    }
    let exec = ["exec", NAME];
    try_insula(&[&exec[..], &["sh", "-c", "exit 9"]].concat())?.refused(9, &[])?;
    try_insula(&[&exec[..], &["/no/such"]].concat())?.refused(127, &["/no/such"])?;
    try_insula(&["exec", "-u", "none", NAME, "true"])?.refused(126, &["the user none"])?;
    // In its own memory.
    let (here, there) = ("/run/copied", format!("{NAME}:/tmp/copied"));
    fs::write(here, kernel)?;
    insula(&["cp", here, &there])?;
    let found = insula(&["exec", NAME, "cat", "/tmp/copied"])?;
    assert_equal("what was copied", &found.as_str(), &kernel)?;
    insula(&["cp", &format!("{NAME}:/etc/hostname"), here])?;
    assert_equal("its file", &fs::read(here)?, &fs::read("/etc/hostname")?)?;
    try_insula(&["cp", &format!("{NAME}:/no/such"), here])?.refused(1, &["/no/such"])?;
    insula(&["exec", NAME, "rm", "/tmp/copied"])?;
    Ok(fs::remove_file(here)?)
}

/// Who has joined it is not moved with it, which is told before; it ends with the command that has started it.
fn joined_is_not_moved() -> Result<(), Finding> {
    let mut joined = command(&["exec", NAME, "--", "sleep", "1000"])
        .stdin(Stdio::null())
        .spawn()?;
    let told = ["`sleep`, which was started in it by `insula exec`"];
    wait_for("it to be told", || {
        let answer = try_insula(&["move", "--check", NAME, NODE])?;
        Ok((answer.status == Some(1)).then_some(answer))
    })?
    .refused(1, &told)?;
    try_insula(&["move", NAME, NODE])?.refused(1, &told)?;
    joined.kill()?;
    joined.wait()?;
    wait_for("it to end", || {
        let answer = try_insula(&["move", "--check", NAME, NODE])?;
        Ok((answer.status == Some(0)).then_some(()))
    })
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

/// Its processes go on on a node of the lightweight kernel, and come back; so do several at once.
fn on_the_lightweight_kernel(streams: &Streams) -> Result<(), Finding> {
    let run = ["run", "--image", "lwk", "--name", QUIET];
    insula(&[&run[..], &["--cpus", "1", "--memory", "128M"]].concat())?;
    insula(&["move", "--check", NAME, QUIET])?;
    killed_on_the_way(streams)?;
    println!("{}", insula(&["move", NAME, QUIET])?.trim_end());
    streams
        .go_on()
        .map_err(|error| error.when("on the lightweight kernel"))?;
    let found = inspected()?;
    assert_equal("its place", &text(&found["node"]).as_str(), &BASE)?;
    assert_equal(
        "its cores' node",
        &text(&found["lwk_node"]).as_str(),
        &QUIET,
    )?;
    let listed = insula(&["ps", "--format", "{{.Names}} {{.Node}}"])?;
    let line = format!("{NAME} {QUIET}");
    Finding::unless(listed.lines().any(|one| one == line), || listed.clone())?;
    try_insula(&["exec", "-u", "nobody", QUIET, "--", "true"])?
        .refused(125, &["this command's user"])?;
    let first = ["`insula move shop base` first"];
    try_insula(&["move", NAME, NODE])?.refused(1, &first)?;
    try_insula(&["checkpoint", NAME, "--export", "/run/none"])?.refused(1, &first)?;
    println!("{}", insula(&["move", NAME, BASE])?.trim_end());

    let start = ["exec", "--container", "many", "-d", BASE, "--"];
    insula(&[&start[..], &["python3", "-c", MANY]].concat())?;
    wait_for_line("many", "ready")?;
    for to in [QUIET, BASE] {
        let told = insula(&["move", "many", to])?;
        println!("{}", told.trim_end());
        let moved = format!("runs on '{to}': 3 processes");
        Finding::unless(told.contains(&moved), || told.clone())?;
        let before = insula(&["logs", "many"])?.lines().count();
        wait_for("all of its processes to go on", || {
            let log = insula(&["logs", "many"])?;
            let since: Vec<_> = log.lines().skip(before).collect();
            let goes_on = |name: &&str| since.iter().filter(|line| *line == name).count() > 1;
            Ok(["0", "1", "2"].iter().all(goes_on).then_some(()))
        })?;
    }
    insula(&["rm", "--force", "many"])?;
    insula(&["rm", "--force", QUIET]).map(drop)
}

/// The command is killed while it moves the processes: the container goes on, and is not moved elsewhere as long as
/// one may be on the node.
fn killed_on_the_way(streams: &Streams) -> Result<(), Finding> {
    let mut moving = piped(command(&["move", NAME, QUIET]))?;
    wait_for("the move to be recorded", || {
        let record = fs::read_to_string(RECORD)?;
        Ok(record.contains("lwk_node").then_some(()))
    })?;
    moving.kill()?;
    moving.wait()?;
    try_insula(&["move", NAME, NODE])?.refused(1, &["are on 'quiet'"])?;
    streams
        .go_on()
        .map_err(|error| error.when("after a move to the lightweight kernel was killed"))?;
    // Back from there, or found not to have left.
    let back = try_insula(&["move", NAME, BASE])?;
    if back.status != Some(0) {
        back.refused(1, &["is on 'base' already"])?;
    }
    assert_equal("its cores' node", &inspected()?["lwk_node"], &Value::Null)
}

/// It is written to a folder, and restored from there: on the lightweight kernel.
fn in_a_folder(address: &str) -> Result<(), Finding> {
    let folder = "/run/checkpoint-of-shop";
    insula(&["checkpoint", NAME, "--export", folder])?;
    nothing_is_left()?;
    let run = ["run", "--image", "lwk", "--name", QUIET];
    insula(&[&run[..], &["--cpus", "1", "--memory", "128M"]].concat())?;
    insula(&["restore", QUIET, "--import", folder])?;
    Streams::start(address, 1)?.end()?;
    assert_equal(
        "its cores' node",
        &text(&inspected()?["lwk_node"]).as_str(),
        &QUIET,
    )?;
    insula(&["move", NAME, BASE])?;
    try_insula(&["move", NAME, BASE])?.refused(1, &["is on 'base' already"])?;
    insula(&["rm", "--force", QUIET])?;
    Streams::start(address, 1)?.end()?;
    wait_for_line(NAME, "ready")?;
    insula(&["stop", NAME])?;
    assert_equal("its status", &inspected()?["exit_code"], &7.into())?;
    insula(&["rm", NAME])?;
    Ok(fs::remove_dir_all(folder)?)
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
