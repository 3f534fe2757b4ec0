//! The base cannot suspend or hibernate while nodes run.

use std::fs;
use std::io;
use std::time::Duration;

use nix::errno::Errno;

use crate::base::support::insula_command::{assert_equal, insula, with_cleanup};
use crate::base::support::nodes::test_node::{TestNode, add_unpacked_image};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "base_sleep",
    proves: "suspend and hibernation are refused while nodes have cores, and harm no node",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_1],
    limit: Duration::from_secs(180),
    soak_limit: None,
    play,
};

/// Sleep states of the kernel, and where one is requested.
const SLEEP: &str = "/sys/power/state";

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        add_unpacked_image(context, "old", "6.1")?;
        let size = ["--cpus", "2", "--memory", "256M"];
        let node = TestNode::start("awake", &["--image", "old"], &size, "compute")?;
        node.assert_ready(&context.release("6.1")?)?;
        sleep_is_refused("with a node")?;
        node.assert_works()?;
        node.remove()?;
        insula(&["machine", "reserve", "--cpus", "1"])?;
        sleep_is_refused("with a pool")?;
        insula(&["machine", "release"]).map(drop)
    })
}

/// Each sleep state that this kernel supports is refused.
fn sleep_is_refused(situation: &str) -> Result<(), Finding> {
    let ways = fs::read_to_string(SLEEP)?;
    let ways: Vec<&str> = ways.split_whitespace().collect();
    Finding::unless(ways.contains(&"freeze"), || {
        format!("this kernel knows no sleep that could be refused: {ways:?}")
    })?;
    for way in ways {
        let answer = fs::write(SLEEP, way).map_err(|error: io::Error| error.raw_os_error());
        let busy = Err(Some(Errno::EBUSY as i32));
        assert_equal(&format!("{way} {situation}"), &answer, &busy)?;
    }
    Ok(())
}
