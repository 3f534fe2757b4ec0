//! containerd, which calls the runtime by its shim for runc: output and status, further programs, signals, pods.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::network::{PATH, with_namespace};
use super::podman::podman;
use super::{Ended, RUNTIME, USERS, WAITS, nothing_is_left};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, names, wait_for, with_cleanup};

/// What containerd keeps, and what its shims do.
pub(super) const FOLDER: &str = "/run/oci-containerd";
const OF_SHIMS: &str = "/run/containerd";
pub(super) const SOCKET: &str = "/run/oci-containerd/socket";
/// The image, as podman has saved it.
const ARCHIVE: &str = "/run/oci-containerd/image.tar";
const IMAGE: &str = "localhost/busybox:latest";
/// Lines of a log that are shown.
const LINES: usize = 40;
/// Seconds that a call may take: ctr would wait forever for what does not come.
const LIMIT_S: &str = "60";
/// The annotation that names the sandbox.
const SANDBOX: &str = "io.kubernetes.cri.sandbox-id=sandbox";
/// Parts that would load modules, or want what this machine has not.
const CONFIG: &str = r#"version = 2
root = "/run/oci-containerd/root"
state = "/run/oci-containerd/state"
disabled_plugins = [
    "io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.overlayfs", "io.containerd.snapshotter.v1.zfs",
]
[grpc]
address = "/run/oci-containerd/socket"
"#;

/// Plays with containers of the image that podman has.
pub(super) fn play(release: &str) -> Result<(), Finding> {
    with_daemon(CONFIG, || {
        podman(&["save", "-q", "-o", ARCHIVE, "busybox"])?;
        with_image(release)
    })
}

/// Plays something while containerd runs, with that configuration. All that it keeps is removed.
pub(super) fn with_daemon(
    config: &str,
    play: impl FnOnce() -> Result<(), Finding>,
) -> Result<(), Finding> {
    fs::create_dir(FOLDER)?;
    let played = with_cleanup(|| {
        let mut daemon = start(config)?;
        let played = play().map_err(|error| error.when(&last_lines(FOLDER)));
        kill(Pid::from_raw(daemon.id().cast_signed()), Signal::SIGTERM)?;
        daemon.wait()?;
        played
    });
    let removed = [FOLDER, OF_SHIMS].iter().try_for_each(fs::remove_dir_all);
    played?;
    Ok(removed?)
}

/// The end of the log in a daemon's folder, which tells why something has failed.
pub(super) fn last_lines(folder: &str) -> String {
    let log = fs::read_to_string(Path::new(folder).join("log")).unwrap_or_default();
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Starts containerd, and waits until it answers.
fn start(text: &str) -> Result<Child, Finding> {
    let config = Path::new(FOLDER).join("config.toml");
    fs::write(&config, text)?;
    let log = File::create(Path::new(FOLDER).join("log"))?;
    let mut containerd = Command::new("containerd");
    containerd.arg("--config").arg(&config).stdin(Stdio::null());
    let child = containerd.stdout(log.try_clone()?).stderr(log).spawn()?;
    wait_for("containerd", || {
        Ok(ctr("", &["version"])?.with_status(0).ok())
    })?;
    Ok(child)
}

pub(super) fn ctr(input: &str, words: &[&str]) -> Result<Ended, Finding> {
    let mut command = Command::new("timeout");
    command
        .args(["-s", "KILL", LIMIT_S, "ctr", "--address", SOCKET])
        .args(words);
    Ended::of(command, input)
}

/// Runs a script in a container of that name.
fn run(name: &str, options: &[&str], script: &str) -> Result<Ended, Finding> {
    let run = ["run", "--snapshotter", "native", "--runc-binary", RUNTIME];
    let program = [IMAGE, name, "sh", "-c", script];
    ctr("its input\n", &[&run[..], options, &program].concat())
}

fn with_image(release: &str) -> Result<(), Finding> {
    let import = ["image", "import", "--snapshotter", "native", ARCHIVE];
    ctr("", &import)?.with_status(0)?;
    // ctr may miss the end of its input, by whatever runtime: only a line is read.
    let script = "uname -r; echo $A; read -r line; echo \"$line\"; exit 3";
    let ended = run("one", &["--rm", "--env", "A=1"], script)?;
    let output = ended.with_status(3)?;
    assert_equal("its output", &output, &format!("{release}\n1\nits input\n"))?;
    nothing_is_left()?;
    joined_and_stopped(release)?;
    with_namespace(pod)
}

fn joined_and_stopped(release: &str) -> Result<(), Finding> {
    run("web", &["--detach", "--null-io"], WAITS)?.with_status(0)?;
    let exec = ["task", "exec", "--exec-id", "further", "web", "uname", "-r"];
    let output = ctr("", &exec)?.with_status(0)?;
    assert_equal("who joins it", &output.trim(), &release)?;
    end("web", "SIGTERM", 9)?;
    run("web", &["--detach", "--null-io"], WAITS)?.with_status(0)?;
    end("web", "SIGKILL", 137)?;
    nothing_is_left()
}

/// Signals a container, and removes it when it has ended with that status.
fn end(name: &str, signal: &str, status: i32) -> Result<(), Finding> {
    ctr("", &["task", "kill", "--signal", signal, name])?.with_status(0)?;
    wait_for("the container's end", || {
        let listed = ctr("", &["task", "list"])?.with_status(0)?;
        let mut lines = listed.lines();
        Ok(lines
            .any(|line| line.starts_with(name) && line.contains("STOPPED"))
            .then_some(()))
    })?;
    let deleted = ctr("", &["task", "delete", name])?;
    let is_told = deleted.errors.contains(&format!("exit code {status}"));
    Finding::unless(is_told, || format!("{deleted:?}, not {status}"))?;
    ctr("", &["container", "delete", name])?
        .with_status(0)
        .map(drop)
}

/// Containers of one network namespace, and one with the annotations that Kubernetes' have.
fn pod() -> Result<(), Finding> {
    let namespace = format!("network:{PATH}");
    let shared = ["--with-ns", &namespace];
    let detached = [&shared[..], &["--detach", "--null-io"]].concat();
    run("sandbox", &detached, WAITS)?.with_status(0)?;
    run("server", &detached, "exec busybox httpd -f -p 8000 -h /etc")?.with_status(0)?;
    let get = "until busybox wget -qO- http://127.0.0.1:8000/passwd; do sleep 0.1; done";
    let page = run("client", &["--rm", "--annotation", SANDBOX], get)?.with_status(0)?;
    assert_equal("the page", &page.as_str(), &USERS)?;
    assert_equal(
        "the nodes",
        &names(&["ps", "--json"])?,
        &vec!["sandbox".to_owned()],
    )?;
    end("server", "SIGKILL", 137)?;
    end("sandbox", "SIGTERM", 9)?;
    nothing_is_left()
}
