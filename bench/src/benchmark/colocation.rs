//! Two kernels on one core: how soon the one that goes first gets the core.

mod node;
mod path;
mod work;

use std::fs;
use std::process::Command;
use std::time::Duration;

use testbed::base::{Finding, Shape};
use testbed::host::machine::Emulator;
use testbed::host::root::Root;

use super::{Benchmark, Row, Unit};
use crate::inside::{FOLDER, Inside, pin};
use crate::marks::Kind;
use node::{Node, Ring};
pub(super) use path::BENCHMARK as PATH;
use work::{Owner, Work};

/// Core of the node: its own, or shared.
const CORE: usize = 2;
/// Core of who rings.
const RINGER: usize = 0;
/// Doorbells rung in a round.
const RINGS: usize = 10_000;
/// The same while the base has interrupts off for long.
const RINGS_LONG: usize = 100;
const DRIVERS: [&str; 2] = ["/payload/insula_ring.ko", "/payload/insula_quiet.ko"];
/// The second in the confined node.
const QUIET: &str = "insula_quiet.ko";
const PARAMETERS: &str = "/sys/module/insula_ring/parameters";
const TICKS: &str = "/sys/kernel/debug/insula_ring/ticks";
const NODE: &str = "measured";
/// A program that computes for ever; reads a disk, past the page cache; is in the kernel with interrupts
/// off for most of the time, 5 ms each.
const COMPUTING: &str = "while :; do :; done";
const READING: &str =
    "while :; do dd if=/dev/nvme0n1 of=/dev/null bs=4k count=256 iflag=direct 2>&-; done";
const INTERRUPTS_OFF: &str =
    "while :; do echo 5 > /sys/module/insula_quiet/parameters/spin_ms; done";
/// The same, 200 ms each.
const INTERRUPTS_OFF_LONG: &str =
    "while :; do echo 200 > /sys/module/insula_quiet/parameters/spin_ms; done";
/// Works of the Linux on the shared core: the name in the rows, the program, rounds.
const WORKS: [(&str, Option<&str>, usize); 5] = [
    ("idle", None, RINGS),
    ("computing", Some(COMPUTING), RINGS),
    (READS, Some(READING), RINGS),
    ("off", Some(INTERRUPTS_OFF), RINGS),
    ("long-off", Some(INTERRUPTS_OFF_LONG), RINGS_LONG),
];
/// The one for which a disk is needed.
const READS: &str = "reading";
/// Ways to share the core.
const WAYS: [Way; 3] = [
    Way {
        name: "direct",
        prefix: "",
        words: &[],
        kind: Kind::InterruptShared,
        ring: Ring::Interrupt,
        linux: Owner::Base,
    },
    Way {
        name: "nmi",
        prefix: "nmi-",
        words: &["--share-by", "nmi"],
        kind: Kind::InterruptNmi,
        ring: Ring::Module,
        linux: Owner::Base,
    },
    Way {
        name: "vmm",
        prefix: "vmm-",
        words: &["--share-by", "vmm"],
        kind: Kind::InterruptMonitor,
        ring: Ring::Monitor,
        linux: Owner::Confined,
    },
];
/// The confined node.
const CONFINED: &str = "confined";
const CONFINED_SIZE: [&str; 8] = [
    "--isolation",
    "vmm",
    "--cpu-list",
    "2",
    "--memory",
    "256M",
    "--image",
    CONFINED,
];
/// Where a program tells its process.
const PROCESS: &str = "/run/work";
const KERNEL: &str = "6.12";
/// Time in the kernel of a program that has begun, in ticks of 10 ms: more than its start takes.
const BUSY_TICKS: u64 = 20;
const LIMIT: Duration = Duration::from_secs(60);

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "colocation",
    title: "A core shared by two kernels",
    how: "A core of the base interrupts another one 10,000 times, and measures by the time stamp counter how \
          long it takes from just before until the lightweight kernel there handles that. *Native*: the \
          core is the lightweight kernel's own, idle, or with a program that computes. *Shared*: it is \
          the base's, which is entered by the interrupt, and switches to the other kernel; meanwhile the base \
          is idle, computes, reads a disk in blocks of 4 KiB, or is in sections of 5 or 200 ms with interrupts \
          off (of the latter, 100 rounds), into which no ordinary interrupt gets. *By NMIs*: the base is \
          entered by one, which gets there. *Worst* is the longest of all. On an emulated core the \
          longest ones are those in which the host did not run it, and an idle core is a thread that sleeps. \
          *By the monitor*: the core is a confined Linux node's, whose programs work there. The *slowdown* is \
          that of a computing program of the Linux on the core, by a node that shares it and is idle.",
    machine: Shape {
        append: "no5lvl",
        // Virtualization, as where a core is shared by the monitor in tests.
        emulator: Emulator::Backports,
        ..Shape::USUAL
    },
    root: Root::Test,
    rounds: 3,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        time("colocation.native-idle", "native, idle, mean").drawn(),
        time("colocation.native-idle-median", "the same, median"),
        time("colocation.native-idle-worst", "the same, worst"),
        time(
            "colocation.native-computing",
            "native, a program computes, mean",
        )
        .drawn(),
        time("colocation.native-computing-median", "the same, median"),
        time("colocation.native-computing-worst", "the same, worst"),
        time("colocation.direct-idle", "shared, the base is idle, mean")
            .beside("colocation.native-idle")
            .drawn(),
        time("colocation.direct-idle-median", "the same, median")
            .beside("colocation.native-idle-median"),
        time("colocation.direct-idle-worst", "the same, worst")
            .beside("colocation.native-idle-worst"),
        time(
            "colocation.direct-computing",
            "shared, the base computes, mean",
        )
        .beside("colocation.native-computing")
        .drawn(),
        time("colocation.direct-computing-median", "the same, median")
            .beside("colocation.native-computing-median"),
        time("colocation.direct-computing-worst", "the same, worst")
            .beside("colocation.native-computing-worst"),
        time(
            "colocation.direct-reading",
            "shared, the base reads a disk, mean",
        )
        .drawn(),
        time("colocation.direct-reading-median", "the same, median"),
        time("colocation.direct-reading-worst", "the same, worst"),
        time(
            "colocation.direct-off",
            "shared, the base has interrupts off for 5 ms, mean",
        ),
        time("colocation.direct-off-median", "the same, median"),
        time("colocation.direct-off-worst", "the same, worst"),
        time(
            "colocation.direct-long-off",
            "shared, the base has interrupts off for 200 ms, mean",
        ),
        time("colocation.direct-long-off-median", "the same, median"),
        time("colocation.direct-long-off-worst", "the same, worst"),
        time(
            "colocation.nmi-idle",
            "shared, by NMIs, the base is idle, mean",
        )
        .beside("colocation.direct-idle")
        .drawn(),
        time("colocation.nmi-idle-median", "the same, median")
            .beside("colocation.direct-idle-median"),
        time("colocation.nmi-idle-worst", "the same, worst").beside("colocation.direct-idle-worst"),
        time(
            "colocation.nmi-computing",
            "shared, by NMIs, the base computes, mean",
        )
        .beside("colocation.direct-computing")
        .drawn(),
        time("colocation.nmi-computing-median", "the same, median")
            .beside("colocation.direct-computing-median"),
        time("colocation.nmi-computing-worst", "the same, worst")
            .beside("colocation.direct-computing-worst"),
        time(
            "colocation.nmi-reading",
            "shared, by NMIs, the base reads a disk, mean",
        )
        .beside("colocation.direct-reading")
        .drawn(),
        time("colocation.nmi-reading-median", "the same, median")
            .beside("colocation.direct-reading-median"),
        time("colocation.nmi-reading-worst", "the same, worst")
            .beside("colocation.direct-reading-worst"),
        time(
            "colocation.nmi-off",
            "shared, by NMIs, the base has interrupts off for 5 ms, mean",
        )
        .beside("colocation.direct-off"),
        time("colocation.nmi-off-median", "the same, median")
            .beside("colocation.direct-off-median"),
        time("colocation.nmi-off-worst", "the same, worst").beside("colocation.direct-off-worst"),
        time(
            "colocation.nmi-long-off",
            "shared, by NMIs, the base has interrupts off for 200 ms, mean",
        )
        .beside("colocation.direct-long-off"),
        time("colocation.nmi-long-off-median", "the same, median")
            .beside("colocation.direct-long-off-median"),
        time("colocation.nmi-long-off-worst", "the same, worst")
            .beside("colocation.direct-long-off-worst"),
        time(
            "colocation.vmm-idle",
            "shared, by the monitor, the Linux is idle, mean",
        )
        .beside("colocation.direct-idle")
        .drawn(),
        time("colocation.vmm-idle-median", "the same, median")
            .beside("colocation.direct-idle-median"),
        time("colocation.vmm-idle-worst", "the same, worst").beside("colocation.direct-idle-worst"),
        time(
            "colocation.vmm-computing",
            "shared, by the monitor, the Linux computes, mean",
        )
        .beside("colocation.direct-computing")
        .drawn(),
        time("colocation.vmm-computing-median", "the same, median")
            .beside("colocation.direct-computing-median"),
        time("colocation.vmm-computing-worst", "the same, worst")
            .beside("colocation.direct-computing-worst"),
        time(
            "colocation.vmm-off",
            "shared, by the monitor, the Linux has interrupts off for 5 ms, mean",
        )
        .beside("colocation.direct-off")
        .drawn(),
        time("colocation.vmm-off-median", "the same, median")
            .beside("colocation.direct-off-median"),
        time("colocation.vmm-off-worst", "the same, worst").beside("colocation.direct-off-worst"),
        time(
            "colocation.vmm-long-off",
            "shared, by the monitor, the Linux has interrupts off for 200 ms, mean",
        )
        .beside("colocation.direct-long-off"),
        time("colocation.vmm-long-off-median", "the same, median")
            .beside("colocation.direct-long-off-median"),
        time("colocation.vmm-long-off-worst", "the same, worst")
            .beside("colocation.direct-long-off-worst"),
        Row::time(
            "colocation.share",
            "shared / native, computing, of the medians",
            "",
        )
        .unit(Unit::Share)
        .goal(2.0),
        Row::time("colocation.nmi-share", "the same by NMIs", "")
            .unit(Unit::Share)
            .goal(2.0),
        Row::time("colocation.vmm-share", "the same by the monitor", "")
            .unit(Unit::Share)
            .goal(10.0),
        Row::time(
            "colocation.slowdown",
            "a program of the base, with and without an idle node",
            "",
        )
        .unit(Unit::Share)
        .goal(1.01),
        Row::time(
            "colocation.nmi-slowdown",
            "a program of the base, by NMIs",
            "",
        )
        .unit(Unit::Share)
        .goal(1.01),
        Row::time(
            "colocation.vmm-slowdown",
            "a program of the confined node, by the monitor",
            "",
        )
        .unit(Unit::Share)
        .goal(1.01),
    ],
};

const fn time(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Cycles)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    pin(0, RINGER)?;
    prepare(inside)?;
    for _ in 0..inside.count {
        let native = native(inside)?;
        for way in &WAYS {
            way.linux.start(inside)?;
            way.measure(inside, native)?;
            way.linux.end(inside)?;
        }
    }
    Ok(())
}

/// Loads the drivers, and makes the confined node's image.
fn prepare(inside: &Inside) -> Result<(), Finding> {
    for driver in DRIVERS {
        let loaded = Command::new("insmod").arg(driver).status()?;
        Finding::unless(loaded.success(), || format!("insmod {driver}: {loaded}"))?;
    }
    make_image(inside)
}

/// Makes the confined node's image, with the driver that has interrupts off.
fn make_image(inside: &Inside) -> Result<(), Finding> {
    fs::create_dir_all(FOLDER)?;
    fs::copy(DRIVERS[1], format!("{FOLDER}/{QUIET}"))?;
    inside.build_image(CONFINED, KERNEL)
}

/// A way to share the core.
struct Way {
    /// Its name in the rows of times, and what it adds to those of shares.
    name: &'static str,
    prefix: &'static str,
    /// Words for the command.
    words: &'static [&'static str],
    /// What is counted of it.
    kind: Kind,
    ring: Ring,
    linux: Owner,
}

impl Way {
    /// Starts the lightweight kernel on the shared core.
    fn start<'a>(&self, inside: &'a Inside) -> Result<Node<'a>, Finding> {
        let core = CORE.to_string();
        let words = [&["--share-core", &core], self.words].concat();
        Node::start(inside, &words, self.ring)
    }

    fn measure(&self, inside: &Inside, native: f64) -> Result<(), Finding> {
        let (linux, prefix) = (self.linux, self.prefix);
        let alone_s = linux.work_s(inside)?;
        let node = self.start(inside)?;
        let slowdown = linux.work_s(inside)? / alone_s;
        inside.record(&format!("colocation.{prefix}slowdown"), slowdown)?;
        let median = self.measure_works(&node)?;
        inside.record(&format!("colocation.{prefix}share"), median / native)?;
        node.remove()
    }

    /// Measures all works of the Linux. Returns the median while it computes, in cycles.
    fn measure_works(&self, node: &Node<'_>) -> Result<f64, Finding> {
        let mut computing = 0.0;
        let linux = self.linux;
        let works = WORKS.iter();
        for &(name, program, rounds) in works.filter(|work| linux == Owner::Base || work.0 != READS)
        {
            let work = program.map(|program| Work::start(program, linux, node.inside));
            let work = work.transpose()?;
            // A few rounds would be over before the program has begun.
            if let Some(work) = work.as_ref().filter(|_| rounds < RINGS) {
                work.wait_until_busy()?;
            }
            let median = node.measure(&format!("{}-{name}", self.name), rounds)?;
            drop(work);
            if name == "computing" {
                computing = median;
            }
        }
        Ok(computing)
    }
}

/// A core of its own. Returns the median with a program that computes, in cycles.
fn native(inside: &Inside) -> Result<f64, Finding> {
    let node = start_native(inside)?;
    node.measure("native-idle", RINGS)?;
    let work = Work::start(COMPUTING, Owner::Lwk, inside)?;
    node.wait_for_program()?;
    let median = node.measure("native-computing", RINGS)?;
    drop(work);
    node.remove()?;
    Ok(median)
}

fn start_native(inside: &Inside) -> Result<Node<'_>, Finding> {
    Node::start(inside, &["--cpu-list", &CORE.to_string()], Ring::Interrupt)
}
