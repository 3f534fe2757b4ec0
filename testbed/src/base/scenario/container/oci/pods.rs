//! Pods: containers that share a network namespace, or whose engine says that they belong together, share one node. Each has a
//! root, processes and a host name of its own, ends alone, and reaches the others at the loopback address.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::bundles::{configure, create_as, delete_ended, runtime};
use super::network::{CONTAINER, PATH, serves, with_namespace};
use super::podman::podman;
use super::{FOLDER, ROOTFS, USERS, VOLUME, WAITS, make_programs, nothing_is_left};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, insula, names, wait_for};

/// The container that has the node, and those that join it.
const SANDBOX: &str = "sandbox";
const SERVER: &str = "server";
const KILLED: &str = "killed";
const NAMED: &str = "named";
const LIMITED: &str = "limited";
/// The server's own root, and a file there that the sandbox does not have.
const ROOT: &str = "/run/oci-pod-root";
const PAGE: &str = "/srv/passwd";
/// Serves a folder of its root until it gets SIGTERM.
const SERVES: &str =
    "trap 'exit 9' TERM; busybox httpd -p 8000 -h /srv; while :; do sleep 0.1; done";
const PORT: u16 = 8000;
/// The page, as a program of the same node gets it.
const GET: [&str; 4] = ["busybox", "wget", "-qO-", "http://127.0.0.1:8000/passwd"];

/// Pods of a runtime's own command line.
pub(super) fn play() -> Result<(), Finding> {
    make_programs(ROOT)?;
    fs::create_dir(Path::new(ROOT).join("srv"))?;
    fs::write(format!("{ROOT}{PAGE}"), USERS)?;
    let played = with_namespace(|| {
        start(SANDBOX, in_network)?;
        served_in_one_node()?;
        ends_alone()?;
        has_its_share()?;
        killed_alone()?;
        ends_with_the_node()
    });
    fs::remove_dir_all(ROOT)?;
    played
}

fn in_network(config: &mut Value) {
    config["linux"]["namespaces"][0]["path"] = json!(PATH);
}

/// Creates and starts a container.
fn start(name: &str, change: impl FnOnce(&mut Value)) -> Result<(), Finding> {
    configure(change)?;
    create_as(name)?;
    runtime(&["start", name])?.with_status(0).map(drop)
}

/// What a container prints.
fn output(name: &str, program: &[&str]) -> Result<String, Finding> {
    runtime(&[&["exec", name], program].concat())?.with_status(0)
}

fn nodes_are(expected: &[&str]) -> Result<(), Finding> {
    assert_equal("the nodes", &names(&["ps", "--json"])?, &to_owned(expected))
}

fn to_owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

fn served_in_one_node() -> Result<(), Finding> {
    fs::write(Path::new(VOLUME).join("there"), "of the base\n")?;
    start(SERVER, |config| {
        in_network(config);
        config["process"]["args"] = json!(["sh", "-c", SERVES]);
        config["root"] = json!({"path": ROOT, "readonly": false});
        config["hostname"] = json!(SERVER);
        if let Some(namespaces) = config["linux"]["namespaces"].as_array_mut() {
            namespaces.push(json!({"type": "uts"}));
        }
        let volume =
            json!({"destination": "/data", "type": "bind", "source": VOLUME, "options": ["bind"]});
        config["mounts"] = json!([volume]);
    })?;
    serves((CONTAINER, PORT))?;
    nodes_are(&[SANDBOX])?;
    assert_equal("by the sandbox", &output(SANDBOX, &GET)?.as_str(), &USERS)?;
    let script = "busybox hostname; cat /data/there; test -e /dev/null && echo made > /made";
    let printed = output(SERVER, &["sh", "-c", script])?;
    assert_equal("the server", &printed.as_str(), &"server\nof the base\n")?;
    let made = fs::read_to_string(Path::new(ROOT).join("made"))?;
    assert_equal("what it has made", &made.as_str(), &"made\n")?;
    // Each has its own root and processes: nobody else's are seen.
    let seen = output(
        SERVER,
        &["sh", "-c", "echo /proc/[0-9]*/exe | busybox wc -w"],
    )?;
    let seen: usize = seen.trim().parse()?;
    Finding::unless(seen < 8, || format!("{seen} processes in it"))?;
    let page = runtime(&["exec", SANDBOX, "cat", PAGE])?;
    page.refused(&[])
}

/// A container's end leaves its node as it is, and nothing of it there.
fn ends_alone() -> Result<(), Finding> {
    runtime(&["kill", SERVER, "TERM"])?.with_status(0)?;
    delete_ended(SERVER)?;
    wait_for("the server to be gone", || {
        Ok((processes_of_others()? == 0).then_some(()))
    })?;
    nodes_are(&[SANDBOX])
}

/// How many programs of further containers the node has.
fn processes_of_others() -> Result<usize, Finding> {
    let script = format!(
        "for group in /sys/fs/cgroup/insula/*; do \
             test \"$group\" = /sys/fs/cgroup/insula/{SANDBOX} || busybox cat $group/cgroup.procs; \
         done 2> /dev/null | busybox wc -l"
    );
    Ok(insula(&["exec", SANDBOX, "sh", "-c", &script])?
        .trim()
        .parse()?)
}

/// A further container gets as much of the node as its limits say.
fn has_its_share() -> Result<(), Finding> {
    start(LIMITED, |config| {
        in_network(config);
        config["linux"]["resources"] = json!({
            "memory": {"limit": 32 << 20},
            "cpu": {"quota": 20_000, "period": 100_000},
            "pids": {"limit": 50},
        });
    })?;
    output(LIMITED, &["busybox", "true"])?;
    let limits =
        format!("cd /sys/fs/cgroup/insula/{LIMITED}; busybox cat memory.max cpu.max pids.max");
    let read = || insula(&["exec", SANDBOX, "sh", "-c", &limits]);
    let expected = format!("{}\n20000 100000\n50\n", 32 << 20);
    assert_equal("its limits", &read()?, &expected)?;
    // What takes more is killed, and nothing else.
    let greedy = [
        "exec",
        LIMITED,
        "sh",
        "-c",
        "busybox tail -c 64m /dev/zero; exit $?",
    ];
    runtime(&greedy)?.with_status(137)?;
    let less = [
        "update",
        "--memory",
        "16777216",
        "--cpu-quota",
        "-1",
        LIMITED,
    ];
    runtime(&less)?.with_status(0)?;
    let expected = format!("{}\nmax 100000\n50\n", 16 << 20);
    assert_equal("its limits", &read()?, &expected)?;
    runtime(&["kill", LIMITED, "TERM"])?.with_status(0)?;
    delete_ended(LIMITED)?;
    nodes_are(&[SANDBOX])
}

/// Nothing of a container survives what stands for it.
fn killed_alone() -> Result<(), Finding> {
    start(KILLED, in_network)?;
    output(KILLED, &["busybox", "true"])?;
    Finding::unless(processes_of_others()? > 0, || "it is not there".to_owned())?;
    runtime(&["kill", KILLED, "KILL"])?.with_status(0)?;
    delete_ended(KILLED)?;
    wait_for("the killed one to be gone", || {
        Ok((processes_of_others()? == 0).then_some(()))
    })?;
    nodes_are(&[SANDBOX])
}

/// Kubernetes' engines name the sandbox. Its end is that of all.
fn ends_with_the_node() -> Result<(), Finding> {
    start(NAMED, |config| {
        config["annotations"] = json!({
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.sandbox-id": SANDBOX,
        });
    })?;
    output(NAMED, &["busybox", "true"])?;
    nodes_are(&[SANDBOX])?;
    runtime(&["kill", SANDBOX, "TERM"])?.with_status(0)?;
    delete_ended(SANDBOX)?;
    delete_ended(NAMED)?;
    nothing_is_left()
}

/// Podman's pods: an infra container has the node.
pub(super) fn of_podman() -> Result<(), Finding> {
    // podman 4.3 without systemd lets a pod's control group use no device, by whatever runtime.
    podman(&["pod", "create", "--share-parent=false", "--name", "shop"])?;
    let run = ["run", "-d", "--pod", "shop", "--rootfs", ROOTFS];
    let server = ["busybox", "httpd", "-f", "-p", "8000", "-h", "/etc"];
    podman(&[&run[..], &server].concat())?;
    let run = ["run", "--rm", "--pod", "shop", "--rootfs", ROOTFS];
    let get = "until busybox wget -qO- http://127.0.0.1:8000/passwd; do sleep 0.1; done";
    let page = podman(&[&run[..], &["sh", "-c", get]].concat())?;
    assert_equal("its page", &page.as_str(), &USERS)?;
    let waits = [
        "run", "-d", "--name", "waits", "--pod", "shop", "--rootfs", ROOTFS,
    ];
    podman(&[&waits[..], &["sh", "-c", WAITS]].concat())?;
    assert_equal("the nodes", &names(&["ps", "--json"])?.len(), &1)?;
    podman(&["stop", "-t", "60", "waits"])?;
    let state = podman(&["inspect", "--format", "{{.State.ExitCode}}", "waits"])?;
    assert_equal("its status", &state.as_str(), &"9\n")?;
    // Started anew, in the same node.
    podman(&["start", "waits"])?;
    podman(&["exec", "waits", "busybox", "true"])?;
    assert_equal("the nodes", &names(&["ps", "--json"])?.len(), &1)?;
    podman(&["pod", "rm", "--force", "-t", "0", "shop"])?;
    nothing_is_left()?;
    assert_equal("what is kept", &Path::new(FOLDER).exists(), &false)
}
