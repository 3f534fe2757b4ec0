//! Postmark: mail folders.

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::line::line;
use super::servers::{Files, Servers, measure_each};
use crate::benchmark::{Benchmark, Row, Unit};
use crate::inside::Inside;

/// Transactions of each process, among so many files.
const TRANSACTIONS: u32 = 300;
const FILES: u32 = 50;
/// Numbers of processes: the paper's are 1 to 7.
const PROCESSES: [u32; 3] = [1, 3, 5];
/// What is compared, by its place among all: ext4 of the base, delegated, one core, two, three.
const PLACES: [usize; 5] = [0, 1, 2, 3, 8];
/// Starts processes, each in a folder of its own, and waits for all: `$0` is the folder of the files, `$1` the number of
/// processes, `$2` of files, `$3` of transactions.
const SCRIPT: &str = "for each in $(seq $1); do
  mkdir -p $0/mail$each
  printf 'set %s\n' \"location $0/mail$each\" \"number $2\" \"transactions $3\" \"seed $each\" > $0/set$each
  printf 'run\nquit\n' >> $0/set$each
  postmark $0/set$each > /dev/null &
done
wait";

pub(in super::super) const BENCHMARK: Benchmark = Benchmark {
    name: "ant-postmark",
    title: "Postmark, by the placement of its servers",
    how: "Debian's Postmark, unmodified: 300 transactions on 50 files of 500 to 9,770 bytes, which create, delete, read \
          and append; 1, 3 and 5 processes on one core, each with a folder of its own. Time from the start of the first to \
          the end of the last, for each transaction of one process, files made before and deleted after included: \
          *slope*, what each further process adds, and *intercept*, by least squares. On the base on ext4 of its root disk, \
          on a node of the lightweight kernel by calls to the base (*delegated*), or with a file server (*F*) that has all in \
          its cache and a block server (*B*), by their cores. A computer with two processors emulates no more than two busy \
          cores.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 2,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        time("ant-postmark.base-1", "1 process, ext4 of the base").drawn(),
        time("ant-postmark.delegated-1", "1 process, delegated")
            .beside("ant-postmark.base-1")
            .drawn(),
        time("ant-postmark.af-1", "1 process, A F on one core")
            .beside("ant-postmark.base-1")
            .drawn(),
        time("ant-postmark.a-f-1", "1 process, A | F")
            .beside("ant-postmark.af-1")
            .drawn(),
        time("ant-postmark.a-f-b-1", "1 process, A | F | B")
            .beside("ant-postmark.af-1")
            .drawn(),
        time(
            "ant-postmark.base-slope",
            "slope, ext4 of the base, one core",
        ),
        time("ant-postmark.delegated-slope", "slope, delegated").beside("ant-postmark.base-slope"),
        time("ant-postmark.af-slope", "slope, A F on one core").beside("ant-postmark.base-slope"),
        time("ant-postmark.a-f-slope", "slope, A | F").beside("ant-postmark.af-slope"),
        time("ant-postmark.a-f-b-slope", "slope, A | F | B").beside("ant-postmark.af-slope"),
        time("ant-postmark.base-intercept", "intercept, ext4 of the base"),
        time("ant-postmark.delegated-intercept", "intercept, delegated"),
        time("ant-postmark.af-intercept", "intercept, A F"),
        time("ant-postmark.a-f-intercept", "intercept, A | F"),
        time("ant-postmark.a-f-b-intercept", "intercept, A | F | B"),
    ],
};

const fn time(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Microseconds)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    measure_each(inside, &PLACES, |servers, row, files| {
        measure(inside, servers, row, files)
    })
}

fn measure(
    inside: &Inside,
    servers: &mut Servers<'_>,
    row: &str,
    files: Files,
) -> Result<(), Finding> {
    let mut points = Vec::new();
    for processes in PROCESSES {
        let words = [processes, FILES, TRANSACTIONS].map(|number| number.to_string());
        let took = servers.script(files, SCRIPT, &words.each_ref().map(String::as_str))?;
        let each_us = took.as_secs_f64() * 1e6 / f64::from(TRANSACTIONS);
        points.push((f64::from(processes), each_us));
    }
    let (slope, intercept) = line(&points);
    inside.record(&format!("ant-postmark.{row}-1"), points[0].1)?;
    inside.record(&format!("ant-postmark.{row}-slope"), slope)?;
    inside.record(&format!("ant-postmark.{row}-intercept"), intercept)
}
