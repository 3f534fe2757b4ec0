//! Kubernetes' runtime interface (CRI): containerd's plugin for it, of which `crictl` asks what a kubelet does, runs pods
//! whose runtime class is ours.

use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;

use serde_json::{Value, json};

use super::containerd::{FOLDER, SOCKET, ctr, with_daemon};
use super::network::serves;
use super::{Ended, ROOTFS, SCENARIO as OCI, USERS, nothing_is_left, with_root};
use crate::base::support::insula_command::{assert_equal, insula_json, names, numbers, wait_for};
use crate::base::{Context, Finding, Scenario, Shape};
use crate::host::root::{CRICTL, Root};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "cri",
    proves: "Kubernetes' runtime interface runs pods on kernels of their own",
    machine: Shape {
        root: Root::Conformance,
        ..OCI.machine
    },
    // The root disk takes long to make.
    bases: &[],
    limit: std::time::Duration::from_secs(1200),
    play,
    ..OCI
};

/// The image of sandbox and containers, and the archive from which containerd has it.
pub(super) const IMAGE: &str = "localhost/busybox:latest";
const ARCHIVE: &str = "/run/oci-containerd/image.tar";
/// The handler of the runtime class.
pub(super) const HANDLER: &str = "insula";
/// The network of pods, and the bridge that its plugin makes.
const NETWORK: &str = "10.99.7.0/24";
const BRIDGE: &str = "pods";
/// What containerd's plugin would load modules for, or lacks here, is not used. The usual runtime class is to be filled in.
const CONFIG: &str = r#"version = 2
root = "/run/oci-containerd/root"
state = "/run/oci-containerd/state"
disabled_plugins = [
    "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.overlayfs", "io.containerd.snapshotter.v1.zfs",
]
[grpc]
address = "/run/oci-containerd/socket"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/busybox:latest"
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "/run/oci-containerd/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
default_runtime_name = "DEFAULT"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.insula]
runtime_type = "io.containerd.runc.v2"
pod_annotations = ["run.insula.*"]
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.insula.options]
BinaryName = "/usr/local/sbin/insula-oci"
"#;
/// Makes the archive of the image, as `docker save` does: a layer, what is to be run of it, and a list of both.
const MAKE_ARCHIVE: &str = r#"set -e
work=$(mktemp -d); cd "$work"
tar -C "$1" -cf layer.tar .
layer=$(sha256sum layer.tar | cut -d ' ' -f 1)
printf '{"architecture":"amd64","os":"linux","config":{"Cmd":["/bin/busybox","sleep","1000000"]},' > config.json
printf '"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$layer" >> config.json
printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$2" > manifest.json
tar -cf "$3" manifest.json config.json layer.tar
rm -r "$work"
"#;

fn play(context: &Context) -> Result<(), Finding> {
    with_interface(context, "runc", pods)
}

/// Plays something while containerd answers by the interface, with a network of pods and the image. Pods have the runtime
/// class of that name if nothing else is said.
pub(super) fn with_interface(
    context: &Context,
    class: &str,
    play: impl FnOnce(&str) -> Result<(), Finding>,
) -> Result<(), Finding> {
    with_root(context, |release| {
        let played = with_daemon(&CONFIG.replace("DEFAULT", class), || {
            let network = format!("{FOLDER}/cni");
            fs::create_dir_all(&network)?;
            fs::write(format!("{network}/pods.conflist"), cni().to_string())?;
            make_image()?;
            wait_for("the network of pods", || Ok(is_ready()?.then_some(())))?;
            play(release)
        });
        let removed = shell(
            "ip link del \"$1\" 2> /dev/null; rm -rf /var/lib/cni",
            &[BRIDGE],
        );
        played.and(removed.map(drop))
    })
}

/// The network of pods, for the plugins of CNI.
fn cni() -> Value {
    json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": true,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": NETWORK}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    })
}

pub(super) fn shell(script: &str, arguments: &[&str]) -> Result<String, Finding> {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).args(arguments);
    Ended::of(command, "")?.with_status(0)
}

/// Gives containerd the image, in the namespace of Kubernetes.
fn make_image() -> Result<(), Finding> {
    shell(MAKE_ARCHIVE, &[ROOTFS, IMAGE, ARCHIVE])?;
    let import = ["-n", "k8s.io", "image", "import", "--snapshotter", "native"];
    ctr("", &[&import[..], &[ARCHIVE]].concat())?
        .with_status(0)
        .map(drop)
}

/// Asks containerd by its interface for Kubernetes.
pub(super) fn crictl(words: &[&str]) -> Result<Ended, Finding> {
    let socket = format!("unix://{SOCKET}");
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "180", CRICTL, "-t", "120s"]);
    command.args(["-r", &socket, "-i", &socket]).args(words);
    Ended::of(command, "")
}

/// Writes what `crictl` is to read. Returns its path.
fn description(name: &str, value: &Value) -> Result<String, Finding> {
    let path = format!("{FOLDER}/{name}.json");
    fs::write(&path, value.to_string())?;
    Ok(path)
}

/// Whether containerd has read how it connects pods.
fn is_ready() -> Result<bool, Finding> {
    let known = crictl(&["info", "--output", "json"])?.with_status(0)?;
    let known: Value = serde_json::from_str(&known)?;
    let conditions = known["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    Ok(conditions.any(|one| one["type"] == "NetworkReady" && one["status"] == true))
}

fn pods(release: &str) -> Result<(), Finding> {
    let pod = description(
        "pod",
        &json!({
            "metadata": {"name": "shop", "namespace": "default", "uid": "shop-1", "attempt": 1},
            "hostname": "shop",
            "log_directory": FOLDER,
            "linux": {"resources": {"memory_limit_in_bytes": 128 << 20}},
            "annotations": {"run.insula.cpus": "2", "other": "x"},
        }),
    )?;
    let id = crictl(&["runp", "--runtime", HANDLER, &pod])?.with_status(0)?;
    let id = id.trim();
    assert_equal(
        "the nodes",
        &names(&["ps", "--json"])?,
        &vec![id[..12].to_owned()],
    )?;
    assert_equal("its size", &size()?, &(2, 256))?;
    let web = start(
        id,
        "web",
        &["busybox", "httpd", "-f", "-p", "8000", "-h", "/etc"],
    )?;
    serves((address(id)?, 8000))?;
    let exec = ["exec", "--sync", &web, "sh", "-c", "uname -r; hostname"];
    let output = crictl(&exec)?.with_status(0)?;
    let expected = format!("{release}\nshop");
    assert_equal("who joins it", &output.trim_end(), &expected.as_str())?;
    let get =
        "until busybox wget -qO- http://127.0.0.1:8000/passwd; do busybox sleep 0.1; done; exit 3";
    let client = start(id, "client", &["sh", "-c", get])?;
    ends_with(&client, 3)?;
    let page = crictl(&["logs", &client])?.with_status(0)?;
    assert_equal("the page", &page.as_str(), &USERS)?;
    assert_equal("the nodes", &names(&["ps", "--json"])?.len(), &1)?;
    // The last one ends with its pod.
    crictl(&["stop", &web])?.with_status(0)?;
    let waits = start(id, "waits", &["busybox", "sleep", "1000000"])?;
    crictl(&["stopp", id])?.with_status(0)?;
    let status = inspected("inspect", &waits)?;
    let is_exited = status["state"] == "CONTAINER_EXITED";
    Finding::unless(is_exited, || format!("its state is {}", status["state"]))?;
    crictl(&["rmp", id])?.with_status(0)?;
    nothing_is_left()?;
    let left = shell("ip netns list", &[])?;
    assert_equal("network namespaces", &left.as_str(), &"")
}

/// Number of cores, and MiB of memory, of the only node.
pub(super) fn size() -> Result<(usize, u64), Finding> {
    let node = insula_json(&["ps", "--json"])?[0].take();
    let cores = numbers(&node["cpus"]).len();
    let memory = node["memory_bytes"].as_u64().unwrap_or_default();
    Ok((cores, memory >> 20))
}

/// Starts a container of a pod. Returns its id.
fn start(pod: &str, name: &str, words: &[&str]) -> Result<String, Finding> {
    let container = json!({
        "metadata": {"name": name},
        "image": {"image": IMAGE},
        "command": words,
        "log_path": format!("{name}.log"),
        "linux": {},
    });
    let container = description(name, &container)?;
    let of_pod = format!("{FOLDER}/pod.json");
    let created = crictl(&["create", "--no-pull", pod, &container, &of_pod])?.with_status(0)?;
    let id = created.trim();
    crictl(&["start", id])?.with_status(0)?;
    Ok(id.to_owned())
}

/// What is known of a pod or a container.
fn inspected(verb: &str, id: &str) -> Result<Value, Finding> {
    let output = crictl(&[verb, "--output", "json", id])?.with_status(0)?;
    Ok(serde_json::from_str::<Value>(&output)?["status"].take())
}

fn address(pod: &str) -> Result<Ipv4Addr, Finding> {
    let status = inspected("inspectp", pod)?;
    Ok(status["network"]["ip"]
        .as_str()
        .unwrap_or_default()
        .parse()?)
}

fn ends_with(container: &str, status: i64) -> Result<(), Finding> {
    let ended = wait_for("the container's end", || {
        let found = inspected("inspect", container)?;
        Ok((found["state"] == "CONTAINER_EXITED").then_some(found))
    })?;
    assert_equal("its status", &ended["exitCode"].as_i64(), &Some(status))
}
