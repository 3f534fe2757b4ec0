//! Containers on copies of a node that has booted before: each has its own root, name and program.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::bundles::{OUTPUT, configure, create_as, delete_ended, runtime, wait_for_output};
use super::delegated::IMAGE as IMAGE_ANNOTATION;
use super::{IMAGE, ROOTFS, nothing_is_left};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, insula, insula_json, try_insula};

/// The node that boots, with the folder that it does not mount, and the snapshot of it.
const ORIGINAL: &str = "original";
const EMPTY: &str = "/run/oci-empty";
pub(super) const SNAPSHOT: &str = "ready";
/// The second container's root.
const OTHER: &str = "/run/oci-other";
/// Two containers at a time, with their roots.
const CONTAINERS: [(&str, &str); 2] = [("first", ROOTFS), ("second", OTHER)];
/// Most bytes of its own that a copy has while its container waits, of 128 MiB.
const OWN_MAX: u64 = 64 << 20;
const SHOWS: &str = "busybox hostname; cat /which; echo $$; trap exit TERM; echo ready; \
                     while :; do busybox sleep 0.1; done";

/// Plays something while there is a snapshot of a node whose containers have other roots.
pub(super) fn with_snapshot(play: impl FnOnce() -> Result<(), Finding>) -> Result<(), Finding> {
    fs::create_dir(EMPTY)?;
    let size = ["--memory", "128M", "--isolation", "vmm", "--network"];
    let root = ["--rootfs", EMPTY, "--unmounted-root", "--name", ORIGINAL];
    insula(&[&["run", "--image", IMAGE], &size[..], &root].concat())?;
    insula(&["snapshot", ORIGINAL, SNAPSHOT])?;
    insula(&["rm", "--force", ORIGINAL])?;
    // It has a folder in place of that, and nothing else.
    let refused = ["run", "--image", SNAPSHOT, "--rootfs", EMPTY, "--overlay"];
    try_insula(&refused)?.refused(1, &["a copy from the snapshot"])?;
    let played = play();
    insula(&["image", "rm", SNAPSHOT])?;
    fs::remove_dir(EMPTY)?;
    played
}

pub(super) fn play() -> Result<(), Finding> {
    let copied = Command::new("cp").args(["-a", ROOTFS, OTHER]).status()?;
    Finding::unless(copied.success(), || format!("cp: {copied}"))?;
    for (name, root) in CONTAINERS {
        fs::write(Path::new(root).join("which"), format!("{name}\n"))?;
    }
    let played = two_at_a_time();
    fs::remove_file(Path::new(ROOTFS).join("which"))?;
    fs::remove_dir_all(OTHER)?;
    played
}

fn two_at_a_time() -> Result<(), Finding> {
    for (name, root) in CONTAINERS {
        configure(|config| {
            config["annotations"] = json!({IMAGE_ANNOTATION: SNAPSHOT});
            config["process"]["args"] = json!(["sh", "-c", SHOWS]);
            config["root"]["path"] = json!(root);
            config["hostname"] = json!(format!("of-{name}"));
            config["linux"]["namespaces"] =
                json!([{"type": "network"}, {"type": "pid"}, {"type": "mount"}, {"type": "uts"}]);
        })?;
        create_as(name)?;
        runtime(&["start", name])?.with_status(0)?;
        let expected = format!("of-{name}\n{name}\n1\nready\n");
        wait_for_output("ready")?;
        assert_equal("what it shows", &fs::read_to_string(OUTPUT)?, &expected)?;
        let node = &insula_json(&["inspect", name])?[0];
        let own = node["own_memory_bytes"].as_u64();
        Finding::unless(own.is_some_and(|own| own < OWN_MAX), || {
            format!("it is no copy: {own:?} bytes of its own")
        })?;
    }
    for (name, _) in CONTAINERS {
        runtime(&["kill", name, "TERM"])?.with_status(0)?;
        delete_ended(name)?;
    }
    nothing_is_left()
}
