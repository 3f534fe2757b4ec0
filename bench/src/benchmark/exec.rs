//! A program in a running node, compared with one in a container.

use std::process::Command;

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Row};
use crate::inside::{BUSYBOX, CONTAINER, Inside, output_of, podman, run};

const KERNEL: &str = "6.12";
/// Name of the image, the node and the container.
const NAME: &str = "living";
/// Node of the lightweight kernel.
const LWK_NODE: &str = "quiet";

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "exec",
    title: "A program in a node that runs",
    how: "From Enter to the end of the command that runs `busybox true`: by the agent of a Linux \
          node of one core, through a socket (vsock); on a node of the lightweight kernel of one \
          core, in whose memory it is loaded; in a container of podman's (crun, no network), \
          whose root is the folder that the node's image was built with: by podman, and by crun, \
          podman's own runtime; and by the base itself. Each round runs all five.",
    machine: Shape::USUAL,
    root: Root::Bench,
    rounds: 5,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        Row::time(
            "exec.node",
            "in a Linux node",
            "insula exec NODE -- busybox true",
        )
        .beside("exec.crun")
        .drawn(),
        Row::time(
            "exec.lwk",
            "on the lightweight kernel",
            "insula exec NODE -- busybox true",
        )
        .beside("exec.crun")
        .drawn(),
        Row::time(
            "exec.podman",
            "in a container, by podman",
            "podman exec CONTAINER busybox true",
        )
        .beside("exec.crun")
        .drawn(),
        Row::time(
            "exec.crun",
            "in a container, by crun",
            "crun exec CONTAINER busybox true",
        )
        .drawn(),
        Row::time("exec.base", "in the base", "busybox true").drawn(),
    ],
};

const PROGRAM: [&str; 2] = [BUSYBOX, "true"];

fn inside(inside: &Inside) -> Result<(), Finding> {
    inside.build_image(NAME, KERNEL)?;
    let size = ["--cpus", "1", "--memory", "256M", "--name"];
    let start = |image: &str, name: &str| {
        let words = [&["run", "--image", image], &size[..], &[name]].concat();
        inside.command.run(&words)
    };
    start(NAME, NAME)?;
    start("lwk", LWK_NODE)?;
    let container = [&["run", "--detach", "--name", NAME], &CONTAINER[..]].concat();
    let container = output_of(&mut podman(
        &[&container[..], &[BUSYBOX, "sleep", "1000000"]].concat(),
    ))?;
    let measured = rounds(inside, container.trim());
    run(&mut podman(&["rm", "--force", "--time", "0", NAME]))?;
    inside.command.run(&["rm", "--force", NAME, LWK_NODE])?;
    measured
}

/// `container` is the container's id: podman passes that to its runtime, not the name.
fn rounds(inside: &Inside, container: &str) -> Result<(), Finding> {
    let in_node = |name| {
        let mut command = inside.command.prepare();
        command.args(["exec", name, "--"]).args(PROGRAM);
        command
    };
    let in_container = || podman(&[&["exec", NAME], &PROGRAM[..]].concat());
    let by_crun = || {
        let mut command = Command::new("crun");
        command.args(["exec", container]).args(PROGRAM);
        command
    };
    let in_base = || {
        let mut command = Command::new(PROGRAM[0]);
        command.args(&PROGRAM[1..]);
        command
    };
    // The first waits until the agent is up, and fills caches.
    run(&mut in_node(NAME))?;
    for _ in 0..inside.count {
        inside.record("exec.node", run(&mut in_node(NAME))?)?;
        inside.record("exec.lwk", run(&mut in_node(LWK_NODE))?)?;
        inside.record("exec.podman", run(&mut in_container())?)?;
        inside.record("exec.crun", run(&mut by_crun())?)?;
        inside.record("exec.base", run(&mut in_base())?)?;
    }
    Ok(())
}
