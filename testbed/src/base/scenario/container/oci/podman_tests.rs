//! Podman's own system tests, by `insula-oci`, and those that fail by crun on the same machine: what crun passes `insula-oci`
//! does, too, except for a list of tests, each with a reason.

mod expected;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write, stdout};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::network::{run, with_podmans};
use super::{Ended, RUNTIME, SCENARIO as OCI, with_root};
use crate::base::support::insula_command::{tell, wait_for};
use crate::base::{Context, Finding, Scenario, Shape};
use crate::host::root::{PODMAN_TESTS, Root};
use expected::EXCEPTIONS;

/// Those of `podman run`.
pub(crate) const RUN: Scenario = Scenario {
    name: "podman_tests_run",
    play: |context| play(context, &["030-run"]),
    ..SCENARIO
};
/// Those of a container's life: its start and end, its signals, its further processes and what they print.
pub(crate) const LIFE: Scenario = Scenario {
    name: "podman_tests_life",
    play: |context| {
        let files = [
            "032-sig-proxy",
            "035-logs",
            "045-start",
            "050-stop",
            "055-rm",
            "075-exec",
            "080-pause",
            "130-kill",
            "220-healthcheck",
            "450-interactive",
        ];
        play(context, &files)
    },
    ..SCENARIO
};
/// Those of volumes.
pub(crate) const VOLUMES: Scenario = Scenario {
    name: "podman_tests_volumes",
    play: |context| play(context, &["160-volumes"]),
    ..SCENARIO
};
/// Those of files that are copied into and out of containers.
pub(crate) const COPY: Scenario = Scenario {
    name: "podman_tests_cp",
    machine: Shape {
        // A test has up to fifteen containers at the same time.
        cpus: 17,
        memory_mib: 11264,
        ..SCENARIO.machine
    },
    play: |context| play(context, &["065-cp"]),
    ..SCENARIO
};
/// Those of pods and networks.
pub(crate) const NETWORKS: Scenario = Scenario {
    name: "podman_tests_networks",
    play: |context| play(context, &["200-pod", "500-networking"]),
    ..SCENARIO
};

const SCENARIO: Scenario = Scenario {
    proves: "the OCI runtime passes podman's tests that crun passes, or there is a reason",
    machine: Shape {
        // A test has up to twelve containers at the same time.
        cpus: 14,
        memory_mib: 9216,
        root: Root::Conformance,
        ..OCI.machine
    },
    // Its root disk takes Go to make, and the tests take hours.
    bases: &[],
    limit: Duration::from_secs(4 * 3600),
    ..OCI
};

/// The runtimes, by name and path: it, and the one that it is compared with.
const OWN: (&str, &str) = ("insula-oci", RUNTIME);
const CRUN: (&str, &str) = ("crun", "/usr/bin/crun");
/// The image of the tests, and one that they pull.
const IMAGES: [&str; 2] = [
    "quay.io/libpod/testimage:20220615",
    "quay.io/libpod/testimage:00000004",
];
const MAKE_IMAGES: &str = include_str!("podman_tests/images.sh");
/// Where memory is mounted for all of them. Not below `/run`: there nothing can be copied into a container, which a test does by
/// the path of podman's storage.
const MEMORY: &str = "/mnt";
/// The registry, its folder and its configuration. Nothing is asked of any other one.
const REGISTRY: &str = "127.0.0.1:5000";
const FOLDER: &str = "/mnt/podman-tests";
const REGISTRY_CONFIG: &str = "version: 0.1
storage: {filesystem: {rootdirectory: /mnt/podman-tests/registry}}
http: {addr: '127.0.0.1:5000'}
log: {accesslog: {disabled: true}, level: error}
";
const REGISTRIES: (&str, &str) = (
    "/etc/containers/registries.conf.d/tests.conf",
    "[[registry]]\nprefix = \"quay.io\"\nlocation = \"127.0.0.1:5000\"\ninsecure = true\n",
);
const STORAGE: (&str, &str) = (
    "/etc/containers/storage.conf",
    "[storage]\ndriver = \"vfs\"\nrunroot = \"/mnt/podman-tests/run\"\ngraphroot = \"/mnt/podman-tests/storage\"\n",
);
/// Where podman is told which runtime it has. There is neither systemd nor its journal.
const ENGINE: &str = "/etc/containers/containers.conf";
/// What the tests call as podman, and its text: pods without a control group for their containers', which may use no device
/// in podman 4.3 without systemd, by whatever runtime.
const PODMAN: &str = "/mnt/podman-tests/podman";
const WITHOUT_GROUP: &str = r#"#!/bin/sh
if [ "$1 $2" = "pod create" ]; then
    shift 2
    set -- pod create --share-parent=false "$@"
fi
exec podman "$@"
"#;
/// Seconds that a call of podman may take: containers start slowly on an emulated machine.
const CALL_LIMIT_S: &str = "240";

/// Plays the tests of these files.
fn play(context: &Context, files: &[&str]) -> Result<(), Finding> {
    with_root(context, |_| {
        let played = with_podmans(|| with_images(|| compare(files)));
        let configured = [REGISTRIES.0, STORAGE.0, ENGINE];
        let removed = configured.iter().try_for_each(fs::remove_file);
        let unmounted = run("umount", &[MEMORY]);
        played?;
        removed?;
        unmounted.map(drop)
    })
}

/// Plays something while there is a registry with the images.
fn with_images(play: impl FnOnce() -> Result<(), Finding>) -> Result<(), Finding> {
    run("mount", &["-t", "tmpfs", "tmpfs", MEMORY])?;
    fs::create_dir(FOLDER)?;
    for (path, text) in [REGISTRIES, STORAGE] {
        fs::write(path, text)?;
    }
    fs::write(PODMAN, WITHOUT_GROUP)?;
    fs::set_permissions(PODMAN, Permissions::from_mode(0o755))?;
    use_runtime(CRUN)?;
    let mut servers = [start_registry()?, start_log()?];
    let played = make_images().and_then(|()| play());
    for server in &mut servers {
        server.kill()?;
        server.wait()?;
    }
    played
}

/// A system log, whose lack netavark's name server tells where tests look.
fn start_log() -> Result<Child, Finding> {
    let mut command = Command::new("busybox");
    command.args(["syslogd", "-n", "-O", "/dev/null"]);
    let log = command.stdin(Stdio::null()).spawn()?;
    wait_for("the system log", || {
        Ok(Path::new("/dev/log").exists().then_some(()))
    })?;
    Ok(log)
}

fn start_registry() -> Result<Child, Finding> {
    let config = Path::new(FOLDER).join("registry.yml");
    fs::write(&config, REGISTRY_CONFIG)?;
    let mut command = Command::new("docker-registry");
    command.arg("serve").arg(config).stdin(Stdio::null());
    let registry = command.stdout(Stdio::null()).spawn()?;
    wait_for("the registry", || Ok(TcpStream::connect(REGISTRY).ok()))?;
    Ok(registry)
}

fn make_images() -> Result<(), Finding> {
    let script = Path::new(FOLDER).join("images.sh");
    fs::write(&script, MAKE_IMAGES)?;
    let mut command = Command::new("sh");
    command.arg(script).args([FOLDER, REGISTRY]).args(IMAGES);
    Ended::of(command, "")?.with_status(0).map(drop)
}

/// Has podman use this runtime.
fn use_runtime((name, path): (&str, &str)) -> Result<(), Finding> {
    let text = format!(
        "[containers]\nlog_driver = \"k8s-file\"\n[engine]\nruntime = \"{name}\"\n\
         runtime_supports_json = [\"{name}\"]\ncgroup_manager = \"cgroupfs\"\n\
         events_logger = \"file\"\n[engine.runtimes]\n{name} = [\"{path}\"]\n\
         [network]\nnetwork_backend = \"netavark\"\n"
    );
    Ok(fs::write(ENGINE, text)?)
}

/// A test: its file, and its name.
type Test = (String, String);

/// Plays the tests of these files, and those that fail once more by crun.
fn compare(files: &[&str]) -> Result<(), Finding> {
    use_runtime(OWN)?;
    let mut own = Outcome::default();
    for file in files {
        let began = Instant::now();
        let of_file = run_tests(file, ".*")?;
        tell(began, &format!("{file}: {}", of_file.summary()));
        own.add_all(of_file);
    }
    use_runtime(CRUN)?;
    let mut cruns = Outcome::default();
    for (file, name) in &own.failed {
        cruns.add_all(run_tests(file, &format!("^{} *$", quoted(name)))?);
    }
    println!(
        "{}: {}, of those crun passes {}",
        OWN.0,
        own.summary(),
        cruns.passed.len()
    );
    judge(&own, &cruns)
}

/// A regular expression for these words.
fn quoted(words: &str) -> String {
    let is_special = |one: char| "\\^$.|?*+()[]{}".contains(one);
    let quote = |one: char| is_special(one).then_some('\\').into_iter().chain([one]);
    words.chars().flat_map(quote).collect()
}

/// Which tests were passed, and which were not. Others say that they do not apply.
#[derive(Debug, Default)]
struct Outcome {
    passed: BTreeSet<Test>,
    failed: BTreeSet<Test>,
}

impl Outcome {
    /// Takes a line of the Test Anything Protocol.
    fn add(&mut self, file: &str, line: &str) {
        let (into, rest) = match line.split_once("ok ") {
            Some(("", rest)) => (&mut self.passed, rest),
            Some(("not ", rest)) => (&mut self.failed, rest),
            _ => return,
        };
        let name = rest.trim_start_matches(|one: char| one.is_ascii_digit());
        if !name.contains("# skip") {
            into.insert((file.to_owned(), name.trim().to_owned()));
        }
    }

    fn add_all(&mut self, other: Self) {
        self.passed.extend(other.passed);
        self.failed.extend(other.failed);
    }

    fn summary(&self) -> String {
        let all = self.passed.len() + self.failed.len();
        format!("{} of {all} passed", self.passed.len())
    }
}

/// Plays the tests of a file whose names match, and prints what they say.
fn run_tests(file: &str, names: &str) -> Result<Outcome, Finding> {
    let mut tests = Command::new("bats")
        .args(["--tap", "--filter", names, &format!("{file}.bats")])
        .env("PODMAN", PODMAN)
        .env("PODMAN_TIMEOUT", CALL_LIMIT_S)
        .current_dir(PODMAN_TESTS)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut outcome = Outcome::default();
    for line in tests
        .stdout
        .take()
        .into_iter()
        .flat_map(|output| BufReader::new(output).lines())
    {
        let line = line?;
        println!("    {line}");
        let _ = stdout().flush();
        outcome.add(file, &line);
    }
    tests.wait()?;
    Ok(outcome)
}

/// What crun passes, it passes, or there is a reason; where there is one, it does not.
fn judge(own: &Outcome, cruns: &Outcome) -> Result<(), Finding> {
    let exceptions = EXCEPTIONS.iter();
    let exceptions = exceptions.map(|(file, name, _)| ((*file).to_owned(), (*name).to_owned()));
    let exceptions: BTreeSet<Test> = exceptions.collect();
    let worse: Vec<_> = cruns.passed.difference(&own.passed).collect();
    let worse: Vec<_> = worse
        .into_iter()
        .filter(|test| !exceptions.contains(*test))
        .collect();
    Finding::unless(worse.is_empty(), || format!("crun passes {worse:#?}"))?;
    let better: Vec<_> = own.passed.intersection(&exceptions).collect();
    Finding::unless(better.is_empty(), || {
        format!("passed, without need of a reason: {better:#?}")
    })?;
    Finding::unless(!own.passed.is_empty(), || "none is passed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_as_they_are() {
        assert_eq!(quoted("a - b (#1.2) [$x]"), "a - b \\(#1\\.2\\) \\[\\$x\\]");
    }

    #[test]
    fn outcomes_are_those_that_tests_print() {
        let mut outcome = Outcome::default();
        let lines = [
            "1..4",
            "ok 1 podman run - basic tests",
            "not ok 2 podman rm # of 2",
            "# (in test file 030-run.bats, line 31)",
            "ok 3 podman run --tz # skip not here",
            "ok 14 podman run",
        ];
        lines.iter().for_each(|line| outcome.add("030-run", line));
        let test = |name: &str| ("030-run".to_owned(), name.to_owned());
        let passed = [test("podman run"), test("podman run - basic tests")];
        assert_eq!(outcome.passed, BTreeSet::from(passed));
        assert_eq!(outcome.failed, BTreeSet::from([test("podman rm # of 2")]));
    }
}
