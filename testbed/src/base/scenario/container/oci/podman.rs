//! podman's containers: with their output, status, users, files and terminals, networks and pods.

use std::fs;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{
    Ended, IMAGE, ROOTFS, RUNTIME, SCENARIO as OCI, VOLUME, WAITS, delegated, network,
    nothing_is_left, pods, with_root,
};
use crate::base::support::insula_command::{assert_equal, insula, insula_json, text, wait_for};
use crate::base::{Context, Finding, Scenario, Shape};
use crate::host::root::Root;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "podman",
    proves: "podman runs containers on kernels of their own",
    machine: Shape {
        root: Root::Bench,
        ..OCI.machine
    },
    // The root disk with podman takes long to make.
    bases: &[],
    limit: std::time::Duration::from_secs(1200),
    play,
    ..OCI
};

/// An archive of that root.
const ARCHIVE: &str = "/run/oci-root.tar";
/// What podman keeps.
const KEPT: [&str; 2] = ["/run/oci-podman", "/run/oci-podman-state"];
fn play(context: &Context) -> Result<(), Finding> {
    with_podman(context, of_podman)
}

/// Removes all that podman has after `play`.
pub(super) fn with_podman(
    context: &Context,
    play: impl FnOnce(&str) -> Result<(), Finding>,
) -> Result<(), Finding> {
    let played = with_root(context, |release| {
        let played = play(release);
        let removed = podman(&["rm", "--all", "--force", "-t", "0"]);
        played.and(removed.map(drop))
    });
    let kept = KEPT.iter().try_for_each(fs::remove_dir_all);
    played?;
    Ok(kept?)
}

fn of_podman(release: &str) -> Result<(), Finding> {
    output_and_status(release)?;
    users_and_files()?;
    input_and_terminal()?;
    of_an_image()?;
    on_the_network_of_nodes()?;
    network::with_podmans(|| {
        network::published()?;
        pods::of_podman()
    })?;
    joined_and_stopped(release)?;
    on_the_lightweight_kernel()?;
    killed()?;
    its_kernel_ends()
}

fn podman_with(input: &str, words: &[&str]) -> Result<Ended, Finding> {
    let mut command = Command::new("podman");
    command.args(["--cgroup-manager=cgroupfs", "--events-backend=none"]);
    command.args([
        &format!("--root={}", KEPT[0]),
        &format!("--runroot={}", KEPT[1]),
    ]);
    command.args(["--storage-driver=vfs", &format!("--runtime={RUNTIME}")]);
    command.args(words);
    Ended::of(command, input)
}

pub(super) fn podman(words: &[&str]) -> Result<String, Finding> {
    podman_with("", words)?.with_status(0)
}

/// Its programs are podman's processes on the base: with its network, filter of calls, capabilities, users and volumes.
fn on_the_lightweight_kernel() -> Result<(), Finding> {
    let annotation = format!("{}={}", delegated::IMAGE, delegated::LWK);
    let volume = format!("{VOLUME}:/data:ro");
    let options = [
        "--annotation",
        &annotation,
        "-v",
        &volume,
        "--user",
        "web",
        "--hostname",
        "shop",
        "--read-only",
    ];
    let script = "busybox nproc; busybox hostname; busybox id -u; cat /data/there; \
                  echo no > /data/there; busybox unshare -m true; \
                  busybox grep Seccomp: /proc/self/status | busybox tr -d '\\t'; exit 7";
    let ended = run(&options, script)?;
    let is_refused = |word: &str| ended.errors.contains(word);
    Finding::unless(is_refused("Read-only") && is_refused("unshare"), || {
        format!("{ended:?}")
    })?;
    let content = fs::read_to_string(Path::new(VOLUME).join("there"))?;
    let expected = format!("1\nshop\n33\n{content}Seccomp:2\n");
    assert_equal("its output", &ended.with_status(7)?, &expected)?;
    nothing_is_left()
}

/// Runs a script in a container without a network.
fn run(options: &[&str], script: &str) -> Result<Ended, Finding> {
    run_on("none", options, script)
}

/// Runs a script in a container that is removed after it.
fn run_on(network: &str, options: &[&str], script: &str) -> Result<Ended, Finding> {
    let run = ["run", "--rm", "--network", network];
    let program = ["--rootfs", ROOTFS, "sh", "-c", script];
    podman_with("its input\n", &[&run[..], options, &program].concat())
}

/// Starts a container that waits for a signal.
fn start(name: &str) -> Result<(), Finding> {
    let run = [
        "run",
        "-d",
        "--log-driver=k8s-file",
        "--network",
        "none",
        "--name",
        name,
    ];
    podman(&[&run[..], &["--rootfs", ROOTFS, "sh", "-c", WAITS]].concat())?;
    wait_for("the container's first words", || {
        let logs = podman(&["logs", name])?;
        Ok(logs.contains("ready").then_some(()))
    })
}

/// The kernel is another one, of the cores and the memory that the container's limits say.
fn output_and_status(release: &str) -> Result<(), Finding> {
    let script = "uname -r; busybox hostname; busybox nproc; echo $A; pwd; echo err >&2; exit 7";
    let options = [
        "--hostname",
        "shop",
        "-e",
        "A=x  y",
        "-w",
        "/bin",
        "--cpus",
        "1.5",
    ];
    let ended = run(&options, script)?;
    Finding::unless(ended.errors.contains("err\n"), || format!("{ended:?}"))?;
    let output = ended.with_status(7)?;
    let expected = format!("{release}\nshop\n2\nx y\n/bin\n");
    assert_equal("its output", &output, &expected)?;
    nothing_is_left()?;
    let ended = run(&["--memory", "256m"], "busybox grep MemTotal /proc/meminfo")?;
    let output = ended.with_status(0)?;
    let kib = output.split_whitespace().nth(1).unwrap_or_default();
    let kib: u64 = kib.parse()?;
    Finding::unless((128 << 10..256 << 10).contains(&kib), || {
        format!("it has {kib} KiB of memory")
    })?;
    nothing_is_left()
}

fn users_and_files() -> Result<(), Finding> {
    fs::write(Path::new(VOLUME).join("there"), "of the base\n")?;
    let script = "busybox id -u; busybox id -G; cat /data/there; echo made > /made-there";
    let volume = format!("{VOLUME}:/data/of/it:ro");
    let file = format!("{VOLUME}/there:/data/there");
    let options = [
        "-v",
        &volume,
        "-v",
        &file,
        "--user",
        "web",
        "--group-add",
        "4",
    ];
    let ended = run(&options, script)?;
    Finding::unless(ended.errors.contains("/made-there"), || {
        format!("{ended:?}")
    })?;
    let output = ended.with_status(1)?;
    assert_equal("what it has", &output.as_str(), &"33\n33 4\nof the base\n")?;
    let script = "test -e /run/.containerenv && echo no > /data/of/it/no; echo new > /data/there; echo root > /made";
    let ended = run(&options[..4], script)?;
    Finding::unless(ended.errors.contains("Read-only"), || format!("{ended:?}"))?;
    ended.with_status(0)?;
    for (file, content) in [(VOLUME, "new\n"), (ROOTFS, "root\n")] {
        let name = if file == VOLUME { "there" } else { "made" };
        let found = fs::read_to_string(Path::new(file).join(name))?;
        assert_equal("what it has written", &found.as_str(), &content)?;
    }
    nothing_is_left()
}

fn input_and_terminal() -> Result<(), Finding> {
    let output = run(&["-i"], "cat; test -t 1 || echo none")?.with_status(0)?;
    assert_equal("its input", &output.as_str(), &"its input\nnone\n")?;
    let output = run(&[], "cat; echo end")?.with_status(0)?;
    assert_equal("without input", &output.as_str(), &"end\n")?;
    let output = run(&["-t"], "test -t 0 && test -t 1 && echo a terminal")?.with_status(0)?;
    assert_equal("with a terminal", &output.as_str(), &"a terminal\r\n")?;
    let output = run(&["--init"], "cat /proc/1/comm")?.with_status(0)?;
    assert_equal("its first process", &output.as_str(), &"podman-init\n")?;
    nothing_is_left()
}

/// A container of an image has what that says, and a root that podman has made of it.
fn of_an_image() -> Result<(), Finding> {
    import()?;
    let output = podman(&["run", "--rm", "--network", "none", "busybox"])?;
    assert_equal(
        "its output",
        &output.as_str(),
        &"of-the-image\n/etc\nroot\n",
    )?;
    nothing_is_left()
}

/// Makes an image of the root.
pub(super) fn import() -> Result<(), Finding> {
    let mut tar = Command::new("tar");
    tar.args(["-C", ROOTFS, "-cf", ARCHIVE, "."]);
    Ended::of(tar, "")?.with_status(0)?;
    let command = "CMD [\"sh\", \"-c\", \"echo $B; pwd; cat /made\"]";
    let changes = ["ENV B=of-the-image", "WORKDIR /etc", command];
    let changes = changes.iter().flat_map(|change| ["--change", change]);
    let import: Vec<_> = ["import"]
        .into_iter()
        .chain(changes)
        .chain([ARCHIVE, "busybox"])
        .collect();
    podman(&import)?;
    Ok(fs::remove_file(ARCHIVE)?)
}

fn on_the_network_of_nodes() -> Result<(), Finding> {
    let ended = run_on(
        "host",
        &["--cap-add", "NET_RAW"],
        "busybox ping -c 1 -w 60 10.78.0.1 > /dev/null && echo yes",
    )?;
    assert_equal(
        "it reaches the base",
        &ended.with_status(0)?.as_str(),
        &"yes\n",
    )?;
    nothing_is_left()
}

fn joined_and_stopped(release: &str) -> Result<(), Finding> {
    start("web")?;
    let node = node_of("web")?;
    let shown = &insula_json(&["inspect", &node])?[0];
    assert_equal("its image", &text(&shown["image"]), &IMAGE.to_owned())?;
    let listed = podman(&["ps", "--format", "{{.Names}}"])?;
    assert_equal("podman's list", &listed.as_str(), &"web\n")?;
    let exec = ["exec", "-e", "A=1", "-w", "/bin", "-u", "33", "web"];
    let script = "uname -r; echo $A; pwd; busybox id -u; exit 3";
    let output = podman_with("", &[&exec[..], &["sh", "-c", script]].concat())?.with_status(3)?;
    assert_equal(
        "who joins it",
        &output,
        &format!("{release}\n1\n/bin\n33\n"),
    )?;
    let output = podman_with("its input\n", &["exec", "-i", "web", "cat"])?.with_status(0)?;
    assert_equal("its input", &output.as_str(), &"its input\n")?;
    for (program, status, why) in [
        ("/no/such", 127, "No such file"),
        ("/etc", 126, "Permission denied"),
    ] {
        let ended = podman_with("", &["exec", "web", program])?;
        assert_equal(program, &ended.status, &Some(status))?;
        ended.refused(&[why])?;
    }
    podman(&["stop", "-t", "60", "web"])?;
    let logs = podman(&["logs", "web"])?;
    // The signal was for it alone.
    let expected = "ready\ncaught, its child ended with 137\n";
    assert_equal("its log", &logs.as_str(), &expected)?;
    let state = podman(&["inspect", "--format", "{{.State.ExitCode}}", "web"])?;
    assert_equal("its status", &state.as_str(), &"9\n")?;
    nothing_is_left()?;
    // Started anew, on a new node.
    podman(&["start", "web"])?;
    podman(&["exec", "web", "busybox", "true"])?;
    podman(&["rm", "--force", "-t", "0", "web"])?;
    nothing_is_left()
}

/// The node of a container, by podman's name for it.
fn node_of(name: &str) -> Result<String, Finding> {
    let id = podman(&["inspect", "--format", "{{.Id}}", name])?;
    Ok(id.chars().take(12).collect())
}

/// Nothing of a container survives what stands for it.
fn killed() -> Result<(), Finding> {
    start("killed")?;
    podman(&["kill", "killed"])?;
    nothing_is_left()?;
    podman(&["start", "killed"])?;
    podman(&["exec", "killed", "busybox", "true"])?;
    let pid = podman(&["inspect", "--format", "{{.State.Pid}}", "killed"])?;
    kill(Pid::from_raw(pid.trim().parse()?), Signal::SIGKILL)?;
    nothing_is_left()?;
    podman(&["rm", "--force", "killed"])?;
    nothing_is_left()
}

/// A container ends with its kernel, and says why.
fn its_kernel_ends() -> Result<(), Finding> {
    start("ends")?;
    insula(&["kill", &node_of("ends")?])?;
    let status = podman(&["wait", "ends"])?;
    assert_equal("its status", &status.as_str(), &"125\n")?;
    let logs = podman_with("", &["logs", "ends"])?;
    let is_said = |part: &str| logs.errors.contains(part);
    Finding::unless(is_said("has ended") && is_said("killed"), || {
        format!("{logs:?}")
    })?;
    podman(&["rm", "ends"])?;
    nothing_is_left()
}
