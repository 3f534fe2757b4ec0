//! A kubelet, Kubernetes' agent of a machine, runs a pod on a kernel of its own. It has no cluster: the pod's description
//! is in a folder of its. What it asks of a runtime is all there: volumes, probes, restarts, messages of who has ended.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::containerd::{SOCKET, last_lines};
use super::cri::{self, HANDLER, IMAGE, crictl, shell};
use super::nothing_is_left;
use crate::base::support::insula_command::{assert_equal, names, wait_at_most, wait_for};
use crate::base::{Context, Finding, Scenario};
use crate::host::root::KUBELET;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "kubelet",
    proves: "a kubelet runs a pod on a kernel of its own",
    play,
    ..cri::SCENARIO
};

/// What it keeps, and where pods are described.
const FOLDER: &str = "/run/oci-kubelet";
const PODS: &str = "/run/oci-kubelet/manifests";
/// The pod, as it names it: its name, and that of the machine.
const POD: &str = "shop-machine";
/// Its groups of processes.
const GROUPS: &str = "/sys/fs/cgroup/kubepods";
/// Removes those groups, and its folder, which it has mounted on itself to share what is mounted there.
const REMOVE: &str = "set -e; test ! -d \"$1\" || find \"$1\" -depth -type d -exec rmdir {} +; \
                      ! mountpoint -q \"$2\" || umount \"$2\"; rm -r \"$2\"";
/// It sets what a crash of the machine does, and how memory is committed.
const SETTINGS: [&str; 4] = [
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
];
/// Time for what it repeats after longer and longer pauses.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(300);
/// What is run before the containers: leaves a file in their volume.
const PREPARES: &str = "echo prepared > /data/page";
/// Serves the volume.
const SERVES: &[&str] = &["busybox", "httpd", "-f", "-p", "8000", "-h", "/data"];
/// Ends at its first run, with what it has got as its message; waits at the next.
const ENDS: &str = "test -e /data/ended && exec busybox sleep 1000000; \
                    until busybox wget -qO /dev/termination-log http://127.0.0.1:8000/page; do busybox sleep 0.1; done; \
                    cp /var/run/secrets/shop/labels /data/ended; exit 3";

fn play(context: &Context) -> Result<(), Finding> {
    cri::with_interface(context, HANDLER, |release| {
        let before = settings()?;
        fs::create_dir_all(PODS)?;
        let played = with_kubelet(|| pod(release));
        let removed = shell(REMOVE, &[GROUPS, FOLDER]);
        let restored = before
            .iter()
            .try_for_each(|(path, value)| fs::write(path, value));
        played.and(removed)?;
        Ok(restored?)
    })
}

fn settings() -> Result<Vec<(String, String)>, Finding> {
    let paths = SETTINGS.map(|name| format!("/proc/sys/{name}"));
    let read = |path: String| Ok((path.clone(), fs::read_to_string(&path)?));
    paths.into_iter().map(read).collect()
}

/// Plays something while a kubelet runs.
fn with_kubelet(play: impl FnOnce() -> Result<(), Finding>) -> Result<(), Finding> {
    let mut kubelet = start()?;
    let answers = || match kubelet.try_wait()? {
        Some(status) => Err(Finding::new(format!("the kubelet has ended: {status}"))),
        None => Ok(pods().ok()),
    };
    let played = wait_for("the kubelet", answers)
        .and_then(|_| play())
        .map_err(|error| error.when(&last_lines(FOLDER)));
    // It may have ended by itself, which is told.
    if kubelet.try_wait()?.is_none() {
        kill(Pid::from_raw(kubelet.id().cast_signed()), Signal::SIGTERM)?;
        kubelet.wait()?;
    }
    played
}

fn start() -> Result<Child, Finding> {
    let config = Path::new(FOLDER).join("config.json");
    fs::write(&config, configuration().to_string())?;
    let log = File::create(Path::new(FOLDER).join("log"))?;
    let mut kubelet = Command::new(KUBELET);
    kubelet.arg("--config").arg(&config);
    kubelet.args(["--root-dir", FOLDER, "--cert-dir", FOLDER]);
    kubelet.args(["--hostname-override", "machine"]);
    kubelet.stdin(Stdio::null()).stdout(log.try_clone()?);
    Ok(kubelet.stderr(log).spawn()?)
}

/// Who asks on this machine may do anything. The disk may be as full as it is, and rules for packets are not needed.
fn configuration() -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": PODS,
        "podLogsDir": format!("{FOLDER}/logs"),
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "cgroupDriver": "cgroupfs",
        "failSwapOn": false,
        "makeIPTablesUtilChains": false,
        "address": "127.0.0.1",
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%", "memory.available": "0%"},
        "fileCheckFrequency": "1s",
        "syncFrequency": "5s",
    })
}

/// Asks it by its interface.
fn ask(options: &[&str], path: &str) -> Result<String, Finding> {
    let url = format!("https://127.0.0.1:10250/{path}");
    let curl = ["-sfk", "--max-time", "60"];
    shell("exec curl \"$@\"", &[&curl[..], options, &[&url]].concat())
}

/// What it tells of its pods.
fn pods() -> Result<Value, Finding> {
    Ok(serde_json::from_str::<Value>(&ask(&[], "pods")?)?["items"].take())
}

/// What it tells of a container of the only pod.
fn container(name: &str) -> Result<Value, Finding> {
    let status = &pods()?[0]["status"];
    let mut all = status["containerStatuses"].as_array().into_iter().flatten();
    let found = all.find(|one| one["name"] == name);
    Ok(found.cloned().unwrap_or_default())
}

/// Runs a program in a container.
fn run(name: &str, words: &str) -> Result<String, Finding> {
    let path = format!("run/default/{POD}/{name}?cmd={words}");
    ask(&["-X", "POST"], &path)
}

/// A pod whose second container ends, and whose first one is not well any more as long as a file says so.
fn description() -> Value {
    let data = json!({"name": "data", "mountPath": "/data"});
    let labels = json!({"name": "labels", "mountPath": "/var/run/secrets/shop"});
    let container = |name: &str, words: &[&str]| {
        json!({
            "name": name, "image": IMAGE, "imagePullPolicy": "Never", "command": words,
            "volumeMounts": [data, labels], "resources": {"limits": {"cpu": "750m", "memory": "96Mi"}},
        })
    };
    let mut web = container("web", SERVES);
    web["readinessProbe"] = json!({"httpGet": {"port": 8000, "path": "/page"}, "periodSeconds": 1});
    web["livenessProbe"] = json!({
        "exec": {"command": ["sh", "-c", "! busybox rm /data/unwell"]}, "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 1,
    });
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "shop", "namespace": "default", "labels": {"trade": "books"}},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "initContainers": [container("prepares", &["sh", "-c", PREPARES])],
            "containers": [web, container("ends", &["sh", "-c", ENDS])],
            "volumes": [
                {"name": "data", "emptyDir": {}},
                {"name": "labels", "downwardAPI": {"items": [
                    {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                ]}},
            ],
        },
    })
}

fn pod(release: &str) -> Result<(), Finding> {
    let path = Path::new(PODS).join("shop.json");
    fs::write(&path, description().to_string())?;
    wait_at_most(LIMIT, "the container that answers", || {
        Ok((container("web")?["ready"] == true).then_some(()))
    })?;
    let output = run("web", "uname%20-r")?;
    assert_equal("its kernel", &output.trim_end(), &release)?;
    // That of two containers, and a kernel.
    assert_equal("the node's size", &cri::size()?, &(2, 320))?;
    is_restarted_after_its_end()?;
    is_restarted_when_unwell()?;
    assert_equal("the nodes", &names(&["ps", "--json"])?.len(), &1)?;
    fs::remove_file(&path)?;
    // What has ended it clears up each minute.
    wait_at_most(LIMIT, "the pod to be gone", || {
        let found = crictl(&["pods", "--quiet"])?.with_status(0)?;
        Ok(found.is_empty().then_some(()))
    })?;
    nothing_is_left()
}

/// What a container has left as its message is known, its status, and what its volumes gave it.
fn is_restarted_after_its_end() -> Result<(), Finding> {
    let ended = wait_at_most(LIMIT, "the container that was started again", || {
        let found = container("ends")?;
        let is_running = found["state"]["running"].is_object();
        Ok((is_running && found["restartCount"] == 1).then_some(found))
    })?;
    let ended = &ended["lastState"]["terminated"];
    assert_equal("its status", &ended["exitCode"].as_i64(), &Some(3))?;
    let message = ended["message"].as_str();
    assert_equal("its message", &message, &Some("prepared\n"))?;
    let labels = run("web", "cat%20/data/ended")?;
    assert_equal("the labels", &labels.as_str(), &"trade=\"books\"")
}

/// A program that it runs there tells whether a container is well.
fn is_restarted_when_unwell() -> Result<(), Finding> {
    run("ends", "busybox%20touch%20/data/unwell")?;
    wait_at_most(LIMIT, "the container that was unwell", || {
        let found = container("web")?;
        Ok((found["restartCount"] == 1 && found["ready"] == true).then_some(()))
    })
}
