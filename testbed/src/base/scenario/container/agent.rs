//! Nodes as containers: what the agent in a node does for the command.

mod copies;
mod image_root;
mod leaving;
mod network;
mod outside;
mod verbs;
mod volumes;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use insula_agent::PORT;
use insula_node::attachment;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vsock::VsockStream;

use crate::base::support::insula_command::{
    TIMEOUT, assert_equal, command, insula, insula_json, text, try_insula, wait_for, with_cleanup,
};
use crate::base::support::poll_rate::assert_idle_rate;
use crate::base::support::supervisor_process;
use crate::base::support::virtio_modules::{NETWORK_MODULES, SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::payload::equipment::MODULES_PATH;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "agent",
    proves: "programs in nodes have input, output, terminal, signals and status as podman's have",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
    soak_limit: None,
    play,
};

/// Content of the images: a busybox, and links to it.
const CONTENT: &str = "/tmp/content";
const PROGRAMS: [&str; 13] = [
    "cat",
    "echo",
    "env",
    "kill",
    "ls",
    "mount",
    "pidof",
    "sh",
    "sha256sum",
    "sleep",
    "stty",
    "test",
    "uname",
];
/// Keeps a node's kernel from seeding its random numbers from the processor: only the given seed
/// counts.
const NO_OTHER_SEED: &str = "random.trust_cpu=off";
/// Main program of the nodes.
const PROGRAM: &str =
    "echo 'it starts:  on'; echo error >&2; echo \"$GREETING $WHO in $PWD\"; exec sleep 100000";
/// Its environment and its working directory.
const ENV_FILE: &str = "/tmp/agent.env";
const GREETED: [&str; 6] = ["--env-file", ENV_FILE, "-e", "WHO=you", "--workdir", "/bin"];
/// Bytes of input: more than all buffers on the way hold.
const BYTES: usize = 2 << 20;
/// Largest difference of a node's clock, in whole seconds: the base sets it far more exactly.
const CLOCK_ERROR_MAX_S: u64 = 1;
/// Folder that is a node's root: a busybox, and a file that is larger than a request.
const ROOT: &str = "/tmp/rooted";
const DATA_BYTES: usize = 3 << 20;
/// Node that serves files to others, with a published port, and its client.
const SERVER: (&str, &str) = ("6.1", "rooted-6.1");
const CLIENT: &str = "rooted-6.12";
const PUBLISH: &str = "127.0.0.1:8080:80";
/// A port of it that is open to other hosts.
const OPEN_PORT: u16 = 8082;
/// The server's address.
const ADDRESS: &str = "10.78.0.7";
/// Prints `ready`, then waits for a signal.
const WAITS: &str = "trap 'echo caught > /tmp/caught; exit 9' TERM HUP; echo ready; \
                     while :; do sleep 0.1; done";

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    make_programs(CONTENT)?;
    make_programs(ROOT)?;
    make_data()?;
    outside::make_client_program()?;
    volumes::make_folders()?;
    fs::write(
        ENV_FILE,
        "# Of the nodes' program.\nGREETING=hello,\nWHO=nobody\n",
    )?;
    outside::make_hosts()?;
    let played = with_cleanup(|| {
        for version in ["6.1", "6.12"] {
            let in_context = |error: Finding| error.when(&format!("with a node of {version}"));
            with_node(context, version).map_err(in_context)?;
        }
        network::serves()?;
        network::simultaneous_claims()?;
        outside::beside_docker(|| {
            image_root::two_nodes(context).map_err(|error| error.when("with an image as root"))
        })?;
        outside::is_closed()?;
        outside::chooses_a_free_network()?;
        outside::is_closed()
    });
    for folder in [CONTENT, ROOT, volumes::FOLDER] {
        fs::remove_dir_all(folder)?;
    }
    fs::remove_file(ENV_FILE)?;
    played?;
    outside::remove_hosts()?;
    unload(&[&NETWORK_MODULES[..], &SOCKET_MODULES].concat())
}

pub(super) fn make_programs(folder: &str) -> Result<(), Finding> {
    let bin = Path::new(folder).join("bin");
    fs::create_dir_all(&bin)?;
    fs::copy("/bin/busybox", bin.join("busybox"))?;
    for name in PROGRAMS {
        symlink("busybox", bin.join(name))?;
    }
    Ok(())
}

fn with_node(context: &Context, version: &str) -> Result<(), Finding> {
    let release = context.release(version)?;
    let (image, node) = (format!("image-{version}"), format!("node-{version}"));
    let modules = format!("{MODULES_PATH}/{release}");
    let kernel = ["--installed", &release, "--module-folder", &modules];
    insula(
        &[
            &["image", "build", &image, "--content", CONTENT],
            &kernel[..],
        ]
        .concat(),
    )?;
    let program = ["--", "/bin/sh", "-c", PROGRAM];
    let run = [
        "run",
        "--image",
        &image,
        "--name",
        &node,
        "--memory",
        "256M",
        "--network",
        "--append",
        NO_OTHER_SEED,
    ];
    insula(&[&run[..], &GREETED, &program].concat())?;
    let uname = insula(&["exec", &node, "--", "uname", "-r"])?;
    assert_equal("its release", &uname.trim_end(), &release.as_str())?;
    let kexec = "cat /proc/sys/kernel/kexec_load_disabled";
    let kexec = insula(&["exec", &node, "--", "sh", "-c", kexec])?;
    assert_equal("whether it loads no other kernel", &kexec.trim_end(), &"1")?;
    let limits = insula(&["exec", &node, "--", "sh", "-c", "ulimit -Sn; ulimit -Hn"])?;
    assert_equal("its descriptors", &limits.as_str(), &"1024\n524288\n")?;
    assert_idle_rate()?;
    logged(&node)?;
    random_before_processes(&node)?;
    statuses(&node)?;
    dispositions(&node)?;
    environment(&node)?;
    much_input(&node)?;
    signals(&node)?;
    hangs_up_with_its_command(&node)?;
    leaving::play(&node)?;
    unprivileged_peers(&node)?;
    copies::to_and_from(&node)?;
    supervisor_process::kill(&node)?;
    much_input(&node).map_err(|error| error.when("its back ends were killed"))?;
    reaches_base(&node)?;
    ends(&node, version == "6.1")?;
    insula(&["rm", "--force", &node])?;
    with_root(&image, &format!("rooted-{version}"), version == SERVER.0)
}

fn data() -> PathBuf {
    Path::new(ROOT).join("data")
}

fn make_data() -> Result<(), Finding> {
    let mut random = fastrand::Rng::new();
    let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
        .take(DATA_BYTES)
        .collect();
    Ok(fs::write(data(), bytes)?)
}

/// Checksum of the file, in the format of `sha256sum` in a node.
fn sum() -> Result<String, Finding> {
    let output = Command::new("sha256sum")
        .stdin(fs::File::open(data())?)
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A node whose root is a folder of the base, and its changes there. It is left running: the server
/// with an overlay and a published port.
fn with_root(image: &str, node: &str, server: bool) -> Result<(), Finding> {
    let missing = ["run", "--image", image, "--rootfs", "/tmp/none"];
    try_insula(&missing)?.refused(1, &["/tmp/none", "nothing was touched"])?;
    let run = [
        "run", "--image", image, "--name", node, "-m", "256M", "--rootfs", ROOT,
    ];
    let httpd = ["--", "/bin/busybox", "httpd", "-f", "-p", "80", "-h", "/"];
    let open = format!("--publish={OPEN_PORT}:80");
    let own = match server {
        true => [
            &["--overlay", "--publish", PUBLISH, &open, "--ip", ADDRESS][..],
            &volumes::OPTIONS,
            &["--label", "tier=front"],
            &httpd,
        ]
        .concat(),
        false => vec!["--network"],
    };
    insula(&[&run[..], &own].concat())?;
    let (_, of_node, _) = script(node, &[], "sha256sum < /data")?;
    assert_equal("file read by the node", &of_node, &sum()?)?;
    if server {
        volumes::refusals(image)?;
        volumes::play(node)?;
    }
    assert_equal("writing", &script(node, &[], "echo new > /made")?.0, &0)?;
    let (_, output, _) = script(node, &[], "cat /made")?;
    assert_equal("its new file", &output.as_str(), &"new\n")?;
    let made = fs::read_to_string(Path::new(ROOT).join("made")).ok();
    let wanted = (!server).then(|| "new\n".to_owned());
    assert_equal("the new file in the base", &made, &wanted)?;
    fs::remove_file(Path::new(ROOT).join("made")).or_else(|error| match server {
        true => Ok(()),
        false => Err(error.into()),
    })
}

/// The output of the node's own program is in its log, line by line.
fn logged(node: &str) -> Result<(), Finding> {
    for line in ["sh: it starts:  on", "sh: error", "sh: hello, you in /bin"] {
        wait_for(&format!("`{line}` in the log"), || {
            Ok(insula(&["logs", node])?.contains(line).then_some(()))
        })?;
    }
    Ok(())
}

/// The kernel has an unpredictable seed before its first process starts.
fn random_before_processes(node: &str) -> Result<(), Finding> {
    let log = insula(&["logs", node])?;
    let place = |text: &str| {
        log.find(text)
            .ok_or_else(|| Finding::new(format!("no '{text}' in the log")))
    };
    let (ready, init) = (
        place("random: crng init done")?,
        place("Run /init as init process")?,
    );
    Finding::unless(ready < init, || {
        "the first process was before random numbers".into()
    })
}

/// Also with a network card that was added later.
fn reaches_base(node: &str) -> Result<(), Finding> {
    wait_for("the node to reach the base", || {
        let (status, ..) = script(node, &[], "busybox ping -c 1 -w 2 10.78.0.1 >&2")?;
        Ok((status == 0).then_some(()))
    })
}

/// Runs a script in the node. Returns status, stdout and stderr.
fn script(node: &str, options: &[&str], script: &str) -> Result<(i32, String, String), Finding> {
    let words = [&["exec"], options, &[node, "--", "sh", "-c", script]].concat();
    let answer = try_insula(&words)?;
    Ok((
        answer.status.unwrap_or(-1),
        answer.output,
        answer.error_output,
    ))
}

fn statuses(node: &str) -> Result<(), Finding> {
    let answer =
        |status, output: &str, error_output: &str| (status, output.into(), error_output.into());
    for (text, wanted) in [
        (
            "echo out; echo err >&2; exit 7",
            answer(7, "out\n", "err\n"),
        ),
        ("kill -9 $$", answer(137, "", "")),
        ("cat", answer(0, "", "")),
        // Children that live on do not delay the end.
        ("sleep 1000 & echo on", answer(0, "on\n", "")),
    ] {
        assert_equal(text, &script(node, &[], text)?, &wanted)?;
    }
    try_insula(&["exec", node, "--", "no-such-program"])?.refused(127, &["no-such-program"])?;
    try_insula(&["exec", node, "--", "/bin"])?.refused(126, &["/bin"])?;
    try_insula(&["exec", "nobody", "--", "true"])?.refused(125, &["nobody"])?;
    try_insula(&["exec", "--workdir", "/none", node, "--", "ls"])?.refused(125, &["cannot start"])
}

/// A program starts with no signal ignored, whatever its caller ignores; except for the C library's
/// own signals.
fn dispositions(node: &str) -> Result<(), Finding> {
    const C_LIBRARY: u64 = 1 << 31 | 1 << 32;
    let asking = format!(
        "trap '' INT QUIT USR1; exec insula exec {node} -- busybox grep SigIgn /proc/self/status"
    );
    let asked = Command::new("sh").args(["-c", &asking]).output()?;
    let line = String::from_utf8_lossy(&asked.stdout);
    let ignored = line.trim_start_matches("SigIgn:").trim();
    let ignored = u64::from_str_radix(ignored, 16)? & !C_LIBRARY;
    assert_equal("signals ignored", &ignored, &0)
}

fn environment(node: &str) -> Result<(), Finding> {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH);
    let before = now()?.as_secs();
    let (_, output, _) = script(node, &[], "busybox date +%s")?;
    let after = now()?.as_secs();
    let seconds = output.trim().parse::<u64>()?;
    let known = before - CLOCK_ERROR_MAX_S..=after + CLOCK_ERROR_MAX_S;
    Finding::unless(known.contains(&seconds), || {
        format!("the node's clock says {seconds}, the base's {before} to {after}")
    })?;

    let (_, output, _) = script(
        node,
        &["-e", "A=x  y", "-w", "/bin"],
        "echo \"$A\" $PWD $HOME",
    )?;
    assert_equal("environment", &output.as_str(), &"x  y /bin /root\n")?;
    let (status, output, _) = script(node, &["--tty"], "test -t 0 && test -t 1 && stty size")?;
    assert_equal("a terminal", &(status, output.as_str()), &(0, "24 80\r\n"))?;
    let (status, _, _) = script(node, &[], "test -t 0 || test -t 1")?;
    assert_equal("no terminal", &status, &1)
}

/// Input comes back unchanged through a program of the node.
fn much_input(node: &str) -> Result<(), Finding> {
    let mut random = fastrand::Rng::new();
    let sent: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
        .take(BYTES)
        .collect();
    let mut exec = command(&["exec", "--interactive", node, "--", "cat"]);
    let mut exec = exec.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = exec.stdin.take().ok_or_else(|| Finding::new("no input"))?;
    let mut received = Vec::new();
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let sent = input.write_all(&sent);
            drop(input);
            sent
        });
        if let Some(output) = &mut exec.stdout {
            output.read_to_end(&mut received)?;
        }
        let sent = sending.join();
        sent.unwrap_or_else(|_| Err(std::io::Error::other("the sending thread panicked")))
    })?;
    assert_equal("its status", &exec.wait()?.code(), &Some(0))?;
    assert_equal("bytes that came back", &received.len(), &sent.len())?;
    Finding::unless(received == sent, || "other bytes came back".into())
}

/// Starts a command whose program waits for a signal.
fn waiting(node: &str) -> Result<Child, Finding> {
    let mut exec: Command = command(&["exec", node, "--", "sh", "-c", WAITS]);
    let mut exec = exec.stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    if let Some(output) = &mut exec.stdout {
        BufReader::new(output).read_line(&mut line)?;
    }
    assert_equal("its first words", &line.as_str(), &"ready\n")?;
    Ok(exec)
}

fn pid(child: &Child) -> Result<Pid, Finding> {
    Ok(Pid::from_raw(child.id().try_into()?))
}

/// A signal to the command is passed to the program.
fn signals(node: &str) -> Result<(), Finding> {
    let mut exec = waiting(node)?;
    kill(pid(&exec)?, Signal::SIGTERM)?;
    assert_equal("its status", &exec.wait()?.code(), &Some(9))
}

/// A program whose command was killed gets SIGHUP.
fn hangs_up_with_its_command(node: &str) -> Result<(), Finding> {
    script(node, &[], "echo > /tmp/caught")?;
    let mut exec = waiting(node)?;
    kill(pid(&exec)?, Signal::SIGKILL)?;
    exec.wait()?;
    wait_for("the program to get its signal", || {
        let (_, output, _) = script(node, &[], "cat /tmp/caught")?;
        Ok((output == "caught\n").then_some(()))
    })
}

/// Connections from unprivileged ports are refused: even unprivileged processes of the base could
/// open these.
fn unprivileged_peers(node: &str) -> Result<(), Finding> {
    let id = insula_json(&["inspect", node])?[0]["id"].as_u64();
    let id = id.and_then(|id| u32::try_from(id).ok());
    let id = id.ok_or_else(|| Finding::new("the node has no id"))?;
    let mut stream = VsockStream::connect_with_cid_port(attachment::cid(id), PORT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let answer = stream.read(&mut [0]);
    let is_closed = match &answer {
        Ok(count) => *count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    };
    Finding::unless(is_closed, || {
        format!("an unprivileged peer was answered: {answer:?}")
    })
}

/// The node ends with its program, or by its power button.
fn ends(node: &str, by_program: bool) -> Result<(), Finding> {
    if by_program {
        // The node may end before the answer arrives.
        try_insula(&["exec", node, "--", "sh", "-c", "kill $(pidof sleep)"])?;
    } else {
        insula(&["stop", "--time", "60", node])?;
    }
    wait_for("the node to end", || {
        let view = insula_json(&["inspect", node])?[0].clone();
        let ended = view["state"] == "stopped";
        ended
            .then(|| assert_equal("its end", &text(&view["reason"]), &"power-off".into()))
            .transpose()
    })
}
