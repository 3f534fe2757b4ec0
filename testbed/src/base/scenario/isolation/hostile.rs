//! A hostile kernel of our own (`testbed/hostile`), confined: what it does, by seeds, ends it alone.
//!
//! After each run the base's memory has its content, a trusted node goes on with its work, and everything
//! that was taken has been given back.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use insula_driver::name::Name;
use insula_driver::{Driver, Mapping};
use insula_hostile::attack;
use insula_hostile::orders::{self, Orders};
use insula_node::NodeRecord;
use serde_json::Value;

use super::neighbour::Neighbour;
use crate::base::support::insula_command::{
    insula, insula_json, text, try_insula, wait_for, with_cleanup,
};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;
use crate::host::payload::equipment::HOSTILE_PATH;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "hostile",
    proves: "whatever a confined node's kernel does, the base and other nodes keep working",
    machine: Shape {
        emulator: Emulator::Backports,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
    soak_limit: Some(Duration::from_secs(7200)),
    play,
};

/// Seeds, in a usual run and a long one.
const SEEDS: [u64; 2] = [12, 250];
/// What a kernel ends by depends on chance, too: so many times as many are tried until enough kinds were seen.
const MORE: u64 = 4;
/// Time for all acts of a seed. A kernel may also hang itself: then it is stopped.
const TIMEOUT: Duration = Duration::from_secs(10);
const NAME: &str = "hostile";
/// Kinds of ends that a few seeds must have shown.
const ENDS: usize = 3;
/// Bytes of the image in which the orders are looked for.
const IMAGE: u64 = 2 << 20;

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        let neighbour = Neighbour::start(context)?;
        attacks(context, &neighbour)?;
        neighbour.remove()
    })
}

/// Each seed ends the kernel alone.
fn attacks(context: &Context, neighbour: &Neighbour) -> Result<(), Finding> {
    let before = Resources::now()?;
    let mut ends = BTreeMap::<String, u64>::new();
    let mut acts = 0;
    let count = context.count(SEEDS[0], SEEDS[1]);
    for seed in 0..count * MORE {
        if seed >= count && ends.len() >= ENDS {
            break;
        }
        let when = format!("seed {seed}");
        println!("{when}");
        let end = run(seed, neighbour).map_err(|finding| finding.when(&when))?;
        println!("{end:?}");
        *ends.entry(end.reason).or_default() += 1;
        acts += end.acts;
        neighbour
            .assert_unharmed()
            .and_then(|()| assert_unchanged(&before))
            .map_err(|finding| finding.when(&when))?;
    }
    println!("{acts} acts; ends: {ends:?}");
    Finding::unless(ends.len() >= ENDS && acts > 0, || {
        format!("too few kinds of ends were seen in {acts} acts: {ends:?}")
    })
}

/// How a run ended.
#[derive(Debug)]
struct End {
    /// The kind of violation, or why it is stopped.
    reason: String,
    /// What its cores did last: kinds of acts, and whether these were to break out.
    #[expect(dead_code, reason = "shown")]
    last: Vec<String>,
    /// Acts of its cores.
    acts: u64,
}

/// Runs the kernel with a seed to its end, and removes it.
fn run(seed: u64, neighbour: &Neighbour) -> Result<End, Finding> {
    let size = [
        "--isolation",
        "vmm",
        "--cpus",
        "2",
        "--memory",
        "64M",
        "--no-reboot",
    ];
    let node = ["run", "--json", "--name", NAME, "--kernel", HOSTILE_PATH];
    insula_json(&[&node[..], &size].concat())?;
    let board = Board::find()?;
    board.order(seed, neighbour)?;
    let view = wait_for_end()?;
    let monitor = &view["monitor"]["ended"];
    let kind = text(&monitor["kind"]);
    Finding::unless(kind != "monitor-failed", || {
        format!("the monitor failed: {monitor}")
    })?;
    let reason = text(&view["reason"]);
    let is_expected = ["violation", "reset", "power-off", "killed"].contains(&reason.as_str());
    Finding::unless(is_expected, || format!("it ended as {reason}: {view}"))?;
    let end = End {
        reason: if reason == "violation" { kind } else { reason },
        last: board.last()?,
        acts: board.acts()?,
    };
    insula(&["rm", "--force", NAME])?;
    Ok(end)
}

/// Waits for its end, and kills it if it hangs.
fn wait_for_end() -> Result<Value, Finding> {
    let began = Instant::now();
    let view = || Ok::<_, Finding>(insula_json(&["inspect", NAME])?[0].clone());
    let ended = wait_for("the end of the attacks", || {
        let view = view()?;
        let is_over = view["state"] == "stopped" || began.elapsed() > TIMEOUT;
        Ok(is_over.then_some(view))
    })?;
    if ended["state"] != "stopped" {
        // It may have ended meanwhile.
        try_insula(&["kill", NAME])?;
    }
    view()
}

/// The page by which it gets its orders, in its memory.
struct Board {
    memory: Mapping,
    /// Offset of the page.
    offset: u64,
    channels: u64,
    monitor: u64,
    apic_ids: Vec<u32>,
}

impl Board {
    /// Finds the page in the memory of the node.
    fn find() -> Result<Self, Finding> {
        let node = Driver::open()?.open_node(&NAME.parse::<Name>()?.to_abi())?;
        let (info, cpus) = node.info()?;
        let record = NodeRecord::read(&node.description()?);
        let record = record.ok_or_else(|| Finding::new("the node has no record"))?;
        let memory = node.memory()?.map()?;
        let image = memory.offset_of(record.kernel_address, IMAGE)?;
        let mut pages = (image..image + IMAGE).step_by(orders::SIZE as usize);
        let is_orders = |offset: &u64| {
            let word = |at| {
                memory
                    .word(offset + at)
                    .map(|word| word.load(Ordering::Relaxed))
            };
            [word(0), word(8)].map(Result::ok) == orders::MAGIC.map(Some)
        };
        let offset = pages.find(is_orders);
        let offset = offset.ok_or_else(|| Finding::new("the kernel has no orders"))?;
        Ok(Self {
            memory,
            offset,
            channels: record.channels,
            monitor: info.monitor,
            apic_ids: cpus.iter().map(|cpu| cpu.apic_id).collect(),
        })
    }

    fn set(&self, member: usize, value: u64) -> Result<(), Finding> {
        let word = self.memory.word(self.offset + member as u64)?;
        word.store(value, Ordering::Release);
        Ok(())
    }

    fn get(&self, member: usize) -> Result<u64, Finding> {
        let word = self.memory.word(self.offset + member as u64)?;
        Ok(word.load(Ordering::Relaxed))
    }

    /// Lets it begin.
    fn order(&self, seed: u64, neighbour: &Neighbour) -> Result<(), Finding> {
        let base = 0;
        let foreign = [base, neighbour.node.apic_ids[0].into()];
        for (index, &id) in self.apic_ids.iter().enumerate() {
            self.set(offset_of!(Orders, own_cores) + 8 * index, id.into())?;
        }
        for (index, id) in foreign.into_iter().enumerate() {
            self.set(offset_of!(Orders, foreign_cores) + 8 * index, id)?;
        }
        for (member, value) in [
            (offset_of!(Orders, own_count), self.apic_ids.len() as u64),
            (offset_of!(Orders, seed), seed),
            (offset_of!(Orders, foreign_memory), neighbour.canary.address),
            (offset_of!(Orders, monitor), self.monitor),
            (offset_of!(Orders, channels), self.channels),
            (offset_of!(Orders, go), 1),
        ] {
            self.set(member, value)?;
        }
        Ok(())
    }

    fn acts(&self) -> Result<u64, Finding> {
        let of = |core: usize| self.get(offset_of!(Orders, acts) + 8 * core);
        Ok(of(0)? + of(1)?)
    }

    fn last(&self) -> Result<Vec<String>, Finding> {
        let of = |core: usize| {
            let number = self.get(offset_of!(Orders, last) + 8 * core)?;
            let name = attack::NAMES.get(number as usize % 256).unwrap_or(&"?");
            let breaks_out = number >= attack::BREAK_OUT;
            Ok(format!("{name}{}", if breaks_out { "!" } else { "" }))
        };
        (0..orders::CORES).map(of).collect()
    }
}
