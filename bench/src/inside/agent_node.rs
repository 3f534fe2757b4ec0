//! Nodes with an agent, and containers, from the same folder.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::base::Finding;
use testbed::host::payload::equipment::{CRIU_PATH, MODULES_PATH};

use super::Inside;
use super::probe::PROBE;

/// Content of each of them: a busybox, and the probe.
pub const FOLDER: &str = "/run/living";
/// Path of busybox in there.
pub const BUSYBOX: &str = "/bin/busybox";

impl Inside {
    /// Makes an image with an agent resident under `name`, with the kernel whose version starts
    /// with `version`.
    ///
    /// # Errors
    /// When the command fails.
    pub fn build_image(&self, name: &str, version: &str) -> Result<(), Finding> {
        self.build(name, version, &["--content", FOLDER])
    }

    /// The same, of nodes whose containers can be moved.
    ///
    /// # Errors
    /// When the command fails.
    pub fn build_image_with_criu(&self, name: &str, version: &str) -> Result<(), Finding> {
        self.build(name, version, &[&format!("--criu={CRIU_PATH}")])
    }

    /// Returns the address of a node with a network.
    ///
    /// # Errors
    /// When it has none.
    pub fn address_of(&self, node: &str) -> Result<String, Finding> {
        let inspected: Value = serde_json::from_str(&self.command.run(&["inspect", node])?)?;
        let address = inspected[0]["address"].as_str().map(str::to_owned);
        address.ok_or_else(|| Finding::new(format!("{node} has no address")))
    }

    fn build(&self, name: &str, version: &str, more: &[&str]) -> Result<(), Finding> {
        // Transport of sockets between base and node.
        run(Command::new("modprobe").arg("vhost_vsock"))?;
        make_folder()?;
        let release = self.machine.release(version)?;
        let modules = format!("{MODULES_PATH}/{release}");
        let kernel = ["--installed", &release, "--module-folder", &modules];
        let words = [&["image", "build", name], &kernel[..], more].concat();
        self.command.run(&words).map(drop)
    }
}

/// Path of the probe in there.
pub const INSIDE_PROBE: &str = "/bin/probe";

/// `podman` with these arguments, on a machine without systemd. Its storage is in memory.
#[must_use]
pub fn podman(words: &[&str]) -> Command {
    let mut command = Command::new("podman");
    command.args(["--cgroup-manager=cgroupfs", "--events-backend=none"]);
    command.args(["--root=/run/podman", "--runroot=/run/podman-state"]);
    command.args(words);
    command
}

/// Arguments of `podman run` for a container whose root is the folder.
pub const CONTAINER: [&str; 4] = ["--network", "none", "--rootfs", FOLDER];

fn make_folder() -> Result<(), Finding> {
    let program = Path::new(FOLDER).join(&BUSYBOX[1..]);
    for folder in ["bin", "dev", "etc", "proc", "run", "sys", "tmp"] {
        fs::create_dir_all(Path::new(FOLDER).join(folder))?;
    }
    fs::copy(BUSYBOX, program)?;
    fs::copy(PROBE, Path::new(FOLDER).join(&INSIDE_PROBE[1..]))?;
    Ok(())
}

/// Runs a program to its end and returns its duration.
///
/// # Errors
/// When it fails.
pub fn run(command: &mut Command) -> Result<Duration, Finding> {
    let enter = Instant::now();
    let output = command.stdin(Stdio::null()).output()?;
    let took = enter.elapsed();
    let message = || format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Finding::unless(output.status.success(), message)?;
    Ok(took)
}

/// Runs a program to its end and returns its output.
///
/// # Errors
/// When it fails.
pub fn output_of(command: &mut Command) -> Result<String, Finding> {
    let output = command.stdin(Stdio::null()).output()?;
    let message = || format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Finding::unless(output.status.success(), message)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs programs one after the other, each a line of words without blanks in them.
///
/// # Errors
/// When one fails.
pub fn run_lines(lines: &[&str]) -> Result<(), Finding> {
    lines.iter().try_for_each(|line| {
        let mut words = line.split(' ');
        run(Command::new(words.next().unwrap_or_default()).args(words)).map(drop)
    })
}

/// Duration of a round of the probe, in seconds: the first number that it prints is in ticks.
///
/// # Errors
/// When it fails.
pub fn probed_s(inside: &Inside, command: &mut Command) -> Result<f64, Finding> {
    let output = command.stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let ticks = text.split_whitespace().next().map(str::parse::<f64>);
    let error = String::from_utf8_lossy(&output.stderr);
    let bad = || Finding::new(format!("{command:?} printed `{text}`: {error}"));
    let ticks = ticks.ok_or_else(bad)?.map_err(|_| bad())?;
    Ok(ticks / 1e3 / f64::from(inside.driver.machine()?.0.tsc_khz))
}

/// Runs a program to its end and returns the time to its first line, which must be `wanted`.
///
/// # Errors
/// When it prints something else, or fails.
pub fn run_to_line(command: &mut Command, wanted: &str) -> Result<Duration, Finding> {
    let enter = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    let took = enter.elapsed();
    let status = child.wait()?;
    let message = || format!("{command:?} printed {line:?} and ended with {status}");
    Finding::unless(status.success() && line.trim_end() == wanted, message)?;
    Ok(took)
}
