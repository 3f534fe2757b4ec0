//! A file of the base, read in a node.

use std::fs;
use std::path::Path;
use std::process::Command;

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Row, Unit};
use crate::inside::{BUSYBOX, FOLDER, FilesGuest, INSIDE_PROBE, Inside, probed_s, run};

const KERNEL: &str = "6.12";
/// The nodes' image, and the node whose root is the folder.
const NAME: &str = "living";
/// The node whose root is an image in memory, and that image.
const IN_MEMORY: &str = "in-memory";
const ROOT_IMAGE: &str = "/run/living.erofs";
/// The file, by its path in the node, and its size.
const FILE: &str = "/data";
const FILE_BYTES: usize = 64 << 20;

/// Cores of the nodes, and core of the guest's processor, which is otherwise idle. The base has two more.
const NODE_CORES: [&str; 2] = ["2", "3"];
const GUEST_CORE: usize = 4;

/// Drops a kernel's caches.
const EMPTY: &str = "echo 3 > /proc/sys/vm/drop_caches";

const IN_NODE: &str = "cat FILE > /dev/null in a node with --rootfs FOLDER";
const IN_NODE_WITH_IMAGE: &str = "cat FILE > /dev/null in a node with --rootfs EROFS-IMAGE";
const IN_BASE: &str = "cat FILE > /dev/null in the base";

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "fs",
    title: "A file of the base, read in a node",
    how: "64 MiB in the base's page cache, read from start to end in pieces of 1 MiB: in a Linux \
          node of one core whose root is the file's folder (virtiofs), first with empty caches, \
          so that all of it comes through the queues of the device from Debian's `virtiofsd`, \
          then once more: a file that is opened again is read again, so that the node sees the \
          base's changes; in a node whose root is an EROFS image of the folder in memory (DAX): \
          there it is read in place, without a cache; and in the base. Each round reads all four. \
          Then, as the first two, a guest of KVM inside the emulated machine with a core of its own \
          (`isolcpus=domain`), as each node has, whose folder another daemon of the same kind serves: \
          the base has two more cores for all of them. Nested paging and the SVM instructions are \
          QEMU's emulation there, so the guest's figures are too bad by an unknown amount.",
    machine: Shape {
        cpus: 5,
        append: "isolcpus=domain,4",
        ..Shape::USUAL
    },
    root: Root::Bench,
    rounds: 4,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        rate("fs.virtiofs", "virtiofs, nothing cached", IN_NODE)
            .beside("fs.base")
            .drawn(),
        rate("fs.again", "virtiofs, opened again", IN_NODE)
            .beside("fs.base")
            .drawn(),
        rate("fs.kvm", "virtiofs in a KVM guest, nothing cached", "")
            .beside("fs.virtiofs")
            .drawn(),
        rate("fs.kvm-again", "virtiofs in a KVM guest, opened again", "")
            .beside("fs.again")
            .drawn(),
        rate("fs.erofs", "EROFS in memory", IN_NODE_WITH_IMAGE)
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
    run(Command::new("mkfs.erofs").args(["-Enoinline_data", ROOT_IMAGE, FOLDER]))?;
    let roots = [(NAME, FOLDER), (IN_MEMORY, ROOT_IMAGE)];
    for ((name, root), core) in roots.into_iter().zip(NODE_CORES) {
        let size = ["--cpu-list", core, "--memory", "512M", "--name", name];
        let words = [&["run", "--image", NAME, "--rootfs", root], &size[..]].concat();
        inside.command.run(&words)?;
    }
    for _ in 0..inside.count {
        run(&mut in_node(inside, NAME, &[BUSYBOX, "sh", "-c", EMPTY]))?;
        let read = [INSIDE_PROBE, "through", FILE];
        for row in ["fs.virtiofs", "fs.again"] {
            inside.record(row, rate_of(inside, &mut in_node(inside, NAME, &read))?)?;
        }
        let mut in_memory = in_node(inside, IN_MEMORY, &read);
        inside.record("fs.erofs", rate_of(inside, &mut in_memory)?)?;
        let mut base = Command::new(Path::new(FOLDER).join(&INSIDE_PROBE[1..]));
        let base = base.arg("through").arg(&file);
        inside.record("fs.base", rate_of(inside, base)?)?;
    }
    inside.command.run(&["rm", "--force", NAME, IN_MEMORY])?;
    in_guest(inside)?;
    fs::remove_file(ROOT_IMAGE)?;
    Ok(fs::remove_file(file)?)
}

/// The same in a virtual machine, whose first round has loaded its programs.
fn in_guest(inside: &Inside) -> Result<(), Finding> {
    let hz = f64::from(inside.driver.machine()?.0.tsc_khz) * 1e3;
    let mut guest = FilesGuest::start(inside, KERNEL, GUEST_CORE, Path::new(FOLDER))?;
    guest.next_round()?;
    for _ in 0..inside.count {
        let ticks = guest.next_round()?;
        for (row, ticks) in ["fs.kvm", "fs.kvm-again"].into_iter().zip(ticks) {
            inside.record(row, rate_at(ticks / hz))?;
        }
    }
    Ok(())
}

fn in_node(inside: &Inside, node: &str, words: &[&str]) -> Command {
    let mut exec = inside.command.prepare();
    exec.args(["exec", node, "--"]).args(words);
    exec
}

/// Rate of reading the file, in MB/s.
fn rate_of(inside: &Inside, command: &mut Command) -> Result<f64, Finding> {
    Ok(rate_at(probed_s(inside, command)?))
}

fn rate_at(seconds: f64) -> f64 {
    FILE_BYTES as f64 / 1e6 / seconds
}
