//! Postmark: mail folders.

use std::time::Duration;

use testbed::base::Finding;
use testbed::host::root::Root;

use super::line::line;
use super::placement::{REPORTED, Texts, named, numbered};
use super::servers::Way;
use super::site::{Files, MACHINE, Site, served};
use super::table::Table;
use crate::benchmark::{Benchmark, Row, Unit};
use crate::inside::Inside;

/// Transactions of each process, among so many files.
const TRANSACTIONS: u32 = 300;
const FILES: u32 = 50;
/// Numbers of processes: the paper's are 1 to 7.
const PROCESSES: [u32; 4] = [1, 3, 5, 7];
/// Ends of the rows' ids, for those that are at no given place.
const OTHERS: [(&str, Files); 4] = [
    ("base", Files::Base),
    ("delegated", Files::Delegated),
    ("linux-node", Files::LinuxNode),
    ("auto", Files::Auto),
];
/// The ids by placement: of one process, of what each further adds, and of one with Postmark's own defaults.
const ONES: Texts = numbered!("ant-postmark.", "-1");
const SLOPES: Texts = numbered!("ant-postmark.", "-slope");
const INTERCEPTS: Texts = numbered!("ant-postmark.", "-intercept");
const DEFAULTS: Texts = numbered!("ant-postmark.", "-defaults");
/// Starts processes, each in a folder of its own, and waits for all: `$0` is the folder of the files, `$1` the number of
/// processes, `$2` of files, `$3` of transactions.
const SCRIPT: &str = "for each in $(seq $1); do
  mkdir -p $0/mail$each
  printf 'set %s\n' \"location $0/mail$each\" \"number $2\" \"transactions $3\" \"seed $each\" > $0/set$each
  printf 'run\nquit\n' >> $0/set$each
  postmark $0/set$each > /dev/null &
done
wait";
/// The same of one process with Postmark's own defaults: so many transactions, on as many files.
const DEFAULT_TRANSACTIONS: u32 = 500;
const DEFAULT_SCRIPT: &str = "mkdir -p $0/mail && printf 'set location %s\nrun\nquit\n' $0/mail > $0/set && \
                              postmark $0/set > /dev/null";

pub(in super::super) const BENCHMARK: Benchmark = Benchmark {
    name: "ant-postmark",
    title: "Postmark, by the placement of its servers",
    how: "Debian's Postmark, unmodified: 300 transactions on 50 files of 500 to 9,770 bytes, which create, delete, read \
          and append; 1, 3, 5 and 7 processes on one core, each with a folder of its own. Time from the start of the first to \
          the end of the last, for each transaction of one process, files made before and deleted after included: \
          *slope*, what each further process adds, and *intercept*, by least squares. *Defaults*: one process \
          with Postmark's own, 500 transactions on 500 files. On the base and on a Linux node of one core on ext4, \
          on a node of the lightweight kernel by calls to the base (*delegated*), or with a file server (*F*) that has all in \
          its cache, a block server (*B*) and a disk driver (*D*), in the AnT paper's placements, or placed by their load on four \
          cores. All have the same NVMe disk, in turn. A computer with two processors emulates no more than two busy cores.",
    machine: MACHINE,
    root: Root::Test,
    rounds: 1,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &ROWS,
};

const ROWS: [Row; 4 * (OTHERS.len() + REPORTED.len())] = {
    const BASE: [Option<&str>; 3] = [
        Some("ant-postmark.base-1"),
        Some("ant-postmark.base-slope"),
        Some("ant-postmark.base-defaults"),
    ];
    const NODE: [&str; 4] = [
        "ant-postmark.linux-node-1",
        "ant-postmark.linux-node-slope",
        "ant-postmark.linux-node-intercept",
        "ant-postmark.linux-node-defaults",
    ];
    Table::new(Unit::Microseconds)
        .peer("ant-postmark.base-1", "1 process, ext4 of the base", None)
        .peer(NODE[0], "1 process, ext4 of a Linux node", BASE[0])
        .peer("ant-postmark.delegated-1", "1 process, delegated", BASE[0])
        .placements(&REPORTED, (ONES, named!("1 process, ", "")), NODE[0])
        .peer(
            "ant-postmark.auto-1",
            "1 process, placed by load",
            Some(ONES[0]),
        )
        .drawn()
        .peer("ant-postmark.base-slope", "slope, ext4 of the base", None)
        .peer(NODE[1], "slope, ext4 of a Linux node", BASE[1])
        .peer("ant-postmark.delegated-slope", "slope, delegated", BASE[1])
        .placements(&REPORTED, (SLOPES, named!("slope, ", "")), NODE[1])
        .peer(
            "ant-postmark.auto-slope",
            "slope, placed by load",
            Some(SLOPES[0]),
        )
        .peer(
            "ant-postmark.base-intercept",
            "intercept, ext4 of the base",
            None,
        )
        .peer(NODE[2], "intercept, ext4 of a Linux node", None)
        .peer(
            "ant-postmark.delegated-intercept",
            "intercept, delegated",
            None,
        )
        .placements(&REPORTED, (INTERCEPTS, named!("intercept, ", "")), NODE[2])
        .peer(
            "ant-postmark.auto-intercept",
            "intercept, placed by load",
            Some(INTERCEPTS[0]),
        )
        .peer(
            "ant-postmark.base-defaults",
            "defaults, ext4 of the base",
            None,
        )
        .peer(NODE[3], "defaults, ext4 of a Linux node", BASE[2])
        .peer(
            "ant-postmark.delegated-defaults",
            "defaults, delegated",
            BASE[2],
        )
        .placements(&REPORTED, (DEFAULTS, named!("defaults, ", "")), NODE[3])
        .peer(
            "ant-postmark.auto-defaults",
            "defaults, placed by load",
            Some(DEFAULTS[0]),
        )
        .rows()
};

fn inside(inside: &Inside) -> Result<(), Finding> {
    let mut site = Site::new(inside)?;
    for (row, files) in OTHERS {
        if files == Files::Auto {
            // Servers find their cores.
            run_script(&mut site, files, PROCESSES[PROCESSES.len() - 1])?;
        }
        let name = |what: &str| format!("ant-postmark.{row}-{what}");
        let names = ["1", "slope", "intercept", "defaults"].map(name);
        measure(
            inside,
            &mut site,
            files,
            names.each_ref().map(String::as_str),
        )?;
    }
    for place in REPORTED {
        let names = [ONES, SLOPES, INTERCEPTS, DEFAULTS].map(|ids| ids[place]);
        measure(inside, &mut site, served(place, Way::Shared), names)?;
    }
    site.end()
}

fn measure(
    inside: &Inside,
    site: &mut Site<'_>,
    files: Files,
    [one_row, slope_row, intercept_row, defaults_row]: [&str; 4],
) -> Result<(), Finding> {
    for _ in 0..inside.count {
        let mut points = Vec::new();
        for processes in PROCESSES {
            let took = run_script(site, files, processes)?;
            let each_us = took.as_secs_f64() * 1e6 / f64::from(TRANSACTIONS);
            points.push((f64::from(processes), each_us));
        }
        let (slope, intercept) = line(&points);
        inside.record(one_row, points[0].1)?;
        inside.record(slope_row, slope)?;
        inside.record(intercept_row, intercept)?;
        let took = site.script(files, DEFAULT_SCRIPT, &[])?;
        let each_us = took.as_secs_f64() * 1e6 / f64::from(DEFAULT_TRANSACTIONS);
        inside.record(defaults_row, each_us)?;
    }
    Ok(())
}

/// Runs so many processes at the same time. Returns how long that took.
fn run_script(site: &mut Site<'_>, files: Files, processes: u32) -> Result<Duration, Finding> {
    let words = [processes, FILES, TRANSACTIONS].map(|number| number.to_string());
    site.script(files, SCRIPT, &words.each_ref().map(String::as_str))
}
