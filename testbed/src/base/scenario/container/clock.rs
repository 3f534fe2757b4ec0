//! The clocks of nodes that run for long: they follow the base's, unless they are kept otherwise.

use std::fs::File;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use insula_agent::frame::{self, Reader};
use insula_agent::{ClockAnswer, ClockRequest, Request};
use insula_node::connect_to_agent;
use nix::time::{ClockId, clock_settime};

use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, wait_for, with_cleanup,
};
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
/// Largest difference of a clock that follows.
const ALLOWED_NS: u64 = 10_000_000;
/// By how much the base's clock is set, and by how much less than what has a node's set at once.
const STEP: Duration = Duration::from_secs(3);
const SLEWED: Duration = Duration::from_millis(8);
/// Difference that is left of that when it has been slewed.
const LEFT_NS: u64 = 4_000_000;
/// How inexactly it is known that a clock has not followed.
const ABOUT_NS: u64 = 500_000_000;
/// Readings of a clock, of which the quickest counts.
const READINGS: u32 = 40;
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

/// Sets the base's clock forward or back.
fn set_base(by: Duration, forward: bool) -> Result<(), Finding> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let to = if forward { now + by } else { now - by };
    Ok(clock_settime(ClockId::CLOCK_REALTIME, to.into())?)
}

/// Waits until a node's clock is certainly as near as that.
fn comes_within(node: &str, most_ns: u64) -> Result<(), Finding> {
    let mut last = None;
    let within = wait_for(&format!("the clock of {node}"), || {
        last = difference(node)?;
        Ok(last.filter(|(ahead_ns, error_ns)| ahead_ns.unsigned_abs() + error_ns <= most_ns))
    });
    let seen = format!("it was last ahead by {last:?} ns, and not within {most_ns} ns");
    let (ahead_ns, error_ns) = within.map_err(|error| error.when(&seen))?;
    println!("{node} is ahead by {ahead_ns} ns, known within {error_ns} ns");
    Ok(())
}

/// A node's clock has not followed.
fn is_behind(node: &str, by: Duration) -> Result<(), Finding> {
    let (ahead_ns, _) = wait_for("its agent to answer", || difference(node))?;
    let wanted_ns = -i64::try_from(by.as_nanos())?;
    Finding::unless(ahead_ns.abs_diff(wanted_ns) < ABOUT_NS, || {
        format!("the clock of {node} is ahead by {ahead_ns} ns")
    })
}

/// By how much a node's clock is ahead of the base's, and by how much that may be wrong; none if its agent does not
/// answer yet.
fn difference(node: &str) -> Result<Option<(i64, u64)>, Finding> {
    let id = insula_json(&["inspect", node])?[0]["id"]
        .as_u64()
        .unwrap_or_default();
    let Ok(agent) = connect_to_agent(u32::try_from(id)?)? else {
        return Ok(None);
    };
    let agent = File::from(agent);
    frame::write(&agent, &Request::Clock)?;
    let mut reader = Reader::new(&agent);
    let mut best: Option<(i64, u64)> = None;
    for _ in 0..READINGS {
        let asked_ns = now_ns()?;
        frame::write(&agent, &ClockRequest::Read)?;
        let answer: Option<ClockAnswer> = reader.read()?;
        let answer = answer.ok_or_else(|| Finding::new("its agent has left"))?;
        let told_ns = answer.unix_ns;
        let took_ns = now_ns()?.saturating_sub(asked_ns);
        let ahead_ns = i64::try_from(told_ns)? - i64::try_from(asked_ns + took_ns / 2)?;
        if best.is_none_or(|(_, error_ns)| took_ns.div_ceil(2) < error_ns) {
            best = Some((ahead_ns, took_ns.div_ceil(2)));
        }
    }
    Ok(best)
}

/// The base's time, in nanoseconds since 1970.
fn now_ns() -> Result<u64, Finding> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(u64::try_from(now.as_nanos())?)
}
