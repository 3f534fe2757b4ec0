//! Containers run on kernels of their own by the OCI runtime `insula-oci`, called as engines call it, by podman and by containerd: with their
//! output, status, users, files and terminals; they are joined, stopped and killed as any others, and leave nothing behind.

mod bundles;
mod containerd;
mod network;
mod pods;

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::agent::make_programs;
use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, names, tell, text, wait_for, with_cleanup,
};
use crate::base::support::virtio_modules::{NETWORK_MODULES, SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;
use crate::host::payload::equipment::MODULES_PATH;
use crate::host::root::Root;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "oci",
    proves: "an OCI runtime runs bundles on kernels of their own",
    machine: Shape {
        emulator: Emulator::Backports,
        thread_per_core: true,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: std::time::Duration::from_secs(600),
    soak_limit: None,
    play,
};

pub(crate) const PODMAN: Scenario = Scenario {
    name: "podman",
    proves: "podman runs containers on kernels of their own",
    machine: Shape {
        root: Root::Bench,
        ..SCENARIO.machine
    },
    // The root disk with podman takes long to make.
    bases: &[],
    limit: std::time::Duration::from_secs(1200),
    play: play_podman,
    ..SCENARIO
};

pub(crate) const CONTAINERD: Scenario = Scenario {
    name: "containerd",
    proves: "containerd runs containers on kernels of their own",
    limit: std::time::Duration::from_secs(600),
    play: play_containerd,
    ..PODMAN
};

/// The runtime as its package installs it.
pub(super) const RUNTIME: &str = "/usr/local/sbin/insula-oci";
const COMMAND: &str = "/payload/bin/insula";
/// What serves a container's files, where the process that stands for it finds it: its PATH is not the scenario's.
const VIRTIOFSD: &str = "/usr/local/sbin/virtiofsd";
const PAYLOADS_VIRTIOFSD: &str = "/payload/bin/virtiofsd";
/// The kernel of the containers' nodes, which is not the base's.
const KERNEL: &str = "6.1";
/// The image of which nothing has to be said.
const IMAGE: &str = "container";
/// Root of all containers, and a folder that they have as a volume.
const ROOTFS: &str = "/run/oci-root";
const VOLUME: &str = "/run/oci-volume";
/// An archive of that root.
const ARCHIVE: &str = "/run/oci-root.tar";
/// What podman keeps.
const KEPT: [&str; 2] = ["/run/oci-podman", "/run/oci-podman-state"];
const USERS: &str = "root:x:0:0::/root:/bin/sh\nweb:x:33:33::/srv:/bin/sh\n";
/// Waits for a signal.
const WAITS: &str = "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.1; done";
/// Modules that the base loads for containers' networks, beside those of nodes'.
const MODULES: [&str; 12] = [
    "veth",
    "xt_addrtype",
    "xt_nat",
    "xt_tcpudp",
    "xt_mark",
    "xt_conntrack",
    "xt_comment",
    "xt_MASQUERADE",
    "nft_compat",
    "x_tables",
    "nft_fib_inet",
    "nft_fib_ipv6",
];
/// The runtime's folder, where no container leaves anything.
pub(super) const FOLDER: &str = "/run/insula/oci";

fn play(context: &Context) -> Result<(), Finding> {
    with_root(context, bundles::play)
}

fn play_podman(context: &Context) -> Result<(), Finding> {
    with_podman(context, of_podman)
}

fn play_containerd(context: &Context) -> Result<(), Finding> {
    with_podman(context, |release| {
        import()?;
        containerd::play(release)
    })
}

/// Removes all that podman has after `play`.
fn with_podman(
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

/// Makes the containers' root and image, and the runtime a program, as long as `play` is played. It is given the release of
/// their kernel.
pub(super) fn with_root(
    context: &Context,
    play: impl FnOnce(&str) -> Result<(), Finding>,
) -> Result<(), Finding> {
    load_sockets()?;
    symlink(COMMAND, RUNTIME)?;
    symlink(PAYLOADS_VIRTIOFSD, VIRTIOFSD)?;
    make_programs(ROOTFS)?;
    fs::create_dir(Path::new(ROOTFS).join("etc"))?;
    fs::write(Path::new(ROOTFS).join("etc/passwd"), USERS)?;
    fs::create_dir(VOLUME)?;
    let played = with_cleanup(|| {
        let release = context.release(KERNEL)?;
        let modules = format!("{MODULES_PATH}/{release}");
        let build = ["image", "build", IMAGE, "--installed", &release];
        insula(&[&build[..], &["--module-folder", &modules]].concat())?;
        play(&release)
    });
    let removed = [ROOTFS, VOLUME].iter().try_for_each(fs::remove_dir_all);
    let removed = removed.and([RUNTIME, VIRTIOFSD].iter().try_for_each(fs::remove_file));
    played?;
    removed?;
    unload(&[&MODULES[..], &NETWORK_MODULES, &SOCKET_MODULES].concat())
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
    killed()?;
    its_kernel_ends()
}

/// What a run of a program has given.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    status: Option<i32>,
    output: String,
    errors: String,
}

impl Ended {
    /// Runs a program with that input.
    fn of(mut command: Command, input: &str) -> Result<Self, Finding> {
        let began = Instant::now();
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.stderr(Stdio::piped()).spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        let ended = child.wait_with_output()?;
        let words = command.get_args().map(|word| word.to_string_lossy());
        let words: Vec<_> = words.filter(|word| !word.starts_with("--")).collect();
        tell(began, &format!("`{} ...`", words.join(" ")));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Self {
            status: ended.status.code(),
            output: text(&ended.stdout),
            errors: text(&ended.stderr),
        })
    }

    /// Its output; fails unless it ended with this status.
    fn with_status(self, status: i32) -> Result<String, Finding> {
        Finding::unless(self.status == Some(status), || {
            format!("{self:?}, not status {status}")
        })?;
        Ok(self.output)
    }

    /// Fails unless it ended with a status that is no success, and these words.
    fn refused(self, parts: &[&str]) -> Result<(), Finding> {
        let is_said = |part: &&str| self.errors.contains(*part);
        let is_refused = self.status != Some(0) && parts.iter().all(is_said);
        Finding::unless(is_refused, || format!("{self:?}, not refused by {parts:?}"))
    }
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

fn podman(words: &[&str]) -> Result<String, Finding> {
    podman_with("", words)?.with_status(0)
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

/// Podman deletes a container that has ended by a process of its own.
fn nothing_is_left() -> Result<(), Finding> {
    wait_for("the container to be gone", || {
        let nodes = names(&["ps", "--all", "--json"])?;
        let is_gone = nodes.is_empty() && !Path::new(FOLDER).exists();
        Ok(is_gone.then_some(()))
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
    let script = "echo no > /data/of/it/no; echo new > /data/there; echo root > /made";
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
fn import() -> Result<(), Finding> {
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
        &[],
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
    podman_with("", &["exec", "web", "/no/such"])?.refused(&[])?;
    podman(&["stop", "-t", "60", "web"])?;
    let logs = podman(&["logs", "web"])?;
    assert_equal("its log", &logs.as_str(), &"ready\ncaught\n")?;
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
