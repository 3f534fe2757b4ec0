//! Two kernels on one core: how soon the one that goes first gets the core.

use std::fs;
use std::mem::offset_of;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use insula_abi::lwk::{COUNTERS_PAGES, Core, Delegation, LWK_MAGIC, PAGE_SIZE};
use insula_driver::Mapping;
use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Row, Unit};
use crate::inside::{Inside, PROBE, Place, output, pin};
use crate::marks::Kind;

/// Core of the node: its own, or shared.
const CORE: usize = 2;
/// Core of who rings.
const RINGER: usize = 0;
/// Doorbells rung in a round.
const RINGS: usize = 10_000;
/// The same while the base has interrupts off for long.
const RINGS_LONG: usize = 100;
const DRIVERS: [&str; 2] = ["/payload/insula_ring.ko", "/payload/insula_quiet.ko"];
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
/// Works of the base on the shared core: the name in the rows, the program, rounds.
const WORKS: [(&str, Option<&str>, usize); 5] = [
    ("idle", None, RINGS),
    ("computing", Some(COMPUTING), RINGS),
    ("reading", Some(READING), RINGS),
    ("off", Some(INTERRUPTS_OFF), RINGS),
    ("long-off", Some(INTERRUPTS_OFF_LONG), RINGS_LONG),
];
/// Ways to share the core: the name in the rows, the words for the command, and whether the node is entered by
/// NMIs.
const WAYS: [(&str, &[&str], bool); 2] = [
    ("direct", &[], false),
    ("nmi", &["--share-by", "nmi"], true),
];
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
          The *slowdown* is that of a computing program of the base on the core, by a node that shares it \
          and is idle.",
    machine: Shape {
        append: "no5lvl",
        ..Shape::USUAL
    },
    root: Root::Test,
    rounds: 3,
    inside,
    outside: None,
    counted: None,
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
        Row::time(
            "colocation.slowdown",
            "a program of the base, with and without an idle node",
            "",
        )
        .unit(Unit::Share)
        .goal(1.01),
        Row::time("colocation.nmi-slowdown", "the same by NMIs", "")
            .unit(Unit::Share)
            .goal(1.01),
    ],
};

const fn time(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Cycles)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    pin(0, RINGER)?;
    for driver in DRIVERS {
        let loaded = Command::new("insmod").arg(driver).status()?;
        Finding::unless(loaded.success(), || format!("insmod {driver}: {loaded}"))?;
    }
    for _ in 0..inside.count {
        let alone_s = work_s(inside)?;
        let native = native(inside)?;
        for (way, words, by_nmi) in WAYS {
            let core = CORE.to_string();
            let words = [&["--share-core", &core], words].concat();
            let node = Node::start(inside, &words, by_nmi)?;
            let prefix = if by_nmi { "nmi-" } else { "" };
            let slowdown = work_s(inside)? / alone_s;
            inside.record(&format!("colocation.{prefix}slowdown"), slowdown)?;
            let median = measure_all(&node, way)?;
            inside.record(&format!("colocation.{prefix}share"), median / native)?;
            node.remove()?;
        }
    }
    Ok(())
}

/// Measures all works of the base. Returns the median while it computes, in cycles.
fn measure_all(node: &Node, way: &str) -> Result<f64, Finding> {
    let mut computing = 0.0;
    for (name, program, rounds) in WORKS {
        let inside = node.inside;
        let work = program.map(|program| Work::start(program, Place::Base(CORE), inside));
        // A few rounds would be over before the program has begun.
        if let Some(work) = work.transpose()?.as_ref().filter(|_| rounds < RINGS) {
            work.wait_until_busy()?;
        }
        let median = node.measure(&format!("{way}-{name}"), rounds)?;
        if name == "computing" {
            computing = median;
        }
    }
    Ok(computing)
}

/// A core of its own. Returns the median with a program that computes, in cycles.
fn native(inside: &Inside) -> Result<f64, Finding> {
    let node = Node::start(inside, &["--cpu-list", &CORE.to_string()], false)?;
    node.measure("native-idle", RINGS)?;
    let work = Work::start(COMPUTING, Place::Lwk, inside)?;
    node.wait_for_program()?;
    let median = node.measure("native-computing", RINGS)?;
    drop(work);
    node.remove()?;
    Ok(median)
}

/// Seconds that a program of the base takes on the core.
fn work_s(inside: &Inside) -> Result<f64, Finding> {
    let began = Instant::now();
    let words = [PROBE, "marked", Kind::SpinPlain.word(), PROBE];
    output(inside, Place::Base(CORE), &words)?;
    Ok(began.elapsed().as_secs_f64())
}

/// A program that works meanwhile; killed when this is dropped.
struct Work(Child);

impl Work {
    fn start(script: &str, place: Place, inside: &Inside) -> Result<Self, Finding> {
        let mut command = match place {
            Place::Base(core) => {
                let mut command = Command::new("taskset");
                command.args(["-c", &core.to_string()]);
                command
            }
            Place::Lwk => {
                let mut command = inside.command.prepare();
                command.args(["exec", NODE, "--"]);
                command
            }
        };
        let command = command.args(["sh", "-c", script]).stdin(Stdio::null());
        Ok(Self(command.spawn()?))
    }
}

impl Work {
    /// Waits until it has spent some time in the kernel.
    fn wait_until_busy(&self) -> Result<(), Finding> {
        let stat = format!("/proc/{}/stat", self.0.id());
        let began = Instant::now();
        loop {
            let text = fs::read_to_string(&stat)?;
            // The 15th value, and the 13th behind the name: proc(5).
            let values = text.rsplit(')').next().unwrap_or_default();
            let ticks = values.split_whitespace().nth(12).unwrap_or_default();
            if ticks.parse().is_ok_and(|ticks: u64| ticks >= BUSY_TICKS) {
                return Ok(());
            }
            Finding::unless(began.elapsed() < LIMIT, || {
                "the base's program does nothing".into()
            })?;
            std::thread::yield_now();
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node of the lightweight kernel, and the words of its first core.
struct Node<'a> {
    inside: &'a Inside,
    memory: Mapping,
    /// Physical address of the words.
    core: u64,
    by_nmi: bool,
}

impl<'a> Node<'a> {
    fn start(inside: &'a Inside, words: &[&str], by_nmi: bool) -> Result<Self, Finding> {
        let usual = ["--image", "lwk", "--memory", "64M"];
        inside.command.start(NODE, &[&usual[..], words].concat())?;
        // A core publishes its words when it first enters a program.
        inside.command.run(&["exec", NODE, "--", "true"])?;
        let name = NODE.parse::<insula_driver::name::Name>()?.to_abi();
        let memory = inside
            .driver
            .open_node(&name)?
            .memory()?
            .map_for_reading()?;
        let area = find_area(&memory)?;
        let node = Self {
            core: area + (1 + u64::from(COUNTERS_PAGES)) * PAGE_SIZE,
            memory,
            inside,
            by_nmi,
        };
        node.wait_for(offset_of!(Core, doorbell), "its core")?;
        Ok(node)
    }

    /// Measures rounds, and records them. Returns the median, in cycles.
    fn measure(&self, row: &str, rounds: usize) -> Result<f64, Finding> {
        let doorbell = self.word(offset_of!(Core, doorbell))?;
        let word = self.core + offset_of!(Core, interrupted_at) as u64;
        for (name, value) in [
            (
                "apic_id",
                doorbell >> insula_abi::channel::DOORBELL_APIC_SHIFT & 0xffff_ffff,
            ),
            ("vector", doorbell & 0xff),
            ("word", word),
            ("by_nmi", u64::from(self.by_nmi)),
            ("rounds", rounds as u64),
        ] {
            fs::write(format!("{PARAMETERS}/{name}"), value.to_string())?;
        }
        let ticks = fs::read(TICKS)?;
        let words = ticks.as_chunks().0.iter();
        let mut times: Vec<_> = words.map(|word| u64::from_ne_bytes(*word)).collect();
        times.sort_unstable();
        let (Some(worst), median) = (times.last(), times[times.len() / 2]) else {
            return Err(Finding::new("nothing was measured"));
        };
        let row = format!("colocation.{row}");
        let mean = times.iter().sum::<u64>() as f64 / times.len() as f64;
        self.inside.record(&row, mean)?;
        self.inside
            .record(&format!("{row}-median"), median as f64)?;
        self.inside.record(&format!("{row}-worst"), *worst as f64)?;
        Ok(median as f64)
    }

    fn wait_for_program(&self) -> Result<(), Finding> {
        self.wait_for(offset_of!(Core, running), "its program")
    }

    /// Waits until a word of the core is not 0.
    fn wait_for(&self, offset: usize, what: &str) -> Result<(), Finding> {
        let began = Instant::now();
        while self.word(offset)? == 0 {
            Finding::unless(began.elapsed() < LIMIT, || format!("waited for {what}"))?;
            std::thread::yield_now();
        }
        Ok(())
    }

    fn word(&self, offset: usize) -> Result<u64, Finding> {
        let mut word = [0; 8];
        let at = self.memory.offset_of(self.core + offset as u64, 8)?;
        self.memory.read(at, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    fn remove(self) -> Result<(), Finding> {
        self.inside.command.run(&["rm", "--force", NODE]).map(drop)
    }
}

/// Physical address of the delegation area: of the page that begins with its magic number.
fn find_area(memory: &Mapping) -> Result<u64, Finding> {
    let magic = offset_of!(Delegation, magic) as u64;
    let pages = memory
        .chunks()
        .flat_map(|chunk| (chunk.start..chunk.start + chunk.size).step_by(PAGE_SIZE as usize));
    for page in pages {
        let mut word = [0; 8];
        memory.read(memory.offset_of(page + magic, 8)?, &mut word)?;
        if u64::from_ne_bytes(word) == LWK_MAGIC {
            return Ok(page);
        }
    }
    Err(Finding::new("there is no delegation area"))
}
