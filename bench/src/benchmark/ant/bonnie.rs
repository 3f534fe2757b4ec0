//! Processes that read and update blocks at the same time.

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::line::line;
use super::servers::{ALL, Files, SMALL, Servers, measure_each};
use crate::benchmark::{Benchmark, Row, Unit};
use crate::inside::Inside;

/// Accesses of each process: the paper's are 4,000.
const ACCESSES: usize = 1000;
/// How many times as many each makes before, while servers find their cores.
const WARM_ROUNDS: usize = 20;
/// Numbers of processes.
const PROCESSES: [usize; 4] = [1, 3, 5, 7];
/// What is compared, by its place among all: ext4 of the base, one core, two, three.
const PLACES: [usize; 4] = [0, 2, 3, 8];

pub(in super::super) const BENCHMARK: Benchmark = Benchmark {
    name: "ant-bonnie",
    title: "Processes that read and update blocks, by the placement of their servers",
    how: "The AnT paper's use of Bonnie: one, three, five and seven processes on one core access random blocks of a file of \
          128 KiB, each tenth access a write; 1,000 accesses each (the paper's: 4,000). Time until the last has ended, for \
          each access of one process: *slope*, what each further process adds, and *intercept*, by least \
          squares. *Placed by load*: `--place auto`, on three cores, after twenty times as many accesses. The paper's slopes are 155 us on one core and 50 us on three (0.32 of that), and 0.60 of the time at five \
          processes; FreeBSD's 0.87. A computer with two processors emulates no more than two busy cores: `ant-path` counts \
          what bounds the slopes.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 2,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        time("ant-bonnie.base-slope", "slope, ext4 of the base, one core").drawn(),
        time("ant-bonnie.af-slope", "slope, A F on one core")
            .beside("ant-bonnie.base-slope")
            .drawn(),
        time("ant-bonnie.a-f-slope", "slope, A | F")
            .beside("ant-bonnie.af-slope")
            .drawn(),
        time("ant-bonnie.a-f-b-slope", "slope, A | F | B")
            .beside("ant-bonnie.af-slope")
            .drawn(),
        time("ant-bonnie.auto-slope", "slope, placed by load").beside("ant-bonnie.af-slope"),
        time("ant-bonnie.base-intercept", "intercept, ext4 of the base"),
        time("ant-bonnie.af-intercept", "intercept, A F"),
        time("ant-bonnie.a-f-intercept", "intercept, A | F"),
        time("ant-bonnie.a-f-b-intercept", "intercept, A | F | B"),
        time("ant-bonnie.auto-intercept", "intercept, placed by load"),
        time("ant-bonnie.base-5", "5 processes, ext4 of the base"),
        time("ant-bonnie.af-5", "5 processes, A F").beside("ant-bonnie.base-5"),
        time("ant-bonnie.a-f-5", "5 processes, A | F").beside("ant-bonnie.af-5"),
        time("ant-bonnie.a-f-b-5", "5 processes, A | F | B").beside("ant-bonnie.af-5"),
        time("ant-bonnie.auto-5", "5 processes, placed by load").beside("ant-bonnie.af-5"),
    ],
};

const fn time(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Microseconds)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    measure_each(inside, &PLACES, |servers, row, files| {
        measure(inside, servers, row, files)?;
        // Behind the last of them.
        match row == ALL[PLACES[PLACES.len() - 1]].0 {
            true => measure_auto(inside, servers),
            false => Ok(()),
        }
    })
}

/// Measures servers that choose their cores, once they have seen the load for a while.
fn measure_auto(inside: &Inside, servers: &mut Servers<'_>) -> Result<(), Finding> {
    let (accesses, processes) = ((WARM_ROUNDS * ACCESSES).to_string(), "7");
    servers.probe(Files::Auto, (&["blocks"], SMALL, &[&accesses, processes]))?;
    measure(inside, servers, "auto", Files::Auto)
}

fn measure(
    inside: &Inside,
    servers: &mut Servers<'_>,
    row: &str,
    files: Files,
) -> Result<(), Finding> {
    let mut points = Vec::new();
    for processes in PROCESSES {
        let words = [ACCESSES.to_string(), processes.to_string()];
        let words = [&*words[0], &*words[1]];
        let round = servers.probe(files, (&["blocks"], SMALL, &words))?;
        points.push((processes as f64, round.median_us / ACCESSES as f64));
        if processes == 5 {
            inside.record(
                &format!("ant-bonnie.{row}-5"),
                round.median_us / ACCESSES as f64,
            )?;
        }
    }
    let (slope, intercept) = line(&points);
    inside.record(&format!("ant-bonnie.{row}-slope"), slope)?;
    inside.record(&format!("ant-bonnie.{row}-intercept"), intercept)
}
