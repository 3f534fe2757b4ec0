//! Instructions of the same, on all cores and on the one that executes most.

use std::slice;

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::servers::{ALL, BY_KERNEL, LARGE, SHARDED, SMALL, Servers, WHOLE};
use crate::benchmark::{Benchmark, Counted, Row, Unit};
use crate::blocks::COUNT;
use crate::inside::Inside;
use crate::marks::{Count, Kind};

/// Ids of the rows of reads, in the order of the placements: all cores, and the busiest.
const READS: [[&str; 2]; ALL.len() + 1] = [
    ["ant-path.base", "ant-path.base-busiest"],
    ["ant-path.delegated", "ant-path.delegated-busiest"],
    ["ant-path.af", "ant-path.af-busiest"],
    ["ant-path.a-f", "ant-path.a-f-busiest"],
    ["ant-path.afb", "ant-path.afb-busiest"],
    ["ant-path.af-b", "ant-path.af-b-busiest"],
    ["ant-path.a-fb", "ant-path.a-fb-busiest"],
    ["ant-path.ab-f", "ant-path.ab-f-busiest"],
    ["ant-path.a-f-b", "ant-path.a-f-b-busiest"],
    ["ant-path.shared", "ant-path.shared-busiest"],
];
/// The same of Bonnie's mix, of which the paper's slopes are: by which of the placements.
const MIX: [(usize, [&str; 2]); 4] = [
    (0, ["ant-path.mix-base", "ant-path.mix-base-busiest"]),
    (2, ["ant-path.mix-af", "ant-path.mix-af-busiest"]),
    (3, ["ant-path.mix-a-f", "ant-path.mix-a-f-busiest"]),
    (8, ["ant-path.mix-a-f-b", "ant-path.mix-a-f-b-busiest"]),
];

/// The same of reads of two files in turn, which are of different shards: by one file server, and by its shards.
const FILES: [&str; 2] = [LARGE, SMALL];
const BY_SHARDS: [[&str; 2]; 2] = [
    ["ant-path.files", "ant-path.files-busiest"],
    ["ant-path.shards", "ant-path.shards-busiest"],
];

pub(in super::super) const BENCHMARK: Benchmark = Benchmark {
    name: "ant-path",
    title: "Instructions of a block of a file, by the placement of its servers",
    how: "What `ant-read` times, counted by a plugin of the emulator: instructions of all cores for each read, and of the \
          core that executes most of them, which is what bounds the reads of many programs at once. Then the \
          AnT paper's mix, reads of a file of 128 KiB with an update in ten, of which it reports the \
          slope by the number of processes: with enough of them a placement's slope is its busiest core's share. F shares its \
          cache there: after each update one read is a message. \
          Then reads of two files in turn, by a file server on a core and by one whose shards are on a core each, with \
          the names on the program's: what bounds the reads of many programs. \
          A core without work sleeps, and a request to another core is an interrupt: nobody polls, but the proxy \
          and the core of a delegated call, whose polls are counted.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 3,
    inside,
    outside: None,
    counted: Some(Counted {
        lines: false,
        path_core: None,
        samples,
    }),
    series: &[],
    rows: &[
        count("ant-path.base", "read, ext4 of the base").drawn(),
        count("ant-path.delegated", "read, delegated")
            .beside("ant-path.base")
            .drawn(),
        count("ant-path.shared", "read, A F, shared by F")
            .beside("ant-path.base")
            .drawn(),
        count("ant-path.af", "read, A F, in F's cache")
            .beside("ant-path.base")
            .drawn(),
        count("ant-path.a-f", "read, A | F, in F's cache")
            .beside("ant-path.af")
            .drawn(),
        count("ant-path.afb", "read, A F B, in B's cache")
            .beside("ant-path.base")
            .drawn(),
        count("ant-path.af-b", "read, A F | B")
            .beside("ant-path.afb")
            .drawn(),
        count("ant-path.a-fb", "read, A | F B")
            .beside("ant-path.afb")
            .drawn(),
        count("ant-path.ab-f", "read, A B | F")
            .beside("ant-path.afb")
            .drawn(),
        count("ant-path.a-f-b", "read, A | F | B")
            .beside("ant-path.afb")
            .drawn(),
        count(
            "ant-path.base-busiest",
            "its busiest core, ext4 of the base",
        ),
        count("ant-path.delegated-busiest", "its busiest core, delegated")
            .beside("ant-path.base-busiest"),
        count("ant-path.shared-busiest", "its busiest core, A F, shared")
            .beside("ant-path.base-busiest"),
        count("ant-path.af-busiest", "its busiest core, A F").beside("ant-path.base-busiest"),
        count("ant-path.a-f-busiest", "its busiest core, A | F").beside("ant-path.af-busiest"),
        count("ant-path.afb-busiest", "its busiest core, A F B").beside("ant-path.base-busiest"),
        count("ant-path.af-b-busiest", "its busiest core, A F | B").beside("ant-path.afb-busiest"),
        count("ant-path.a-fb-busiest", "its busiest core, A | F B").beside("ant-path.afb-busiest"),
        count("ant-path.ab-f-busiest", "its busiest core, A B | F").beside("ant-path.afb-busiest"),
        count("ant-path.a-f-b-busiest", "its busiest core, A | F | B")
            .beside("ant-path.afb-busiest"),
        count("ant-path.mix-base", "mix, ext4 of the base"),
        count("ant-path.mix-af", "mix, A F").beside("ant-path.mix-base"),
        count("ant-path.mix-a-f", "mix, A | F").beside("ant-path.mix-af"),
        count("ant-path.mix-a-f-b", "mix, A | F | B").beside("ant-path.mix-af"),
        count(
            "ant-path.mix-base-busiest",
            "its busiest core, ext4 of the base",
        ),
        count("ant-path.mix-af-busiest", "its busiest core, A F")
            .beside("ant-path.mix-base-busiest"),
        count("ant-path.mix-a-f-busiest", "its busiest core, A | F")
            .beside("ant-path.mix-af-busiest"),
        count("ant-path.mix-a-f-b-busiest", "its busiest core, A | F | B")
            .beside("ant-path.mix-af-busiest"),
        count("ant-path.files", "read of two files in turn, A | F"),
        count("ant-path.shards", "the same, A F | F.1 | F.2").beside("ant-path.files"),
        count("ant-path.files-busiest", "its busiest core, A | F"),
        count(
            "ant-path.shards-busiest",
            "its busiest core, A F | F.1 | F.2",
        )
        .beside("ant-path.files-busiest"),
    ],
};

const fn count(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Count)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    let mut servers = Servers::start(inside)?;
    for _ in 0..inside.count {
        let copied = ALL.map(|(_, files)| files.copied());
        for files in copied.into_iter().chain([BY_KERNEL]) {
            let words = ["marked", Kind::BlockReads.word()];
            servers.probe(files, (&words, LARGE, &[]))?;
        }
        for files in [WHOLE.copied(), SHARDED.copied()] {
            for file in FILES {
                let words = ["marked", Kind::BlockReads.word()];
                servers.probe(files, (&words, file, &[]))?;
            }
        }
        for (place, _) in MIX {
            let words = ["marked", Kind::BlockMix.word()];
            servers.probe(ALL[place].1, (&words, SMALL, &[]))?;
        }
    }
    servers.end()
}

/// What was counted, in the order in which it was measured.
fn samples(counts: &[Count]) -> Vec<(&'static str, f64)> {
    let of = |kind: Kind| counts.iter().filter(move |count| count.kind == kind);
    let reads: Vec<_> = of(Kind::BlockReads).collect();
    let mut counted = Vec::new();
    for round in reads.chunks(READS.len() + BY_SHARDS.len() * FILES.len()) {
        let (alone, in_turn) = round.split_at(READS.len().min(round.len()));
        let alone = alone.iter().map(slice::from_ref).zip(&READS);
        let in_turn = in_turn.chunks(FILES.len()).zip(&BY_SHARDS);
        counted.extend(
            alone
                .chain(in_turn)
                .flat_map(|(some, rows)| each(some, rows)),
        );
    }
    let mix: Vec<_> = of(Kind::BlockMix).collect();
    let mix = mix.iter().map(slice::from_ref).zip(MIX.iter().cycle());
    counted.extend(mix.flat_map(|(one, (_, rows))| each(one, rows)));
    counted
}

/// Instructions for each access of some counts: of all cores, and of the one that has executed most of them.
fn each(counts: &[&Count], [all, busiest]: &[&'static str; 2]) -> [(&'static str, f64); 2] {
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
        (*all, per_access(executed)),
        (*busiest, per_access(most.unwrap_or_default())),
    ]
}
