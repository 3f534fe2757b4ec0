//! The clocks of nodes that run for long: they follow the base's, unless they are kept otherwise.

use std::time::{Duration, Instant};

use crate::base::support::insula_command::{assert_equal, insula, wait_for, with_cleanup};
use crate::base::support::nodes::clock::{ALLOWED_NS, comes_within, difference, set_base};
use crate::base::support::nodes::in_node::{build_image, script};
use crate::base::support::virtio_modules::{SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "clock",
    proves: "a node's clock follows the base's within 10 ms, unless the node keeps its own",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
    soak_limit: None,
    play,
};

const IMAGE: &str = "clock";
/// A node that follows, one that is not to, and one with a program that keeps its clock.
const FOLLOWS: &str = "follows";
const ALONE: &str = "alone";
const KEPT: &str = "kept";
/// By how much the base's clock is set, and by how much less than what has a node's set at once.
const STEP: Duration = Duration::from_secs(3);
const SLEWED: Duration = Duration::from_millis(8);
/// Difference that is left of that when it has been slewed.
const LEFT_NS: u64 = 4_000_000;
/// How inexactly it is known that a clock has not followed.
const ABOUT_NS: u64 = 500_000_000;
/// Marks the clock as synchronized, as an NTP client does (adjtimex(2)): `ADJ_STATUS | ADJ_MAXERROR`, `STA_PLL`.
const SYNCHRONIZES: &str = "python3 -c \"\
import ctypes
t = ctypes.create_string_buffer(256)
t[0:4] = (0x14).to_bytes(4, 'little')
t[40:44] = (1).to_bytes(4, 'little')
print(ctypes.CDLL(None).adjtimex(t))\"";

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    let played = with_cleanup(|| {
        build_image(context, IMAGE, "6.12", &[])?;
        start(FOLLOWS, &[])?;
        start(ALONE, &["--no-clock-sync"])?;
        start(KEPT, &["--rootfs", "/", "--overlay"])?;
        for node in [FOLLOWS, ALONE, KEPT] {
            comes_within(node, ALLOWED_NS)?;
        }
        let synchronized = script(KEPT, SYNCHRONIZES)?;
        assert_equal("its clock's state", &synchronized, &(0, "0\n".to_owned()))?;
        follow_a_step()?;
        follows_slowly()
    });
    played?;
    unload(&SOCKET_MODULES)
}

fn start(node: &str, options: &[&str]) -> Result<(), Finding> {
    let run = ["run", "--image", IMAGE, "--name", node, "--memory", "256M"];
    insula(&[&run, options].concat()).map(drop)
}

/// The base's clock is set: so is that of the node that follows, and no other.
fn follow_a_step() -> Result<(), Finding> {
    set_base(STEP, true)?;
    let began = Instant::now();
    let followed = comes_within(FOLLOWS, ALLOWED_NS);
    println!(
        "the node had followed after {:.1} s",
        began.elapsed().as_secs_f64()
    );
    let others = [ALONE, KEPT].map(|node| is_behind(node, STEP));
    set_base(STEP, false)?;
    followed?;
    others.into_iter().collect::<Result<(), _>>()?;
    for node in [FOLLOWS, ALONE, KEPT] {
        comes_within(node, ALLOWED_NS)?;
    }
    Ok(())
}

/// A small difference is slewed: it gets smaller.
fn follows_slowly() -> Result<(), Finding> {
    comes_within(FOLLOWS, LEFT_NS)?;
    set_base(SLEWED, true)?;
    let followed = comes_within(FOLLOWS, LEFT_NS);
    set_base(SLEWED, false)?;
    followed
}

/// A node's clock has not followed.
fn is_behind(node: &str, by: Duration) -> Result<(), Finding> {
    let (ahead_ns, _) = wait_for("its agent to answer", || difference(node))?;
    let wanted_ns = -i64::try_from(by.as_nanos())?;
    Finding::unless(ahead_ns.abs_diff(wanted_ns) < ABOUT_NS, || {
        format!("the clock of {node} is ahead by {ahead_ns} ns")
    })
}
