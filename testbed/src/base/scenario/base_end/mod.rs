//! Ends of the base while nodes run on it. Such a scenario cannot end normally: it stores its
//! result beforehand. Should the machine then hang, the time limit ends it, which counts as a
//! failure whatever was stored.

pub(super) mod base_kdump;
pub(super) mod base_kexec;
pub(super) mod base_panic;
pub(super) mod base_reboot;
pub(super) mod base_sleep;
pub(crate) mod vmcore;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;

use crate::base::support::insula_command::{TIMEOUT, insula_json};
use crate::base::support::nodes::test_node::{TestNode, add_unpacked_image, path};
use crate::base::{Context, Finding};

/// Namespace of the disk for results, and serial number of its controller: see the machine's first
/// process.
const RESULT_DISK: (&str, &str) = ("3", "testbed");

/// Start of the first process under the next kernel, a shell script. `store` stores the prepared
/// success; a run without it has no result, which counts as a failure.
const NEXT_KERNEL: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev 2>/dev/null

result_disk() {
	for block in /sys/block/nvme*; do
		[ -d "$block" ] || continue
		read -r number < "$block/nsid" && read -r serial < "$block/device/serial" || continue
		[ "$number $serial" = "3 testbed" ] && [ -b "/dev/${block##*/}" ] &&
			echo "/dev/${block##*/}" && return
	done
	return 1
}

store() {
	modules=/lib/modules/$(uname -r)
	while read -r module; do
		insmod "$modules/$module"
	done < "$modules/disk"
	until disk=$(result_disk); do
		sleep 0.02
	done
	cat /success > "$disk"
	sync
}
"#;

/// Starts a node of each kernel; together they use all cores but the base's first.
fn start_nodes(context: &Context) -> Result<[TestNode; 2], Finding> {
    add_unpacked_image(context, "old", "6.1")?;
    add_unpacked_image(context, "new", "6.12")?;
    let start = |name, image, cpus| {
        let size = ["--cpus", cpus, "--memory", "256M"];
        TestNode::start(name, &["--image", image], &size, "compute")
    };
    let nodes = [start("one", "old", "1")?, start("two", "new", "2")?];
    nodes.iter().try_for_each(TestNode::assert_works)?;
    Ok(nodes)
}

/// Archive of the results, with success among them.
fn success(context: &Context) -> Result<Vec<u8>, Finding> {
    fs::write(context.results().join("status"), "0\n")?;
    let words = ["-C", &path(context.results()), "-c", "."];
    let output = Command::new("tar").args(words).output()?;
    Finding::unless(output.status.success(), || {
        format!("tar: {}", String::from_utf8_lossy(&output.stderr))
    })?;
    Ok(output.stdout)
}

/// Stores the success of the scenario.
pub(super) fn store_success(context: &Context) -> Result<(), Finding> {
    fs::write(result_disk()?, success(context)?)?;
    nix::unistd::sync();
    Ok(())
}

fn result_disk() -> Result<std::path::PathBuf, Finding> {
    let is = |file: &Path, text| fs::read_to_string(file).is_ok_and(|found| found.trim() == text);
    for block in fs::read_dir("/sys/block")? {
        let block = block?;
        let folder = block.path();
        let (number, serial) = (folder.join("nsid"), folder.join("device/serial"));
        let device = Path::new("/dev").join(block.file_name());
        // The path to a namespace with several paths is no block device.
        if is(&number, RESULT_DISK.0) && is(&serial, RESULT_DISK.1) && device.exists() {
            return Ok(device);
        }
    }
    Err(Finding::new("there is no disk for results"))
}

/// Runs a command that should end the base. Returns only if it does not.
fn end_by(words: &[&str]) -> Result<(), Finding> {
    let output = Command::new(words[0]).args(&words[1..]).output()?;
    outlived(&format!(
        "`{}`: {}{}",
        words.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    ))
}

/// Waits for the end of the base, for which something has been done. Returns only if it does not come.
pub(super) fn outlived(what: &str) -> Result<(), Finding> {
    sleep(TIMEOUT);
    let nodes = insula_json(&["ps", "--all", "--json"])?;
    Err(Finding::new(format!(
        "the base still runs after {what}, nodes: {nodes}"
    )))
}
