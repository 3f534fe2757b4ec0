//! A confined node, compared with the same node without a monitor, and with a guest of KVM.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use insula_driver::name::Name;
use insula_image::Initramfs;
use insula_node::{self as node, NodeLog};
use serde_json::Value;
use testbed::base::{Finding, Shape};
use testbed::host::machine::Emulator;
use testbed::host::root::Root;

use super::{Benchmark, Row, Unit};
use crate::inside::{
    FOLDER, GUEST_ADDRESS, INSIDE_PROBE, Inside, NetworkGuest, PROBE, lines, probed_s,
    wait_until_ready,
};
use crate::microvm::{Executor, Microvm, SHORTER_BOOT};
use crate::primitive::Primitive;
use crate::tcp;

const KERNEL: &str = "6.12";
const NODE: &str = "measured";
const IMAGE: &str = "primitives";
/// Image of nodes with an agent, for files and network.
const AGENT_IMAGE: &str = "living";
/// Initial file system in memory, with the probe.
const INITRD: &str = "/run/primitives.cpio";
/// A file of the base, by its path in the node, and another one that is a disk.
const FILE: &str = "/data";
const DISK: &str = "/run/isolation.disk";
/// Size of both; bytes sent by TCP.
const BYTES: usize = 32 << 20;
/// The core of the guest on the network, which no node has.
const GUEST_CORE: usize = 1;
/// Time in which exits are counted.
const MINUTE: Duration = Duration::from_secs(60);
/// A round takes seconds on a quiet computer.
const LIMIT: Duration = Duration::from_secs(180);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// First process: measures, and reports by the kernel's log.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev 2>/dev/null
klog() { echo "$*" > /dev/kmsg; }

load() {
	while read -r module; do
		insmod "/lib/modules/$(uname -r)/$module"
	done < "/lib/modules/$(uname -r)/$1"
}

klog "insula-node: ready"
case "$(cat /proc/cmdline)" in
*do=idle*) ;;
*do=compute*) while :; do :; done ;;
*)
	for name in NAMES; do
		klog "primitive $name $(/probe primitive $name 2>/dev/null)"
	done
	;;
esac
case "$(cat /proc/cmdline)" in
*disk=*)
	load mmio
	load block
	klog "disk $(/probe through /dev/vda 2>/dev/null)"
	;;
esac
while :; do sleep 1000; done
"#;

/// The same rows for each thing that is measured.
macro_rules! rows {
    ([$($name:literal: $what:literal, $unit:ident);+ $(;)?], $($more:expr),+ $(,)?) => {
        &[
            $(
                Row::time(concat!("isolation.", $name, ".vmm"), concat!($what, ", confined"), "")
                    .unit(Unit::$unit)
                    .beside(concat!("isolation.", $name, ".direct")),
                Row::time(concat!("isolation.", $name, ".direct"), concat!($what, ", direct"), "")
                    .unit(Unit::$unit),
                Row::time(concat!("isolation.", $name, ".kvm"), concat!($what, ", KVM guest"), "")
                    .unit(Unit::$unit)
                    .beside(concat!("isolation.", $name, ".vmm")),
            )+
            $($more),+
        ]
    };
}

const fn share(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Share).goal(1.05).drawn()
}

const fn exits(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "insula inspect").unit(Unit::Count)
}

const fn rate(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::MegabytesPerSecond)
}

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "isolation",
    title: "A confined node, beside a direct one and a guest of KVM",
    how: "The same kernel and initrd, whose first process measures: on a node of two cores, direct and \
          confined (`--isolation vmm`), and in QEMU's microvm with KVM and two cores inside the emulated \
          machine. *Boot* is from Enter to the first process. Each thing is done 2,000 times in a round on \
          one core; the figures are of the medians. *Far memory* is an access in random order to 64 MiB, \
          where each walks page tables, and in a guest the nested ones, too; *near memory* to 16 KiB. A \
          file of 32 MiB is read through virtiofs, and through a disk (virtio-blk), and as much sent by TCP, by \
          nodes with an agent; the guest has QEMU's own disk, and vhost-net. \
          *Exits* leave the node's kernel for its monitor, by cause: during its boot, and in a minute. All \
          of it is QEMU's emulation of nested paging and SVM: an exit and a nested walk cost more there \
          than on hardware. The goals are for what walks no nested tables.",
    machine: Shape {
        emulator: Emulator::Backports,
        ..Shape::USUAL
    },
    root: Root::Bench,
    rounds: 3,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: rows![[
        "boot": "boot", Milliseconds;
        "null-call": "getpid", Microseconds;
        "context-switch": "two context switches", Microseconds;
        "pipe": "a byte through a pipe and back", Microseconds;
        "page-fault": "first touch of a page", Microseconds;
        "far-memory": "access to far memory", Microseconds;
        "near-memory": "access to near memory", Microseconds;
        "ipi": "an interrupt to the other core and its answer", Microseconds;
        "disk": "a disk, read through", MegabytesPerSecond;
        "stream": "TCP from the base", MegabytesPerSecond;
        ],
        share("isolation.share.null-call", "getpid, confined / direct"),
        share("isolation.share.context-switch", "context switch, confined / direct"),
        share("isolation.share.pipe", "pipe, confined / direct"),
        share("isolation.share.near-memory", "near memory, confined / direct"),
        rate("isolation.file.vmm", "a file by virtiofs, confined").beside("isolation.file.direct"),
        rate("isolation.file.direct", "a file by virtiofs, direct"),
        exits("isolation.exits.boot", "exits until the first process, two cores").goal(200.0).drawn(),
        exits("isolation.exits.boot-cpuid", "of them CPUID"),
        exits("isolation.exits.boot-msr", "of them model-specific registers"),
        exits("isolation.exits.boot-ipi", "of them interrupts between its cores"),
        exits("isolation.exits.boot-nmi", "of them NMIs"),
        exits("isolation.exits.boot-port", "of them I/O ports"),
        exits("isolation.exits.idle", "exits in an idle minute, one core").drawn(),
        exits("isolation.exits.compute", "exits in a computing minute, one core").goal(0.0).drawn(),
    ],
};

fn inside(inside: &Inside) -> Result<(), Finding> {
    inside.load_kvm()?;
    fs::write(INITRD, initrd(inside)?)?;
    let kernel = inside.kernel(KERNEL)?.to_string_lossy().into_owned();
    let files = ["--kernel", &kernel, "--initrd", INITRD];
    let add = [
        &["image", "add", IMAGE, "--layout", "decompressed"],
        &files[..],
    ]
    .concat();
    inside.command.run(&add)?;
    inside.build_image(AGENT_IMAGE, KERNEL)?;
    for path in [&format!("{FOLDER}{FILE}"), DISK] {
        fs::write(path, vec![0x5a; BYTES])?;
    }
    for _ in 0..inside.count {
        let direct = primitives(inside, "direct")?;
        let confined = primitives(inside, "vmm")?;
        for ((name, direct_us), (_, confined_us)) in direct.iter().zip(&confined) {
            let row = format!("isolation.share.{name}");
            if BENCHMARK.rows.iter().any(|one| one.id == row) {
                inside.record(&row, confined_us / direct_us)?;
            }
        }
        guest(inside)?;
        for isolation in ["direct", "vmm"] {
            transfers(inside, isolation)?;
        }
    }
    for work in ["idle", "compute"] {
        minute(inside, work)?;
    }
    Ok(())
}

/// The test nodes' initial file system with the probe and another first process: if several archives
/// have a file of the same name, the last counts.
fn initrd(inside: &Inside) -> Result<Vec<u8>, Finding> {
    let names = Primitive::ALL.map(Primitive::name).join(" ");
    let archive = Initramfs::default()
        .program("init", INIT.replace("NAMES", &names).as_bytes())?
        .program("probe", &fs::read(PROBE)?)?;
    Ok([fs::read(inside.initrd())?, archive.finish()?].concat())
}

/// Starts a node. Returns its name, and the time to its first process.
fn start(
    inside: &Inside,
    isolation: &str,
    cpus: &str,
    work: &str,
) -> Result<(Name, Duration), Finding> {
    let size = ["--cpus", cpus, "--memory", "256M", "--isolation", isolation];
    let append = ["--append", work];
    let words = [&["--image", IMAGE], &size[..], &append].concat();
    let started = inside.command.start(NODE, &words)?;
    let ready = wait_until_ready(&inside.driver, &started.name)?;
    Ok((started.name, ready - started.enter))
}

/// Measures on a node. Returns the medians in microseconds, by name.
fn primitives(inside: &Inside, isolation: &str) -> Result<Vec<(&'static str, f64)>, Finding> {
    let (name, boot) = start(inside, isolation, "2", "do=measure")?;
    inside.record(&format!("isolation.boot.{isolation}"), boot)?;
    if isolation == "vmm" {
        exits_of_boot(inside)?;
    }
    let log = NodeLog::open(&node::find(&inside.driver, &name)?)?;
    let deadline = Instant::now() + LIMIT;
    let mut medians = Vec::new();
    for primitive in Primitive::ALL {
        let prefix = format!("primitive {} ", primitive.name());
        let line = loop {
            match lines(&log, &prefix).pop() {
                Some(line) => break line,
                None if Instant::now() > deadline => {
                    return Err(Finding::new(format!("no `{prefix}` in time")));
                }
                None => sleep(POLL_INTERVAL),
            }
        };
        let median_us = median_us(inside, &line)?;
        let row = format!("isolation.{}.{isolation}", primitive.name());
        inside.record(&row, median_us)?;
        medians.push((primitive.name(), median_us));
    }
    inside.command.run(&["rm", "--force", NODE])?;
    Ok(medians)
}

/// The same in a guest of KVM, which then reads a disk; and a stream to another one.
fn guest(inside: &Inside) -> Result<(), Finding> {
    let (machine, _) = inside.driver.machine()?;
    let drive = format!("if=none,id=disk,format=raw,file={DISK}");
    let disk = ["-drive", &drive, "-device", "virtio-blk-device,drive=disk"];
    let enter = Instant::now();
    let mut guest = Microvm {
        executor: Executor::Kvm,
        kernel: &inside.kernel(KERNEL)?,
        initrd: INITRD.as_ref(),
        tsc_khz: machine.tsc_khz,
        append: &format!("{SHORTER_BOOT} disk=vda"),
        cores: 2,
        devices: &disk,
        core: None,
    }
    .start()?;
    let ready = guest.wait_for(crate::inside::READY)?;
    inside.record("isolation.boot.kvm", ready - enter)?;
    for primitive in Primitive::ALL {
        let prefix = format!("primitive {} ", primitive.name());
        let (_, line) = guest.next_with(&prefix)?;
        let row = format!("isolation.{}.kvm", primitive.name());
        inside.record(&row, median_us(inside, &line)?)?;
    }
    let (_, line) = guest.next_with("disk ")?;
    inside.record(
        "isolation.disk.kvm",
        rate_of(median_us(inside, &line)? / 1e6),
    )?;
    drop(guest);
    let _guest = NetworkGuest::start(inside, KERNEL, GUEST_CORE)?;
    let rate = rate_of(stream_s(inside, GUEST_ADDRESS)?);
    inside.record("isolation.stream.kvm", rate)
}

/// The rate of a transfer of [`BYTES`] in so many seconds, in MB/s.
fn rate_of(seconds: f64) -> f64 {
    BYTES as f64 / 1e6 / seconds
}

/// Sends [`BYTES`] to the server at an address. Returns the time in seconds.
fn stream_s(inside: &Inside, address: &str) -> Result<f64, Finding> {
    let ticks = tcp::stream(address, BYTES)? as f64;
    Ok(ticks / 1e3 / f64::from(inside.driver.machine()?.0.tsc_khz))
}

/// The median of a line `… primitive NAME MEDIAN P99`, which are in ticks.
fn median_us(inside: &Inside, line: &str) -> Result<f64, Finding> {
    let mut words = line.split_whitespace().rev();
    let median = words.nth(1).and_then(|word| word.parse::<f64>().ok());
    let median = median.ok_or_else(|| Finding::new(format!("no measurement: {line}")))?;
    Ok(median * 1e3 / f64::from(inside.driver.machine()?.0.tsc_khz))
}

/// A file through virtiofs, a disk, and a stream by TCP.
fn transfers(inside: &Inside, isolation: &str) -> Result<(), Finding> {
    let size = ["--cpus", "1", "--memory", "256M", "--isolation", isolation];
    let devices = [
        "--rootfs",
        FOLDER,
        "--network",
        "--disk",
        DISK,
        "--name",
        NODE,
    ];
    let serve = ["--", INSIDE_PROBE, "serve"];
    let words = [
        &["run", "--image", AGENT_IMAGE],
        &size[..],
        &devices,
        &serve,
    ]
    .concat();
    inside.command.run(&words)?;
    for (row, path) in [("file", FILE), ("disk", "/dev/vda")] {
        let mut read = inside.command.prepare();
        read.args(["exec", NODE, "--", INSIDE_PROBE, "through", path]);
        let rate = rate_of(probed_s(inside, &mut read)?);
        inside.record(&format!("isolation.{row}.{isolation}"), rate)?;
    }
    let shown = inspect(inside)?;
    let address = shown["address"].as_str().unwrap_or_default();
    let rate = rate_of(stream_s(inside, address)?);
    inside.record(&format!("isolation.stream.{isolation}"), rate)?;
    inside.command.run(&["rm", "--force", NODE]).map(drop)
}

/// Exits of a node's boot, by cause.
fn exits_of_boot(inside: &Inside) -> Result<(), Finding> {
    let exits = exit_counts(inside)?;
    inside.record("isolation.exits.boot", total(&exits))?;
    for cause in ["cpuid", "msr", "ipi", "nmi", "port"] {
        let count = exits[cause].as_f64().unwrap_or_default();
        inside.record(&format!("isolation.exits.boot-{cause}"), count)?;
    }
    Ok(())
}

/// Exits in a minute, of a node with one core.
fn minute(inside: &Inside, work: &str) -> Result<(), Finding> {
    start(inside, "vmm", "1", &format!("do={work}"))?;
    // What its start leaves to do is over.
    sleep(MINUTE / 6);
    let before = total(&exit_counts(inside)?);
    sleep(MINUTE);
    let after = total(&exit_counts(inside)?);
    inside.record(&format!("isolation.exits.{work}"), after - before)?;
    inside.command.run(&["rm", "--force", NODE]).map(drop)
}

fn exit_counts(inside: &Inside) -> Result<Value, Finding> {
    Ok(inspect(inside)?["monitor"]["exits"].clone())
}

fn total(exits: &Value) -> f64 {
    let all = exits.as_object().into_iter().flatten();
    all.filter_map(|(_, count)| count.as_f64()).sum()
}

fn inspect(inside: &Inside) -> Result<Value, Finding> {
    let text = inside.command.run(&["inspect", NODE])?;
    let mut shown: Value = serde_json::from_str(&text)?;
    Ok(shown[0].take())
}
