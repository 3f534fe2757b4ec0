//! A confined node is copied while it writes to its disks, one of which is its root: the original and each
//! copy go on with what was on them, and what one of them writes, no other sees.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::CONFINED;
use crate::base::support::device_servers::{self, STORAGE_DAEMON};
use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, text, try_insula, wait_for, with_cleanup,
};
use crate::base::support::nodes::content;
use crate::base::support::nodes::in_node::{build_image, script, sum_of};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::support::supervisor_process;
use crate::base::support::virtio_modules::{NETWORK_MODULES, SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;
use crate::host::payload::equipment::MODULES_PATH;
use crate::host::payload::module::RTNL_DRIVER;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "cloned_disks",
    proves: "copies of a node have its disks as they were, and write to them each by itself",
    machine: Shape {
        emulator: Emulator::Backports,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(900),
    soak_limit: None,
    play,
};

const ORIGINAL: &str = "original";
const COPIES: [&str; 2] = ["one", "two"];
const SNAPSHOT: &str = "ready";
/// Its disks: the root, another one, one that is only read.
const ROOT: &str = "/tmp/root.img";
const DATA: &str = "/tmp/data.img";
const READ_ONLY: &str = "/tmp/read-only.img";
/// Where the command keeps the disks of snapshots and copies.
const STORE: &str = "/var/lib/insula/disks";
/// Content of the root.
const CONTENT: &str = "/tmp/content";
const PROGRAMS: [&str; 16] = [
    "cat",
    "cmp",
    "dd",
    "echo",
    "insmod",
    "mount",
    "mv",
    "rm",
    "rmmod",
    "setsid",
    "sh",
    "sha256sum",
    "sleep",
    "sync",
    "test",
    "umount",
];
/// Prepares the second disk, and prints the checksum of a file there that may not be written yet.
const PREPARE: &str = "mount -t ext4 /dev/vdb /data &&
dd if=/dev/urandom of=/data/first bs=64k count=64 2> /dev/null &&
sha256sum < /data/first";
/// What the node does all the time: it writes to its root, past the page cache, reads that back, and
/// counts. It pauses, so that an emulator can run the machine's other cores: each program that it starts is
/// work for two processors' page tables.
const WORK: &str = "setsid sh -c 'rounds=0
while test ! -e /run/stop; do
    dd if=/dev/urandom of=/run/noise bs=64k count=4 2> /dev/null
    dd if=/run/noise of=/noise bs=64k oflag=direct conv=notrunc 2> /dev/null || echo failed >> /run/bad
    dd if=/noise bs=64k iflag=direct 2> /dev/null | cmp -s - /run/noise || echo differs >> /run/bad
    rounds=$((rounds + 1))
    echo $rounds > /run/rounds.new && mv /run/rounds.new /run/rounds
    sleep 1
done
> /run/stopped' > /dev/null 2>&1 < /dev/null &";
/// Holds the lock of network configuration most of the time while it reads from a disk: in a copy, whose
/// card waits, the disk must not wait for that lock.
const HOLD: &str = "insmod /insula_rtnl.ko disk=/dev/vdc";
const RELEASE: &str = "rmmod insula_rtnl";
/// Holds that lock until it is told to release it.
const HOLD_LONG: &str = "insmod /insula_rtnl.ko disk=/dev/vdc hold=1";
const STOP_HOLDING: &str = "echo 0 > /sys/module/insula_rtnl/parameters/hold";
/// The node's card is there.
const HAS_CARD: &str = "test -e /sys/class/net/eth0";
/// Writes more to the second disk; prints the checksum.
const WRITE: &str = "dd if=/dev/urandom of=/data/own bs=64k count=32 2> /dev/null && sync &&
sha256sum < /data/own";
/// Writes to blocks that no other has written, and compares them, past the page cache.
const WRITE_DIRECTLY: &str = "dd if=/dev/urandom of=/run/fresh bs=64k count=32 2> /dev/null &&
dd if=/run/fresh of=/data/fresh bs=64k oflag=direct 2> /dev/null";
const COMPARE: &str = "dd if=/data/fresh bs=64k iflag=direct 2> /dev/null | cmp - /run/fresh";
/// Reads from the disks themselves.
const READ_AGAIN: &str = "echo 3 > /proc/sys/vm/drop_caches";

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    make_files(context)?;
    let played = with_cleanup(|| {
        build_image(context, "cloned", "6.12", &[])?;
        let before = Resources::now()?;
        devices_are_refused()?;
        copies_go_on()?;
        assert_unchanged(&before)?;
        insula(&["image", "rm", "cloned"]).map(drop)
    });
    fs::remove_dir_all(CONTENT)?;
    for file in [ROOT, DATA, READ_ONLY] {
        fs::remove_file(file)?;
    }
    played?;
    unload(&[&NETWORK_MODULES[..], &SOCKET_MODULES].concat())
}

fn make_files(context: &Context) -> Result<(), Finding> {
    content::make(CONTENT, &PROGRAMS)?;
    let release = context.release("6.12")?;
    let driver = format!("{MODULES_PATH}/{release}/{RTNL_DRIVER}");
    fs::copy(driver, Path::new(CONTENT).join(RTNL_DRIVER))?;
    content::add_program(CONTENT, "/sbin/e2fsck")?;
    for folder in ["data", "dev", "etc", "proc", "run", "sys", "tmp"] {
        fs::create_dir_all(Path::new(CONTENT).join(folder))?;
    }
    run("mke2fs", &["-q", "-t", "ext4", "-d", CONTENT, ROOT, "64M"])?;
    run("mke2fs", &["-q", "-t", "ext4", DATA, "48M"])?;
    let mut bytes = vec![0; 1 << 20];
    fastrand::Rng::new().fill(&mut bytes);
    Ok(fs::write(READ_ONLY, bytes)?)
}

fn run(program: &str, words: &[&str]) -> Result<String, Finding> {
    let answer = Command::new(program).args(words).output()?;
    Finding::unless(answer.status.success(), || {
        format!("{program} {words:?}: {answer:?}")
    })?;
    Ok(String::from_utf8_lossy(&answer.stdout).trim().to_owned())
}

/// A block device cannot be copied, unless it is only read.
fn devices_are_refused() -> Result<(), Finding> {
    run("modprobe", &["loop"])?;
    let device = run("losetup", &["--find", "--show", DATA])?;
    start("other", &["--disk", &device])?;
    let refused = try_insula(&["snapshot", "other", SNAPSHOT])?;
    refused.refused(1, &["'other'", "block device", "it was left as it is"])?;
    insula(&["rm", "--force", "other"])?;
    run("losetup", &["--detach", &device])?;
    unload(&["loop"])
}

fn start(name: &str, options: &[&str]) -> Result<(), Finding> {
    let size = ["--name", name, "--memory", "192M"];
    insula(&[&["run", "--image", "cloned"], &CONFINED[..], &size, options].concat()).map(drop)
}

fn copies_go_on() -> Result<(), Finding> {
    let read_only = format!("{READ_ONLY},ro");
    // The card waits for its address while the disks go on.
    let disks = [
        "--rootfs",
        ROOT,
        "--disk",
        DATA,
        "--disk",
        &read_only,
        "--network",
    ];
    start(ORIGINAL, &disks)?;
    let first = wait_for("the node's disks", || {
        let (status, sum) = script(ORIGINAL, PREPARE)?;
        Ok((status == 0).then_some(sum))
    })?;
    script(ORIGINAL, WORK)?;
    wait_for("the node to write", || {
        Ok((rounds(ORIGINAL)? > 2).then_some(()))
    })?;
    replaced_disk_is_refused()?;
    let (status, _) = script(ORIGINAL, HOLD)?;
    assert_equal("status", &status, &0)?;
    insula(&["snapshot", ORIGINAL, SNAPSHOT])?;
    let saved = try_insula(&["image", "save", SNAPSHOT, "--output", "/tmp/ready.image"])?;
    saved.refused(1, &["has disks", "nothing was touched"])?;
    for name in COPIES {
        insula(&["run", "--image", SNAPSHOT, "--name", name])?;
    }
    insula(&["image", "rm", SNAPSHOT])?;
    for name in all() {
        let (status, _) = script(name, RELEASE)?;
        assert_equal("status", &status, &0)?;
    }
    let sums = each_writes(&first)?;
    servers_may_end(COPIES[0])?;
    supervisors_may_end_while_locked(COPIES[0])?;
    each_has_its_own(&first, &sums)?;
    for name in all() {
        ends_clean(name)?;
    }
    for file in [ROOT, DATA] {
        run("e2fsck", &["-f", "-n", file])?;
    }
    let left = fs::read_dir(STORE)?.count();
    assert_equal("disks of copies that are gone", &left, &0)
}

/// A file that took the place of the node's disk is not copied for it.
fn replaced_disk_is_refused() -> Result<(), Finding> {
    let away = format!("{DATA}.away");
    fs::rename(DATA, &away)?;
    fs::copy(&away, DATA)?;
    let refused = try_insula(&["snapshot", ORIGINAL, SNAPSHOT])?;
    fs::rename(&away, DATA)?;
    refused.refused(1, &[DATA, "another file is at its path"])?;
    writes_on(ORIGINAL)
}

fn all() -> impl Iterator<Item = &'static str> {
    COPIES.into_iter().chain([ORIGINAL])
}

fn rounds(name: &str) -> Result<u64, Finding> {
    let (_, rounds) = script(name, "cat /run/rounds")?;
    Ok(rounds.trim().parse().unwrap_or_default())
}

/// Each has the file as it was, and writes another one. Returns the checksums of these.
fn each_writes(first: &str) -> Result<Vec<String>, Finding> {
    let mut sums = Vec::new();
    for name in all() {
        let (_, sum) = script(name, "sha256sum < /data/first")?;
        assert_equal(&format!("file in {name}"), &sum.as_str(), &first)?;
        let (status, sum) = script(name, WRITE)?;
        assert_equal("status", &status, &0)?;
        sums.push(sum);
    }
    let different: BTreeSet<_> = sums.iter().collect();
    assert_equal("contents", &different.len(), &sums.len())?;
    Ok(sums)
}

/// What serves a copy's disks is killed while it writes: first the disks' servers, then its supervisor. What
/// a server has written is there, though nobody has asked it to flush.
fn servers_may_end(name: &str) -> Result<(), Finding> {
    let disks = insula_json(&["inspect", name])?[0]["disks"].clone();
    let (status, _) = script(name, WRITE_DIRECTLY)?;
    assert_equal("status", &status, &0)?;
    for disk in [&disks[0], &disks[1]] {
        let overlay = text(&disk["path"]);
        Finding::unless(overlay.starts_with(STORE), || {
            format!("a disk of {name} is {overlay}")
        })?;
        device_servers::kill_all(STORAGE_DAEMON, &overlay)?;
    }
    let (status, _) = script(name, COMPARE)?;
    assert_equal("comparison of what it has written", &status, &0)?;
    writes_on(name)?;
    supervisor_process::kill(name)?;
    insula(&["supervise", name])?;
    writes_on(name)
}

/// Its supervisor is killed twice while a driver holds the lock that its card waits for to be removed and added:
/// the disk that this driver reads from comes back, and with it all others; in the end the card does.
fn supervisors_may_end_while_locked(name: &str) -> Result<(), Finding> {
    let (status, _) = script(name, HOLD_LONG)?;
    assert_equal("status", &status, &0)?;
    for _ in 0..2 {
        supervisor_process::kill(name)?;
        insula(&["supervise", name])?;
        writes_on(name)?;
    }
    let (status, _) = script(name, &format!("{STOP_HOLDING} && {RELEASE}"))?;
    assert_equal("status", &status, &0)?;
    wait_for("the card to be there", || {
        Ok((script(name, HAS_CARD)?.0 == 0).then_some(()))
    })
}

fn writes_on(name: &str) -> Result<(), Finding> {
    let before = rounds(name)?;
    wait_for(&format!("{name} to write on"), || {
        Ok((rounds(name)? > before + 1).then_some(()))
    })
}

/// Each reads from its disks what it has written, and nothing else; its work has seen no error.
fn each_has_its_own(first: &str, sums: &[String]) -> Result<(), Finding> {
    let shared = sum_of(READ_ONLY)?;
    for (name, own) in all().zip(sums) {
        writes_on(name)?;
        script(name, READ_AGAIN)?;
        for (file, expected) in [
            ("/data/first", first),
            ("/data/own", own),
            ("/dev/vdc", &shared),
        ] {
            let (_, sum) = script(name, &format!("sha256sum < {file}"))?;
            assert_equal(&format!("{file} of {name}"), &sum.as_str(), &expected)?;
        }
        let (status, bad) = script(name, "test ! -e /run/bad || cat /run/bad")?;
        assert_equal("errors of its disks", &(status, bad.as_str()), &(0, ""))?;
    }
    Ok(())
}

/// Its second disk has a file system without errors, and it ends as any node does.
fn ends_clean(name: &str) -> Result<(), Finding> {
    script(name, "> /run/stop")?;
    wait_for("its work to end", || {
        Ok((script(name, "test -e /run/stopped")?.0 == 0).then_some(()))
    })?;
    let (status, output) = script(name, "umount /data && e2fsck -f -n /dev/vdb 2>&1")?;
    Finding::unless(status == 0, || {
        format!("e2fsck in {name} ended with {status}: {output}")
    })?;
    insula(&["stop", "--time", "60", name])?;
    let reason = text(&insula_json(&["inspect", name])?[0]["reason"]);
    assert_equal("reason", &reason.as_str(), &"power-off")?;
    insula(&["rm", name]).map(drop)
}
