//! Containers on the lightweight kernel: their processes are the ordinary runtime's, and proxies of programs on the
//! container's node.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use super::bundles::{NAME, OUTPUT, configure, create, delete_ended, runtime, wait_for_output};
use super::{ROOTFS, nothing_is_left};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, insula, insula_json, names, wait_for};

/// The annotation that names a container's image, and that of the lightweight kernel.
pub(super) const IMAGE: &str = "run.insula.image";
pub(super) const LWK: &str = "lwk";
/// What a program has of its node and of its container, and nothing of the runtime's.
const SHOWS: &str = "busybox nproc; echo $$; busybox readlink /proc/self/exe; \
    test -e /proc/self/fd/3 || test -e /proc/self/fd/4 || echo alone";
const SHOWN: &str = "1\n1\n/bin/busybox\nalone\n";
/// Calls that a filter refuses are refused to the program.
const FILTERED: &str = "busybox mkdir /tmp-made || echo refused; trap 'echo caught; exit 9' TERM; echo ready; \
    while :; do busybox sleep 0.1; done";

pub(super) fn play() -> Result<(), Finding> {
    it_runs_on_its_node()?;
    it_is_filtered_and_ends()?;
    its_kernel_ends()?;
    of_no_program()
}

/// Configures a container that runs a script.
fn configure_script(script: &str, change: impl FnOnce(&mut Value)) -> Result<(), Finding> {
    configure(|config| {
        config["annotations"] = json!({IMAGE: LWK});
        config["process"]["args"] = json!(["/bin/sh", "-c", script]);
        config["mounts"] = json!([{"destination": "/proc", "type": "proc", "source": "proc"}]);
        change(config);
    })
}

fn start() -> Result<(), Finding> {
    create()?;
    runtime(&["start", NAME])?.with_status(0).map(drop)
}

fn it_runs_on_its_node() -> Result<(), Finding> {
    configure_script(SHOWS, |_| {})?;
    start()?;
    wait_for_output("alone")?;
    assert_equal("what it is", &fs::read_to_string(OUTPUT)?.as_str(), &SHOWN)?;
    delete_ended(NAME)?;
    nothing_is_left()
}

/// A process that joins it is on its node, too; and that is gone with its first process, before it is deleted.
fn it_is_filtered_and_ends() -> Result<(), Finding> {
    configure_script(FILTERED, |config| {
        let refused = json!([{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]);
        config["linux"]["seccomp"] =
            json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": refused});
        config["root"]["readonly"] = json!(false);
    })?;
    start()?;
    wait_for_output("refused\nready")?;
    let joined = [
        "exec",
        "--env",
        "A=1",
        NAME,
        "sh",
        "-c",
        "busybox nproc; echo $A; exit 3",
    ];
    let joined = runtime(&joined)?.with_status(3)?;
    assert_equal("who joins it", &joined.as_str(), &"1\n1\n")?;
    runtime(&["pause", NAME])?.refused(&["pause is not possible"])?;
    let node = insula_json(&["inspect", NAME])?;
    assert_equal("its node's image", &node[0]["image"], &json!(LWK))?;
    runtime(&["kill", NAME, "TERM"])?.with_status(0)?;
    wait_for("its node to be gone", || {
        Ok(names(&["ps", "--all", "--json"])?.is_empty().then_some(()))
    })?;
    wait_for_output("caught")?;
    delete_ended(NAME)?;
    nothing_is_left()
}

/// A node that is gone ends its container.
fn its_kernel_ends() -> Result<(), Finding> {
    configure_script("echo ready; while :; do :; done", |_| {})?;
    start()?;
    wait_for_output("ready")?;
    insula(&["rm", "--force", NAME])?;
    delete_ended(NAME)?;
    nothing_is_left()
}

/// One that is there when the container is created, and not when it is started.
fn of_no_program() -> Result<(), Finding> {
    let file = Path::new(ROOTFS).join("bin/removed");
    fs::write(&file, "#!/bin/sh\n")?;
    fs::set_permissions(&file, Permissions::from_mode(0o755))?;
    configure_script("", |config| {
        config["process"]["args"] = json!(["/bin/removed"]);
    })?;
    create()?;
    fs::remove_file(file)?;
    runtime(&["start", NAME])?.with_status(0)?;
    wait_for_output("removed")?;
    delete_ended(NAME)?;
    nothing_is_left()
}
