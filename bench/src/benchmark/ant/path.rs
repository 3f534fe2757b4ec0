//! Instructions of the same, on all cores and on the one that executes most.

use testbed::base::Finding;
use testbed::host::root::Root;

use super::placement::{Placement, REPORTED, Texts, named, numbered};
use super::servers::{Served, Way};
use super::site::{Files, LARGE, MACHINE, ONE, SMALL, Site, served};
use super::table::Table;
use crate::benchmark::{Benchmark, Counted, Row, Unit};
use crate::blocks::COUNT;
use crate::inside::Inside;
use crate::marks::{Count, Kind};

/// Accesses that are counted together.
struct Step {
    /// Ids of their rows: all cores, and the busiest.
    ids: [&'static str; 2],
    files: Files,
    kind: Kind,
    /// The files that are accessed, one after the other.
    names: &'static [&'static str],
}

const fn step(
    ids: [&'static str; 2],
    files: Files,
    kind: Kind,
    name: &'static [&'static str],
) -> Step {
    Step {
        ids,
        files,
        kind,
        names: name,
    }
}

/// Ids by placement: all cores, and the busiest.
type Ids = [Texts; 2];
const COPIED: Ids = [
    numbered!("ant-path.copied-", ""),
    numbered!("ant-path.copied-", "-busiest"),
];
const FROM_BLOCKS: Ids = [
    numbered!("ant-path.blocks-", ""),
    numbered!("ant-path.blocks-", "-busiest"),
];
const MIX: Ids = [
    numbered!("ant-path.mix-", ""),
    numbered!("ant-path.mix-", "-busiest"),
];
const MIX_FROM_BLOCKS: Ids = [
    numbered!("ant-path.mix-blocks-", ""),
    numbered!("ant-path.mix-blocks-", "-busiest"),
];
/// What is counted by placement: how the blocks come, the kind of access, and the file.
const BY_PLACEMENT: [(Ids, Way, Kind, &[&str]); 4] = [
    (COPIED, Way::Copied, Kind::BlockReads, &[LARGE]),
    (FROM_BLOCKS, Way::FromBlocks, Kind::BlockReads, &[LARGE]),
    (MIX, Way::Shared, Kind::BlockMix, &[SMALL]),
    (MIX_FROM_BLOCKS, Way::FromBlocks, Kind::BlockMix, &[LARGE]),
];
/// What is counted otherwise: peers, and blocks that the kernel reads by itself.
const OTHERS: [Step; 7] = [
    step(
        ["ant-path.base", "ant-path.base-busiest"],
        Files::Base,
        Kind::BlockReads,
        &[LARGE],
    ),
    step(
        ["ant-path.mix-base", "ant-path.mix-base-busiest"],
        Files::Base,
        Kind::BlockMix,
        &[SMALL],
    ),
    step(
        ["ant-path.delegated", "ant-path.delegated-busiest"],
        Files::Delegated,
        Kind::BlockReads,
        &[LARGE],
    ),
    step(
        ["ant-path.mix-delegated", "ant-path.mix-delegated-busiest"],
        Files::Delegated,
        Kind::BlockMix,
        &[SMALL],
    ),
    step(
        ["ant-path.linux-node", "ant-path.linux-node-busiest"],
        Files::LinuxNode,
        Kind::BlockReads,
        &[LARGE],
    ),
    step(
        ["ant-path.mix-linux-node", "ant-path.mix-linux-node-busiest"],
        Files::LinuxNode,
        Kind::BlockMix,
        &[SMALL],
    ),
    step(
        ["ant-path.shared", "ant-path.shared-busiest"],
        ONE,
        Kind::BlockReads,
        &[LARGE],
    ),
];
/// Reads of two files in turn, which are of different shards: by a file server on a core of its own, and by one with two
/// shards on a core each, beside the names on the program's.
const BY_SHARDS: [Step; 2] = [
    step(
        ["ant-path.files", "ant-path.files-busiest"],
        on_cores("1", 0),
        Kind::BlockReads,
        &[LARGE, SMALL],
    ),
    step(
        ["ant-path.shards", "ant-path.shards-busiest"],
        on_cores("0-2", 2),
        Kind::BlockReads,
        &[LARGE, SMALL],
    ),
];

const fn on_cores(file: &'static str, shards: u32) -> Files {
    Files::Served(Served {
        placement: Placement {
            program: "0",
            file,
            block: "0",
            disk: "0",
        },
        way: Way::Copied,
        shards,
    })
}

/// All that is counted in a round, in its order.
fn steps() -> impl Iterator<Item = Step> {
    let by_placement = BY_PLACEMENT
        .into_iter()
        .flat_map(|(ids, way, kind, names)| {
            REPORTED.map(|place| step(ids.map(|all| all[place]), served(place, way), kind, names))
        });
    OTHERS.into_iter().chain(by_placement).chain(BY_SHARDS)
}

pub(in super::super) const BENCHMARK: Benchmark = Benchmark {
    name: "ant-path",
    title: "Instructions of a block of a file, by the placement of its servers",
    how: "What `ant-read` times, counted by a plugin of the emulator: instructions of all cores for each read, and of the \
          core that executes most of them, which is what bounds the reads of many programs at once. Then the \
          AnT paper's mix, reads with an update in ten, of which it reports the \
          slope by the number of processes: with enough of them a placement's slope is its busiest core's share. It is made \
          of a file of 128 KiB whose cache F shares, where after each update one read is a message; and of one of 2 MiB, of which each \
          access is a message to F, and one from F to B, as in the paper. \
          Then reads of two files in turn by messages, by a file server on a core and by one whose shards are on a core each, with \
          the names on the program's: what bounds the reads of many programs. \
          A core without work sleeps, and a request to another core is an interrupt: nobody polls, but the proxy \
          and the core of a delegated call, whose polls are counted.",
    machine: MACHINE,
    root: Root::Test,
    rounds: 2,
    inside,
    outside: None,
    counted: Some(Counted {
        lines: false,
        path_core: None,
        samples,
    }),
    series: &[],
    rows: &ROWS,
};

const ROWS: [Row; 2 * (OTHERS.len() + BY_PLACEMENT.len() * REPORTED.len() + BY_SHARDS.len())] = {
    const NODE: [&str; 2] = OTHERS[4].ids;
    const MIX_NODE: [&str; 2] = OTHERS[5].ids;
    Table::new(Unit::Count)
        .peer(OTHERS[0].ids[0], "read, ext4 of the base", None)
        .peer(NODE[0], "read, ext4 of a Linux node", None)
        .peer(OTHERS[2].ids[0], "read, delegated", Some(NODE[0]))
        .peer(OTHERS[6].ids[0], "read, #1 AFBD, shared", Some(NODE[0]))
        .placements(
            &REPORTED,
            (COPIED[0], named!("read, ", ", from F's cache")),
            NODE[0],
        )
        .placements(
            &REPORTED,
            (FROM_BLOCKS[0], named!("read, ", ", from B's cache")),
            NODE[0],
        )
        .drawn()
        .peer(
            OTHERS[0].ids[1],
            "busiest core, read, ext4 of the base",
            None,
        )
        .peer(NODE[1], "busiest core, read, ext4 of a Linux node", None)
        .peer(
            OTHERS[2].ids[1],
            "busiest core, read, delegated",
            Some(NODE[1]),
        )
        .peer(
            OTHERS[6].ids[1],
            "busiest core, read, #1 AFBD, shared",
            Some(NODE[1]),
        )
        .placements(
            &REPORTED,
            (
                COPIED[1],
                named!("busiest core, read, ", ", from F's cache"),
            ),
            NODE[1],
        )
        .placements(
            &REPORTED,
            (
                FROM_BLOCKS[1],
                named!("busiest core, read, ", ", from B's cache"),
            ),
            NODE[1],
        )
        .peer(OTHERS[1].ids[0], "mix, ext4 of the base", None)
        .peer(MIX_NODE[0], "mix, ext4 of a Linux node", None)
        .peer(OTHERS[3].ids[0], "mix, delegated", Some(MIX_NODE[0]))
        .placements(
            &REPORTED,
            (MIX[0], named!("mix, ", ", shared")),
            MIX_NODE[0],
        )
        .placements(
            &REPORTED,
            (MIX_FROM_BLOCKS[0], named!("mix, ", ", from B's cache")),
            MIX_NODE[0],
        )
        .peer(
            OTHERS[1].ids[1],
            "busiest core, mix, ext4 of the base",
            None,
        )
        .peer(MIX_NODE[1], "busiest core, mix, ext4 of a Linux node", None)
        .peer(
            OTHERS[3].ids[1],
            "busiest core, mix, delegated",
            Some(MIX_NODE[1]),
        )
        .placements(
            &REPORTED,
            (MIX[1], named!("busiest core, mix, ", ", shared")),
            MIX_NODE[1],
        )
        .placements(
            &REPORTED,
            (
                MIX_FROM_BLOCKS[1],
                named!("busiest core, mix, ", ", from B's cache"),
            ),
            MIX_NODE[1],
        )
        .peer(
            BY_SHARDS[0].ids[0],
            "read of two files in turn, A | F",
            None,
        )
        .peer(
            BY_SHARDS[1].ids[0],
            "the same, A F | F.1 | F.2",
            Some(BY_SHARDS[0].ids[0]),
        )
        .peer(BY_SHARDS[0].ids[1], "busiest core, two files, A | F", None)
        .peer(
            BY_SHARDS[1].ids[1],
            "busiest core, two files, A F | F.1 | F.2",
            Some(BY_SHARDS[0].ids[1]),
        )
        .rows()
};

fn inside(inside: &Inside) -> Result<(), Finding> {
    let mut site = Site::new(inside)?;
    for _ in 0..inside.count {
        for step in steps() {
            for name in step.names {
                site.probe(step.files, (&["marked", step.kind.word()], name, &[]))?;
            }
        }
    }
    site.end()
}

/// What was counted, in the order in which it was measured.
fn samples(counts: &[Count]) -> Vec<(&'static str, f64)> {
    let mut rest = counts;
    let mut counted = Vec::new();
    // After a failure some are missing at the end.
    for step in std::iter::repeat_with(steps).flatten() {
        let Some((some, others)) = rest.split_at_checked(step.names.len()) else {
            break;
        };
        counted.extend(each(some, step.ids));
        rest = others;
    }
    counted
}

/// Instructions for each access of some counts: of all cores, and of the one that has executed most of them.
fn each(counts: &[Count], [all, busiest]: [&'static str; 2]) -> [(&'static str, f64); 2] {
    let accesses = (counts.len() * COUNT) as f64;
    let machines = || counts.iter().map(|count| &count.machine);
    let executed: u64 = machines().map(|machine| machine.executed).sum();
    let cores = machines().map(|machine| machine.cores.len()).max();
    let of_core = |core: usize| -> u64 {
        let cores = machines().filter_map(|machine| machine.cores.get(core));
        cores.sum()
    };
    let most = (0..cores.unwrap_or_default()).map(of_core).max();
    let per_access = |instructions: u64| instructions as f64 / accesses;
    [
        (all, per_access(executed)),
        (busiest, per_access(most.unwrap_or_default())),
    ]
}
