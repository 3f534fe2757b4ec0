//! Containers of bundles, by the runtime's own command line; and bundles that are refused.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{
    Ended, FOLDER, ROOTFS, RUNTIME, USERS, VOLUME, WAITS, changes, copied, delegated, network,
    nothing_is_left, pods, restrictions,
};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, insula, wait_for};
use crate::base::support::terminal::on_terminal;

/// The bundle's folder, and what the container prints.
const BUNDLE: &str = "/run/oci-bundle";
/// Its configuration, and the usual one.
const CONFIG: &str = "config.json";
const SPEC: &str = "/run/oci-bundle/usual.json";
const LOG: &str = "/run/oci-bundle/log";
/// The file to which its output goes.
pub(super) const OUTPUT: &str = "/run/oci-bundle/output";
pub(super) const NAME: &str = "bundle";

pub(super) fn play(release: &str) -> Result<(), Finding> {
    fs::create_dir(BUNDLE)?;
    let mut spec = Command::new("crun");
    spec.arg("spec").current_dir(BUNDLE);
    Ended::of(spec, "")?.with_status(0)?;
    fs::rename(Path::new(BUNDLE).join(CONFIG), SPEC)?;
    let played = from_create_to_delete(release)
        .and_then(|()| changes::play())
        .and_then(|()| restrictions::play())
        .and_then(|()| delegated::play())
        .and_then(|()| on_copies())
        .and_then(|()| network::play())
        .and_then(|()| pods::play())
        .and_then(|()| refusals());
    fs::remove_dir_all(BUNDLE)?;
    played
}

fn on_copies() -> Result<(), Finding> {
    copied::with_snapshot(|| copied::play().and_then(|()| restrictions::of_copies()))
}

/// Makes the bundle's configuration, of the usual one.
pub(super) fn configure(change: impl FnOnce(&mut Value)) -> Result<(), Finding> {
    let mut config: Value = serde_json::from_slice(&fs::read(SPEC)?)?;
    config["process"]["terminal"] = json!(false);
    config["process"]["args"] = json!(["sh", "-c", WAITS]);
    config["root"] = json!({"path": ROOTFS, "readonly": true});
    config["annotations"] = json!({});
    // There is no namespace for it.
    config["hostname"] = Value::Null;
    config["mounts"] = json!([]);
    config["linux"]["namespaces"] =
        json!([{"type": "network"}, {"type": "pid"}, {"type": "mount"}]);
    change(&mut config);
    let path = Path::new(BUNDLE).join(CONFIG);
    Ok(fs::write(path, serde_json::to_vec(&config)?)?)
}

/// The runtime with these words.
pub(super) fn runtime(words: &[&str]) -> Result<Ended, Finding> {
    Ended::of(command(words), "")
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(RUNTIME);
    command.args(["--log", LOG, "--log-format", "json"]);
    command.args(words);
    command
}

/// Creates the container of the bundle.
pub(super) fn create() -> Result<(), Finding> {
    create_as(NAME)
}

/// Creates a container. Its output goes to a file, since it keeps that open.
pub(super) fn create_as(name: &str) -> Result<(), Finding> {
    let output = File::create(OUTPUT)?;
    let mut command = command(&["create", "--bundle", BUNDLE, name]);
    let command = command.stdin(Stdio::null()).stderr(output.try_clone()?);
    let is_created = command.stdout(output).status()?.success();
    let why = fs::read_to_string(OUTPUT)?;
    Finding::unless(is_created, || format!("create {name}: {why}"))
}

/// Waits until a container has printed that.
pub(super) fn wait_for_output(text: &str) -> Result<(), Finding> {
    let waited = wait_for("what it prints", || {
        Ok(fs::read_to_string(OUTPUT)?.contains(text).then_some(()))
    });
    let printed = fs::read_to_string(OUTPUT)?;
    waited.map_err(|finding| finding.when(&format!("it has printed {printed:?}")))
}

/// Waits until a container has ended, and deletes it.
pub(super) fn delete_ended(name: &str) -> Result<(), Finding> {
    wait_for("the container's end", || {
        let state = runtime(&["state", name])?.with_status(0)?;
        Ok(state.contains("\"stopped\"").then_some(()))
    })?;
    runtime(&["delete", name])?.with_status(0).map(drop)
}

fn from_create_to_delete(release: &str) -> Result<(), Finding> {
    configure(|config| {
        let options = ["rbind", "rw", "noexec"];
        let volume =
            json!({"destination": "/data", "type": "bind", "source": VOLUME, "options": options});
        let memory = json!({"destination": "/etc", "type": "tmpfs", "options": ["tmpcopyup"]});
        config["mounts"] = json!([volume, memory]);
    })?;
    create()?;
    let state = |status: &str| {
        let shown: Value = serde_json::from_str(&runtime(&["state", NAME])?.with_status(0)?)?;
        assert_equal("its bundle", &shown["bundle"], &BUNDLE.into())?;
        assert_equal("its state", &shown["status"], &status.into())
    };
    state("created")?;
    // A second one of that name leaves the first as it is.
    runtime(&["create", "--bundle", BUNDLE, NAME])?.refused(&["already"])?;
    runtime(&["start", NAME])?.with_status(0)?;
    wait_for("its first words", || {
        Ok((fs::read_to_string(OUTPUT)?.contains("ready")).then_some(()))
    })?;
    state("running")?;
    let output = runtime(&[
        "exec",
        "--env",
        "A=1",
        NAME,
        "sh",
        "-c",
        "uname -r; echo $A",
    ])?;
    assert_equal(
        "who joins it",
        &output.with_status(0)?,
        &format!("{release}\n1\n"),
    )?;
    shows_its_files()?;
    knows_its_programs()?;
    runs_in_the_background()?;
    let shell = [RUNTIME, "exec", "--tty", NAME, "sh"];
    let typed = [("# ", "test -t 0 && echo a ter''minal; exit 4\r")];
    let (status, output) = on_terminal(&shell, &typed)?;
    assert_equal("a shell's status", &status, &Some(4))?;
    Finding::unless(output.contains("a terminal"), || output.clone())?;
    let script = "echo > /etc/made; cat /etc/passwd";
    let users = runtime(&["exec", NAME, "sh", "-c", script])?.with_status(0)?;
    assert_equal("its users", &users.as_str(), &USERS)?;
    let script = "busybox grep -o '/data virtiofs .*noexec' /proc/mounts; \
                  busybox cp /bin/busybox /data/x && /bin/busybox cmp /bin/busybox /data/x && \
                  { /data/x true || echo no; }";
    let found = runtime(&["exec", NAME, "sh", "-c", script])?.with_status(0)?;
    Finding::unless(found.contains("/data") && found.ends_with("no\n"), || {
        found.clone()
    })?;
    let made = Path::new(ROOTFS).join("etc/made");
    assert_equal("what is in memory is in the root", &made.exists(), &false)?;
    runtime(&["checkpoint", NAME])?.refused(&["checkpoint is not possible"])?;
    runtime(&["delete", NAME])?.refused(&[])?;
    state("running")?;
    runtime(&["kill", NAME, "TERM"])?.with_status(0)?;
    wait_for("its end", || Ok(state("stopped").is_ok().then_some(())))?;
    // The signal was for it alone.
    wait_for_output("its child ended with 137")?;
    runtime(&["delete", NAME])?.with_status(0)?;
    nothing_is_left()
}

/// Who enters the mount namespace that the engine knows, as `podman cp` does, is in the container's root, not in the base's; and
/// cannot change there what the node's kernel has in its place.
fn shows_its_files() -> Result<(), Finding> {
    let state: Value = serde_json::from_str(&runtime(&["state", NAME])?.with_status(0)?)?;
    let entered = |words: &[&str]| {
        let mut nsenter = Command::new("nsenter");
        nsenter.args(["--mount", "--target", &state["pid"].to_string()]);
        nsenter.args(words);
        Ended::of(nsenter, "")
    };
    let listed = |output: &str| -> BTreeSet<String> {
        output.split_whitespace().map(str::to_owned).collect()
    };
    let shown = listed(&entered(&["/bin/busybox", "ls", "/"])?.with_status(0)?);
    let root = fs::read_dir(ROOTFS)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into()));
    let root = root.collect::<Result<BTreeSet<String>, Finding>>()?;
    assert_equal("what is in its root", &shown, &root)?;
    for file in ["/dev/x", "/run/x", "/sys/x", "/proc/sys/kernel/hostname"] {
        let write = format!("echo > {file}");
        entered(&["/bin/busybox", "sh", "-c", &write])?.refused(&["Read-only file system"])?;
    }
    let write = "echo of the engine > /data/engine";
    entered(&["/bin/busybox", "sh", "-c", write])?.with_status(0)?;
    let read = runtime(&["exec", NAME, "cat", "/data/engine"])?.with_status(0)?;
    assert_equal(
        "what the container reads",
        &read.as_str(),
        &"of the engine\n",
    )
}

/// One that is not waited for is in the node as soon as the runtime has left.
fn runs_in_the_background() -> Result<(), Finding> {
    let mut exec = Command::new(RUNTIME);
    exec.args(["exec", "--detach", NAME, "busybox", "sleep", "4321"]);
    // Not what this scenario would read to its end.
    exec.stdout(Stdio::null()).stderr(Stdio::null());
    let status = exec.stdin(Stdio::null()).status()?;
    Finding::unless(status.success(), || format!("the runtime's {status}"))?;
    let kill = r#"status=1
        for process in /proc/[0-9]*; do
            case "$(busybox tr '\0' ' ' < $process/cmdline)" in
            *"sleep 432"1*) kill ${process#/proc/} && status=0 ;;
            esac
        done
        exit $status"#;
    insula(&["exec", NAME, "sh", "-c", kill]).map(drop)
}

/// A program that there is not is refused in the words that engines know; one that only the node sees is executed.
fn knows_its_programs() -> Result<(), Finding> {
    for (program, why) in [("/no/such", "No such file"), ("/bin", "Permission denied")] {
        runtime(&["exec", NAME, program])?.refused(&["cannot be executed (exec)", why])?;
    }
    let copy = "busybox cp /bin/busybox /run/true";
    runtime(&["exec", NAME, "sh", "-c", copy])?.with_status(0)?;
    let executed = runtime(&["exec", NAME, "/run/true"])?.with_status(0)?;
    assert_equal("what it prints", &executed.as_str(), &"")
}

/// What is refused leaves nothing behind, and is told where the engine looks.
fn refusals() -> Result<(), Finding> {
    let refused = |word: &str, change: &dyn Fn(&mut Value)| {
        let _ = fs::remove_file(LOG);
        configure(change)?;
        runtime(&["create", "--bundle", BUNDLE, NAME])?.refused(&[word])?;
        let told: Value =
            serde_json::from_str(fs::read_to_string(LOG)?.lines().next().unwrap_or_default())?;
        assert_equal("its level", &told["level"], &"error".into())?;
        let is_told = told["msg"].as_str().is_some_and(|text| text.contains(word));
        Finding::unless(is_told, || format!("{told}, not {word}"))?;
        assert_equal("what is kept", &Path::new(FOLDER).exists(), &false)
    };
    refused("run.insula.cpus", &|config| {
        config["annotations"] = json!({"run.insula.cpus": "many"});
    })?;
    refused("no-such-image", &|config| {
        config["annotations"] = json!({"run.insula.image": "no-such-image"});
    })?;
    refused("no-such-program", &|config| {
        config["process"]["args"] = json!(["no-such-program"]);
    })?;
    refused("user namespace", &|config| {
        config["linux"]["namespaces"][1]["type"] = json!("user");
    })?;
    refused("/proc/log", &|config| {
        config["mounts"] = json!([{"destination": "/proc/log", "type": "bind", "source": "/tmp"}]);
    })?;
    refused("/no/such/root", &|config| {
        config["root"]["path"] = json!("/no/such/root")
    })?;
    refused("process.args", &|config| {
        config["process"]["args"] = json!([])
    })?;
    refused("CAP_OTHER", &|config| {
        config["process"]["capabilities"] = json!({"bounding": ["CAP_OTHER"]});
    })?;
    refused("RLIMIT_OTHER", &|config| {
        let limit = json!({"type": "RLIMIT_OTHER", "soft": 1, "hard": 1});
        config["process"]["rlimits"] = json!([limit]);
    })?;
    refused("configuration", &|config| config["process"] = json!(7))?;
    insula(&["ps"]).map(drop)
}
