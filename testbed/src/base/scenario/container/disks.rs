//! Disks of nodes: files of the base, and nodes whose disk's server is killed.

mod grown;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use super::privileges::{
    self, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_NET_ADMIN, CAP_NET_BIND_SERVICE, Capabilities,
};
use crate::base::support::device_servers::{self, STORAGE_DAEMON, VIRTIOFSD};
use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, text, try_insula, wait_for, with_cleanup,
};
use crate::base::support::nodes::content;
use crate::base::support::nodes::in_node::{build_image, script, sum_of};
use crate::base::support::supervisor_process;
use crate::base::support::virtio_modules::{NETWORK_MODULES, SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "disks",
    proves: "a node's disk survives the end of its server; a lost root ends the node, visibly",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
    soak_limit: None,
    play,
};

const IMAGE: &str = "disks";
/// A node with disks, and one whose root is a folder of the base.
const WRITER: &str = "with-disks";
const ROOTED: &str = "with-root";
/// Files for disks, with their sizes in bytes.
const DISK: &str = "/tmp/disk,own.img";
const DISK_BYTES: u64 = 24 << 20;
const READ_ONLY: &str = "/tmp/read-only.img";
const READ_ONLY_BYTES: usize = 1 << 20;
/// File with a root file system, and the node that has it.
const ROOT_DISK: &str = "/tmp/root-disk.img";
const ROOT_DISK_SIZE: &str = "256M";
const ON_DISK: &str = "on-disk";
/// File that the base uses, its other name, and its mount point.
const USED: &str = "/tmp/used.img";
const OTHER_NAME: &str = "/tmp/same.img";
const MOUNTED: &str = "/tmp/mounted";
/// Content of the node's image, with fio and what that needs.
const CONTENT: &str = "/tmp/content";
const PROGRAMS: [&str; 11] = [
    "cat",
    "dd",
    "echo",
    "head",
    "httpd",
    "mkdir",
    "rmmod",
    "setsid",
    "sh",
    "sha256sum",
    "test",
];
/// Verified writes all over the disk, several at a time.
const FIO: &str = "fio --name=disk --filename=/dev/vda --rw=randwrite --bs=16k --direct=1 \
                   --ioengine=libaio --iodepth=16 --verify=crc32c --verify_fatal=1";

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    run("modprobe", &["loop"])?;
    make_files()?;
    let played = with_cleanup(|| {
        build_image(context, IMAGE, "6.12", &["--content", CONTENT])?;
        grown::make_data()?;
        refusals()?;
        used_by_the_base()?;
        start_writer()?;
        reads_only()?;
        serve_with_few_privileges()?;
        failed_disk_is_isolated()?;
        grown::disk_and_network(WRITER)?;
        writes_on()?;
        root_on_a_disk()?;
        fails_with_its_root()
    });
    fs::remove_dir_all(CONTENT)?;
    for file in [DISK, READ_ONLY, ROOT_DISK] {
        fs::remove_file(file)?;
    }
    played?;
    unload(&[&NETWORK_MODULES[..], &SOCKET_MODULES].concat())
}

fn make_files() -> Result<(), Finding> {
    fs::File::create(DISK)?.set_len(DISK_BYTES)?;
    let mut random = fastrand::Rng::new();
    let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
        .take(READ_ONLY_BYTES)
        .collect();
    fs::write(READ_ONLY, bytes)?;
    content::make(CONTENT, &PROGRAMS)?;
    content::add_program(CONTENT, "/usr/bin/fio")?;
    let words = ["-q", "-t", "ext4", "-d", CONTENT, ROOT_DISK, ROOT_DISK_SIZE];
    run("mke2fs", &words).map(drop)
}

fn refusals() -> Result<(), Finding> {
    for missing in ["/tmp/none", "/dev/null"] {
        let refused = try_insula(&["run", "--image", IMAGE, "--disk", missing])?;
        refused.refused(1, &[missing, "nothing was touched"])?;
    }
    Ok(())
}

/// A file that the base has mounted, under any of its names, or that another program has locked, is
/// refused.
fn used_by_the_base() -> Result<(), Finding> {
    run("mke2fs", &["-q", "-t", "ext4", USED, "16M"])?;
    let device = run("losetup", &["--find", "--show", USED])?;
    let device = device.trim();
    fs::create_dir(MOUNTED)?;
    run("mount", &[device, MOUNTED])?;
    fs::hard_link(USED, OTHER_NAME)?;
    let root = run("findmnt", &["--noheadings", "--output", "SOURCE", "/"])?;
    for (disk, use_of_it) in [(device, MOUNTED), (OTHER_NAME, MOUNTED), (root.trim(), "/")] {
        for end in ["", ",ro"] {
            refused(&format!("{disk}{end}"), &format!("mounted at {use_of_it}"))?;
        }
    }
    run("umount", &[MOUNTED])?;
    fs::remove_dir(MOUNTED)?;
    refused(USED, &format!("part of {device}"))?;
    run("losetup", &["--detach", device])?;
    let other = fs::File::open(USED)?;
    other.lock()?;
    refused(OTHER_NAME, "another program")?;
    fs::remove_file(OTHER_NAME)?;
    fs::remove_file(USED)?;
    unload(&["loop"])
}

fn refused(disk: &str, why: &str) -> Result<(), Finding> {
    let answer = try_insula(&["run", "--image", IMAGE, "--disk", disk])?;
    answer.refused(1, &[why, "nothing was touched"])
}

/// Runs a program of the base, which must succeed. Returns its output.
fn run(program: &str, words: &[&str]) -> Result<String, Finding> {
    let answer = Command::new(program).args(words).output()?;
    let error_output = || String::from_utf8_lossy(&answer.stderr).into_owned();
    Finding::unless(answer.status.success(), || {
        format!("{program} {words:?}: {}", error_output())
    })?;
    Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
}

fn start_writer() -> Result<(), Finding> {
    let read_only = format!("{READ_ONLY},ro");
    let run = [
        "run", "--image", IMAGE, "--name", WRITER, "--memory", "512M",
    ];
    let disks = ["--network", "--disk", DISK, "--disk", &read_only];
    insula(&[&run[..], &disks].concat())?;
    let taken = try_insula(&["run", "--image", IMAGE, "--disk", DISK])?;
    taken.refused(1, &[DISK, WRITER, "nothing was touched"])
}

fn reads_only() -> Result<(), Finding> {
    wait_for("the node's disks", || {
        let (status, _) = script(WRITER, "test -b /dev/vda && test -b /dev/vdb")?;
        Ok((status == 0).then_some(()))
    })?;
    let (_, output) = script(WRITER, "sha256sum < /dev/vdb")?;
    assert_equal("disk read by the node", &output, &sum_of(READ_ONLY)?)?;
    let (status, _) = script(WRITER, "dd if=/bin/busybox of=/dev/vdb bs=4096 count=1")?;
    Finding::unless(status != 0, || {
        "a disk that is only to be read was written to".into()
    })?;
    let (_, output) = script(WRITER, "rmmod insula_virtio 2>&1")?;
    Finding::unless(output.contains("temporarily unavailable"), || {
        format!("the node may unload the module of its disks: rmmod said {output:?}")
    })?;
    let (_, sectors) = script(WRITER, "cat /sys/block/vda/size")?;
    let wanted = format!("{}\n", DISK_BYTES / 512);
    assert_equal("sectors of the other", &sectors, &wanted)
}

/// The processes that supervise the node and serve its disk have only the capabilities to open
/// files of others and, for its network card, to configure networks.
fn serve_with_few_privileges() -> Result<(), Finding> {
    let open_files = CAP_DAC_OVERRIDE | CAP_DAC_READ_SEARCH;
    let network = CAP_NET_ADMIN | CAP_NET_BIND_SERVICE;
    let supervisors = supervisor_process::find(Some(WRITER))?;
    for (what, pids, most) in [
        ("the supervisor", supervisors, open_files | network),
        (
            "the disk's server",
            device_servers::find(STORAGE_DAEMON, DISK)?,
            open_files,
        ),
    ] {
        Finding::unless(!pids.is_empty(), || format!("{what} is not running"))?;
        for pid in pids {
            privileges::assert_at_most(what, pid, Capabilities(most))?;
        }
    }
    Ok(())
}

/// A disk whose file is missing is shown as failed, does not affect the node otherwise, and works
/// again when the file is back.
fn failed_disk_is_isolated() -> Result<(), Finding> {
    let failed =
        || Ok::<_, Finding>(insula_json(&["inspect", WRITER])?[0]["failed_devices"].clone());
    assert_equal(
        "devices that do not work",
        &failed()?,
        &serde_json::json!([]),
    )?;
    let away = format!("{READ_ONLY}.away");
    fs::rename(READ_ONLY, &away)?;
    device_servers::kill_all(STORAGE_DAEMON, READ_ONLY)?;
    wait_for("the disk to be shown as failed", || {
        let failed = failed()?;
        Ok((text(&failed[0]["device"]) == format!("disk {READ_ONLY}")).then_some(()))
    })?;
    let listed = insula(&["ps"])?;
    Finding::unless(listed.contains("device failed"), || listed)?;
    let (status, _) = script(
        WRITER,
        "dd if=/dev/vda of=/dev/null bs=4096 count=1 iflag=direct",
    )?;
    assert_equal("how the other disk is read", &status, &0)?;
    fs::rename(&away, READ_ONLY)?;
    wait_for("the disk to work again", || {
        Ok((failed()? == serde_json::json!([])).then_some(()))
    })?;
    let (_, output) = script(WRITER, "dd if=/dev/vdb bs=1M iflag=direct | sha256sum")?;
    assert_equal("disk read by the node again", &output, &sum_of(READ_ONLY)?)
}

/// The disk's server is killed while the node writes, and so is the node's supervisor. Node and
/// base read what the node has written.
fn writes_on() -> Result<(), Finding> {
    let fio = format!("setsid sh -c '{FIO} > /fio 2>&1; echo $? > /ended' > /dev/null 2>&1 &");
    script(WRITER, &fio)?;
    for _ in 0..2 {
        wait_until_more_is_written()?;
        device_servers::kill_all(STORAGE_DAEMON, DISK)?;
    }
    wait_until_more_is_written()?;
    supervisor_process::kill(WRITER)?;
    wait_for("the disk's server to end with it", || {
        Ok(device_servers::find(STORAGE_DAEMON, DISK)?
            .is_empty()
            .then_some(()))
    })?;
    insula(&["supervise", WRITER])?;
    wait_for("fio in the node to end", || {
        Ok((script(WRITER, "test -e /ended")?.0 == 0).then_some(()))
    })?;
    let (_, output) = script(WRITER, "cat /ended /fio")?;
    Finding::unless(output.starts_with("0\n"), || {
        format!("fio in the node ended with {output}")
    })?;
    let (_, output) = script(WRITER, "sha256sum < /dev/vda")?;
    assert_equal("disk read by the base", &sum_of(DISK)?, &output)?;
    grown::less_again(WRITER)?;
    insula(&["stop", "--time", "60", WRITER])?;
    let view = &insula_json(&["inspect", WRITER])?[0];
    assert_equal("its end", &text(&view["reason"]), &"power-off".into())
}

fn wait_until_more_is_written() -> Result<(), Finding> {
    let before = written()?;
    wait_for("the node to write", || {
        Ok((written()? > before).then_some(()))
    })
}

/// Allocated blocks of the file, which was sparse.
fn written() -> Result<u64, Finding> {
    Ok(fs::metadata(DISK)?.blocks())
}

/// A node's root on a disk keeps the node's changes; below an overlay it stays unchanged.
fn root_on_a_disk() -> Result<(), Finding> {
    let foreign = try_insula(&["run", "--image", IMAGE, "--rootfs", READ_ONLY])?;
    foreign.refused(1, &[READ_ONLY, "ext4", "nothing was touched"])?;
    let run = [
        "run", "--image", IMAGE, "--name", ON_DISK, "--memory", "256M", "--rootfs", ROOT_DISK,
    ];
    for (own, file, kept) in [(&[][..], "/one", "it\n"), (&["--overlay"], "/two", "")] {
        insula(&[&run[..], own].concat())?;
        let (_, output) = script(
            ON_DISK,
            &format!("test -x /bin/fio && echo it > {file}; cat {file}"),
        )?;
        assert_equal(
            "file of the root, read by the node",
            &output,
            &"it\n".into(),
        )?;
        insula(&["stop", "--time", "60", ON_DISK])?;
        insula(&["rm", ON_DISK])?;
        let read = Command::new("debugfs")
            .args(["-R", &format!("cat {file}"), ROOT_DISK])
            .output()?;
        let read = String::from_utf8_lossy(&read.stdout).into_owned();
        assert_equal("file on the disk", &read.as_str(), &kept)?;
    }
    Ok(())
}

/// A lost root counts as a failure; if restarts are used up, only the user starts the node again.
fn fails_with_its_root() -> Result<(), Finding> {
    let run = [
        "run", "--image", IMAGE, "--name", ROOTED, "--memory", "256M",
    ];
    let root = [
        "--rootfs",
        CONTENT,
        "--overlay",
        "--restart",
        "on-failure:1",
    ];
    insula(&[&run[..], &root].concat())?;
    let has_root = || {
        wait_for("the node to have its root", || {
            let (status, _) = script(ROOTED, "test -x /bin/fio")?;
            Ok((status == 0).then_some(()))
        })
    };
    has_root()?;
    for pid in device_servers::find(VIRTIOFSD, CONTENT)? {
        privileges::assert_at_most("the root's server", pid, Capabilities::OF_A_FILE_SERVER)?;
    }
    grown::root(ROOTED)?;
    device_servers::kill_all(VIRTIOFSD, CONTENT)?;
    wait_for("the node to be restarted", || {
        let view = &insula_json(&["inspect", ROOTED])?[0];
        Ok((view["restarts"] == 1 && view["state"] == "running").then_some(()))
    })?;
    has_root()?;
    supervisor_process::kill(ROOTED)?;
    insula(&["supervise"])?;
    let view = wait_for("the node to end", || {
        let view = insula_json(&["inspect", ROOTED])?[0].clone();
        Ok((view["state"] == "stopped").then_some(view))
    })?;
    assert_equal("its end", &text(&view["reason"]), &"device-lost".into())?;
    insula(&["rm", WRITER, ROOTED])?;
    wait_for("all servers to end", || {
        let left = [
            device_servers::find(STORAGE_DAEMON, "")?,
            device_servers::find(VIRTIOFSD, "")?,
        ]
        .concat();
        Ok(left.is_empty().then_some(()))
    })
}
