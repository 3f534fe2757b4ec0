//! Time from Enter to a program's output, in a kernel of its own.

use std::time::Duration;

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Row};
use crate::inside::{BUSYBOX, Bundle, CONTAINER, Inside, podman, run_to_line, wait_for_line};

const KERNEL: &str = "6.12";
/// Name of the image and the node.
const NAME: &str = "living";
const SIZE: [&str; 4] = ["--cpus", "1", "--memory", "256M"];
/// Printed word.
const WORD: &str = "hello-from-here";
const PROGRAM: [&str; 3] = [BUSYBOX, "echo", WORD];
/// Text of the output in the node's log, which its kernel's command line does not contain.
const LOGGED: &str = "busybox: hello-from-here";
/// Interval of polling the node's log.
const INTERVAL: Duration = Duration::from_millis(3);

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "run-to-output",
    title: "From Enter to a program's output, in a kernel of its own",
    how: "`busybox echo` in a kernel or container that is started for it. *Node*: a Linux node of \
          one core and 256 MiB from a resident image with an agent; the program's output is in \
          the node's log, which is polled every 3 ms in the node's memory. *Lightweight*: `insula \
          run --image lwk`, likewise. *Container*: from the folder that the image was built with, \
          no network, no kernel of its own: by podman, and by crun, podman's own runtime, from an \
          existing bundle. *KVM*: the same kernel with the test nodes' initrd in QEMU's `microvm` \
          inside the emulated machine, until the first line of its init; nested paging and the \
          SVM instructions are QEMU's emulation, so the figure is too high by an unknown amount. \
          Each round starts all five.",
    machine: Shape::USUAL,
    root: Root::Bench,
    rounds: 2,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        Row::time(
            "run-to-output.node",
            "a Linux node",
            "insula run --image IMAGE --cpus 1 --memory 256M -- busybox echo …",
        )
        .beside("run-to-output.crun")
        .drawn(),
        Row::time(
            "run-to-output.lwk",
            "the lightweight kernel",
            "insula run --image lwk --cpus 1 --memory 256M -- busybox echo …",
        )
        .beside("run-to-output.crun")
        .drawn(),
        Row::time(
            "run-to-output.podman",
            "a container, by podman",
            "podman run --rm --network none --rootfs FOLDER busybox echo …",
        )
        .beside("run-to-output.crun")
        .drawn(),
        Row::time(
            "run-to-output.crun",
            "a container, by crun",
            "crun run --bundle BUNDLE bundle",
        )
        .drawn(),
        Row::time(
            "run-to-output.kvm",
            "a microvm with KVM, inside",
            "qemu-system-x86_64 -M microvm,… -accel kvm -cpu host -smp 1 -m 256M …",
        )
        .beside("run-to-output.node")
        .drawn(),
    ],
};

fn inside(inside: &Inside) -> Result<(), Finding> {
    inside.build_image(NAME, KERNEL)?;
    inside.load_kvm()?;
    let bundle = Bundle::make(&PROGRAM)?;
    for _ in 0..inside.count {
        in_node(inside)?;
        let run = [&["run", "--image", "lwk"], &SIZE[..], &["--"], &PROGRAM].concat();
        let took = run_to_line(inside.command.prepare().args(run), WORD)?;
        inside.record("run-to-output.lwk", took)?;
        let run = [&["run", "--rm"], &CONTAINER[..], &PROGRAM].concat();
        inside.record(
            "run-to-output.podman",
            run_to_line(&mut podman(&run), WORD)?,
        )?;
        inside.record("run-to-output.crun", run_to_line(&mut bundle.run(), WORD)?)?;
        inside.record("run-to-output.kvm", inside.boot_in_kvm(KERNEL)?)?;
    }
    Ok(())
}

fn in_node(inside: &Inside) -> Result<(), Finding> {
    let words = [&["--image", NAME], &SIZE[..], &["--"], &PROGRAM].concat();
    let start = inside.command.start(NAME, &words)?;
    let printed = wait_for_line(&inside.driver, &start.name, LOGGED, INTERVAL)?;
    inside.record("run-to-output.node", printed - start.enter)?;
    inside.command.run(&["rm", "--force", NAME]).map(drop)
}
