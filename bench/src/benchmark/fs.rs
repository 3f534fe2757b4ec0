//! A file of the base, read in a node.

use std::fs;
use std::path::Path;
use std::process::Command;

use testbed::root::Root;
use testbed::scenario::{Finding, Shape};

use super::{Benchmark, Row, Unit};
use crate::inside::{BUSYBOX, FOLDER, INSIDE_PROBE, Inside, probed_s, run};

const KERNEL: &str = "6.12";
/// The image and the node.
const NAME: &str = "living";
/// The file, as the node sees it, and its size.
const FILE: &str = "/data";
const FILE_BYTES: usize = 64 << 20;

/// Empties a kernel's caches.
const EMPTY: &str = "echo 3 > /proc/sys/vm/drop_caches";

const IN_NODE: &str = "cat FILE > /dev/null in a node with --rootfs";
const IN_BASE: &str = "cat FILE > /dev/null in the base";

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "fs",
    title: "A file of the base, read in a node",
    how: "64 MiB that the base has in memory, read from its beginning to its end in pieces of 1 MiB: in a Linux \
          node of one core whose root is the file's folder (virtiofs), first with empty caches, so \
          that all of it comes through the queues of the device from Debian's `virtiofsd`, then \
          once more: opened anew it is read anew, so that the node sees what the base has changed; \
          and in the base. Each round reads all three.",
    machine: Shape::USUAL,
    root: Root::Bench,
    inside,
    outside: None,
    counted: None,
    rows: &[
        rate("fs.virtiofs", "virtiofs, nothing cached", IN_NODE)
            .beside("fs.base")
            .drawn(),
        rate("fs.again", "virtiofs, opened again", IN_NODE)
            .beside("fs.base")
            .drawn(),
        rate("fs.base", "in the base", IN_BASE).drawn(),
    ],
};

const fn rate(id: &'static str, what: &'static str, command: &'static str) -> Row {
    Row::time(id, what, command).unit(Unit::MegabytesPerSecond)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    inside.build_image(NAME, KERNEL)?;
    let file = Path::new(FOLDER).join(&FILE[1..]);
    fs::write(&file, vec![0x5a; FILE_BYTES])?;
    let size = ["--cpus", "1", "--memory", "512M", "--name", NAME];
    let words = [&["run", "--image", NAME, "--rootfs", FOLDER], &size[..]].concat();
    inside.command.run(&words)?;
    for _ in 0..inside.count {
        run(&mut in_node(inside, &[BUSYBOX, "sh", "-c", EMPTY]))?;
        let mut read = in_node(inside, &[INSIDE_PROBE, "through", FILE]);
        inside.record("fs.virtiofs", rate_of(inside, &mut read)?)?;
        inside.record("fs.again", rate_of(inside, &mut read)?)?;
        let mut base = Command::new(Path::new(FOLDER).join(&INSIDE_PROBE[1..]));
        let base = base.arg("through").arg(&file);
        inside.record("fs.base", rate_of(inside, base)?)?;
    }
    inside.command.run(&["rm", "--force", NAME])?;
    Ok(fs::remove_file(file)?)
}

fn in_node(inside: &Inside, words: &[&str]) -> Command {
    let mut exec = inside.command.prepare();
    exec.args(["exec", NAME, "--"]).args(words);
    exec
}

/// In MB/s.
fn rate_of(inside: &Inside, command: &mut Command) -> Result<f64, Finding> {
    Ok(FILE_BYTES as f64 / 1e6 / probed_s(inside, command)?)
}
