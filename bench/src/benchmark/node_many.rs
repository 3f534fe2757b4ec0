//! Several nodes started at once.

use std::thread;
use std::time::Instant;

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Row};
use crate::inside::{Inside, wait_until_ready};

const KERNEL: &str = "6.12";
const COUNTS: [usize; 4] = [1, 2, 4, 8];

const START: &str = "insula run --image … --cpus 1 --memory 256M, so many at once";

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "node-many",
    title: "Several nodes at once",
    how: "That many `insula run` are started at once, from one resident image, cores and memory \
          from the pool; the end is when the init of the last of them is ready. The machine has \
          ten cores, two of which stay with the base. The emulated cores share the few cores of \
          the host, so that the time grows with the number of nodes, unlike on hardware: see the \
          circumstances above.",
    machine: Shape {
        cpus: 10,
        memory_mib: 6144,
        ..Shape::USUAL
    },
    root: Root::Test,
    rounds: 1,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        Row::time("node-many.1", "1 node", START).drawn(),
        Row::time("node-many.2", "2 nodes", START)
            .beside("node-many.1")
            .drawn(),
        Row::time("node-many.4", "4 nodes", START)
            .beside("node-many.1")
            .drawn(),
        Row::time("node-many.8", "8 nodes", START)
            .beside("node-many.1")
            .drawn(),
    ],
};

fn inside(inside: &Inside) -> Result<(), Finding> {
    inside.add_image(KERNEL, KERNEL, "compressed")?;
    let reserve = [
        "machine",
        "reserve",
        "--cpus",
        "8",
        "--memory",
        "2G,chunk=256M",
    ];
    inside.command.run(&reserve)?;
    for _ in 0..inside.count {
        for count in COUNTS {
            let names: Vec<_> = (0..count).map(|number| format!("node-{number}")).collect();
            let enter = Instant::now();
            let all_ready = start_all(inside, &names)?;
            inside.record(&format!("node-many.{count}"), all_ready - enter)?;
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            inside
                .command
                .run(&[&["rm", "--force"], &names[..]].concat())?;
        }
    }
    Ok(())
}

/// Starts nodes of these names. Returns when the last one's init was ready.
fn start_all(inside: &Inside, names: &[String]) -> Result<Instant, Finding> {
    let (command, driver) = (&inside.command, &inside.driver);
    thread::scope(|scope| {
        let starts: Vec<_> = names
            .iter()
            .map(|name| {
                scope.spawn(move || {
                    let words = ["--image", KERNEL, "--cpus", "1", "--memory", "256M"];
                    let start = command.start(name, &words)?;
                    wait_until_ready(driver, &start.name)
                })
            })
            .collect();
        let mut last = Instant::now();
        for start in starts {
            let ready = start
                .join()
                .map_err(|_| Finding::new("a thread of the benchmark panicked"))??;
            last = last.max(ready);
        }
        Ok(last)
    })
}
