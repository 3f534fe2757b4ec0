//! Effect of each option that shortens a stock kernel's boot.

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Row};
use crate::inside::{Inside, wait_until_ready};

const KERNEL: &str = "6.12";
const NODE: &str = "node";
const SIZE: [&str; 4] = ["--cpus", "1", "--memory", "256M"];

/// Each with the node's own part of the command line.
const VARIANTS: [(&str, &str); 6] = [
    ("as-is", ""),
    ("crypto-tests", "cryptomgr.notests=0"),
    ("serial-ports", "8250.nr_uarts=4"),
    (
        "serial-console",
        "console=uart8250,io,0x2f8,115200 ignore_loglevel",
    ),
    ("no-kaslr", "nokaslr"),
    ("no-mitigations", "mitigations=off"),
];

const START: &str = "insula run --image … --cpus 1 --memory 256M --append …";

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "boot-options",
    title: "What each measure gives to the boot",
    how: "From Enter to the node's init, 6.12, one core, 256 MiB, from a resident image and the \
          pool; each variant differs in one option from the options of every node. The first \
          group removes an option, so that a ratio above 1 is the option's gain; the second adds \
          options that nodes do *not* get, since they cost safety: a ratio below 1 is the price \
          of safety. The serial console here writes to a port without a peer, which never makes \
          it wait: a real port at 115200 baud adds 87 us for each character. None of the other \
          options of nodes is for speed.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 2,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        Row::time("boot-options.as-is", "as every node", START).drawn(),
        Row::time(
            "boot-options.crypto-tests",
            "without cryptomgr.notests: each cipher is tested",
            START,
        )
        .beside("boot-options.as-is")
        .drawn(),
        Row::time(
            "boot-options.serial-ports",
            "without 8250.nr_uarts=0: serial ports are looked for",
            START,
        )
        .beside("boot-options.as-is")
        .drawn(),
        Row::time(
            "boot-options.serial-console",
            "with a serial console instead of the log in memory alone",
            START,
        )
        .beside("boot-options.as-is")
        .drawn(),
        Row::time(
            "boot-options.no-kaslr",
            "with nokaslr: no random address",
            START,
        )
        .beside("boot-options.as-is")
        .drawn(),
        Row::time("boot-options.no-mitigations", "with mitigations=off", START)
            .beside("boot-options.as-is")
            .drawn(),
    ],
};

fn inside(inside: &Inside) -> Result<(), Finding> {
    inside.add_image(KERNEL, KERNEL, "compressed")?;
    inside
        .command
        .run(&[&["machine", "reserve"], &SIZE[..]].concat())?;
    for _ in 0..inside.count {
        for (variant, append) in VARIANTS {
            let words = ["--image", KERNEL, "--append", append];
            let start = inside.command.start(NODE, &[&words, &SIZE[..]].concat())?;
            let ready = wait_until_ready(&inside.driver, &start.name)?;
            inside.record(&format!("boot-options.{variant}"), ready - start.enter)?;
            inside.command.run(&["rm", "--force", NODE])?;
        }
    }
    Ok(())
}
