//! Processes that read and update blocks at the same time.

use testbed::base::Finding;
use testbed::host::root::Root;

use super::line::line;
use super::placement::{self, EACH, REPORTED, Texts, named, numbered};
use super::servers::Way;
use super::site::{Files, MACHINE, SMALL, Site, served};
use super::table::Table;
use crate::benchmark::{Benchmark, Row, Unit};
use crate::inside::Inside;

/// Accesses of each process: the paper's are 4,000.
const ACCESSES: usize = 1000;
/// How many times as many each makes before, while servers find their cores.
const WARM_ROUNDS: usize = 20;
/// Numbers of processes, and the one that is reported by itself.
const PROCESSES: [usize; 4] = [1, 3, 5, 7];
const AT_ONCE: usize = 5;

/// Ends of the rows' ids, for those that are at no given place.
const OTHERS: [(&str, Files); 4] = [
    ("base", Files::Base),
    ("delegated", Files::Delegated),
    ("linux-node", Files::LinuxNode),
    ("auto", Files::Auto),
];
/// The ids by placement.
const SLOPES: Texts = numbered!("ant-bonnie.", "-slope");
const INTERCEPTS: Texts = numbered!("ant-bonnie.", "-intercept");
const TIMES: Texts = numbered!("ant-bonnie.", "-5");

pub(in super::super) const BENCHMARK: Benchmark = Benchmark {
    name: "ant-bonnie",
    title: "Processes that read and update blocks, by the placement of their servers",
    how: "The AnT paper's use of Bonnie: one, three, five and seven processes on one core access random blocks of a file of \
          128 KiB, each tenth access a write; 1,000 accesses each (the paper's: 4,000). Time until the last has ended, for \
          each access of one process: *slope*, what each further process adds, and *intercept*, by least \
          squares. On the base and on a Linux node of one core on ext4, on a node of the lightweight kernel by calls to the base \
          (*delegated*), or by servers that share their cache, in the paper's placements. *Placed by load*: `--place auto`, on four \
          cores, after twenty times as many accesses. All have the file on the same NVMe disk, in turn. The paper's slopes \
          are 155 us on one core and 50 us on three (0.32 of that), and 0.60 of the time at five \
          processes; FreeBSD's 0.87. A computer with two processors emulates no more than two busy cores: `ant-path` counts \
          what bounds the slopes.",
    machine: MACHINE,
    root: Root::Test,
    rounds: 2,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &ROWS,
};

const ROWS: [Row; 3 * OTHERS.len() + 2 * REPORTED.len() + placement::COUNT] = {
    const BASE: Option<&str> = Some("ant-bonnie.base-slope");
    const BASE_5: Option<&str> = Some("ant-bonnie.base-5");
    const NODE: &str = "ant-bonnie.linux-node-slope";
    const NODE_FIRST: &str = "ant-bonnie.linux-node-intercept";
    const NODE_5: &str = "ant-bonnie.linux-node-5";
    let slopes = (SLOPES, named!("slope, ", ""));
    let intercepts = (INTERCEPTS, named!("intercept, ", ""));
    let times = (TIMES, named!("5 processes, ", ""));
    Table::new(Unit::Microseconds)
        .peer("ant-bonnie.base-slope", "slope, ext4 of the base", None)
        .peer(NODE, "slope, ext4 of a Linux node", BASE)
        .peer("ant-bonnie.delegated-slope", "slope, delegated", BASE)
        .placements(&REPORTED, slopes, NODE)
        .peer(
            "ant-bonnie.auto-slope",
            "slope, placed by load",
            Some(SLOPES[0]),
        )
        .drawn()
        .peer(
            "ant-bonnie.base-intercept",
            "intercept, ext4 of the base",
            None,
        )
        .peer(NODE_FIRST, "intercept, ext4 of a Linux node", None)
        .peer(
            "ant-bonnie.delegated-intercept",
            "intercept, delegated",
            None,
        )
        .placements(&REPORTED, intercepts, NODE_FIRST)
        .peer(
            "ant-bonnie.auto-intercept",
            "intercept, placed by load",
            Some(INTERCEPTS[0]),
        )
        .peer("ant-bonnie.base-5", "5 processes, ext4 of the base", None)
        .peer(NODE_5, "5 processes, ext4 of a Linux node", BASE_5)
        .peer("ant-bonnie.delegated-5", "5 processes, delegated", BASE_5)
        .placements(&EACH, times, NODE_5)
        .peer(
            "ant-bonnie.auto-5",
            "5 processes, placed by load",
            Some(TIMES[0]),
        )
        .rows()
};

fn inside(inside: &Inside) -> Result<(), Finding> {
    let mut site = Site::new(inside)?;
    for (row, files) in OTHERS {
        if files == Files::Auto {
            let (accesses, most) = ((WARM_ROUNDS * ACCESSES).to_string(), "7");
            site.probe(files, (&["blocks"], SMALL, &[&accesses, most]))?;
        }
        for _ in 0..inside.count {
            let times = measure_all(&mut site, files)?;
            let name = |what: &str| format!("ant-bonnie.{row}-{what}");
            let names = [name("slope"), name("intercept"), name("5")];
            record_line(inside, names.each_ref().map(String::as_str), &times)?;
        }
    }
    for place in EACH {
        let files = served(place, Way::Shared);
        for _ in 0..inside.count {
            if REPORTED.contains(&place) {
                let times = measure_all(&mut site, files)?;
                let names = [SLOPES[place], INTERCEPTS[place], TIMES[place]];
                record_line(inside, names, &times)?;
            } else {
                inside.record(TIMES[place], measure(&mut site, files, AT_ONCE)?)?;
            }
        }
    }
    site.end()
}

/// Time of each access by numbers of processes.
fn measure_all(site: &mut Site<'_>, files: Files) -> Result<[f64; PROCESSES.len()], Finding> {
    let mut times = [0.0; PROCESSES.len()];
    for (time, processes) in times.iter_mut().zip(PROCESSES) {
        *time = measure(site, files, processes)?;
    }
    Ok(times)
}

/// Time of each access of one of so many processes, in microseconds.
fn measure(site: &mut Site<'_>, files: Files, processes: usize) -> Result<f64, Finding> {
    let words = [ACCESSES.to_string(), processes.to_string()];
    let round = site.probe(
        files,
        (&["blocks"], SMALL, &words.each_ref().map(String::as_str)),
    )?;
    Ok(round.median_us / ACCESSES as f64)
}

fn record_line(
    inside: &Inside,
    [slope_row, intercept_row, row]: [&str; 3],
    times: &[f64; PROCESSES.len()],
) -> Result<(), Finding> {
    let points: Vec<_> = PROCESSES
        .iter()
        .zip(times)
        .map(|(processes, time)| (*processes as f64, *time))
        .collect();
    let (slope, intercept) = line(&points);
    inside.record(slope_row, slope)?;
    inside.record(intercept_row, intercept)?;
    let alone = PROCESSES.iter().position(|count| *count == AT_ONCE);
    inside.record(row, times[alone.unwrap_or_default()])
}
