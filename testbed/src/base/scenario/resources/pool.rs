//! Pool: cores and memory reserved in advance.

use std::time::Duration;

use crate::base::support::insula_command::{assert_equal, insula, try_insula, with_cleanup};
use crate::base::support::nodes::test_node::{TestNode, add_image};
use crate::base::support::resources::{Resources, assert_unchanged, free_kib};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "pool",
    proves: "a pool gives its cores and memory to nodes, gets them back, and can be emptied any time",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_1],
    limit: Duration::from_secs(400),
    soak_limit: None,
    play,
};

const MIB: u64 = 1 << 20;
/// Memory that the base may have allocated for itself meanwhile, in KiB: far less than what is
/// reserved.
const OWN_USE_KIB: u64 = 16 << 10;
/// Cores 1 and 2: core 3, the one that would be chosen by default, stays out.
const RESERVE: [&str; 6] = [
    "machine",
    "reserve",
    "--cpu-list",
    "1,2",
    "--memory",
    "512M",
];
const NODE: [&str; 4] = ["--cpus", "2", "--memory", "256M"];

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        add_image(context, "old", "6.1")?;
        // Not measured: the base keeps some memory that it allocates for the first time.
        insula(&RESERVE)?;
        insula(&["machine", "release"])?;
        let (before, free_before) = (Resources::now()?, free_kib()?);
        all_or_nothing(&before)?;
        insula(&RESERVE)?;
        let reserved = Resources::now()?;
        check_reserved(&before, &reserved)?;
        node_uses_pool(context, &reserved)?;
        release_under_a_node(context, &before)?;
        let missing = free_before.saturating_sub(free_kib()?);
        Finding::unless(missing < OWN_USE_KIB, || {
            format!("{missing} KiB of the base's memory were not returned")
        })
    })
}

/// A request that cannot be met in full changes nothing.
fn all_or_nothing(before: &Resources) -> Result<(), Finding> {
    for (cores, memory) in [("1,2", "64G"), ("1,9", "512M"), ("0-2", "512M")] {
        let words = [
            "machine",
            "reserve",
            "--cpu-list",
            cores,
            "--memory",
            memory,
        ];
        try_insula(&words)?.refused(1, &["nothing was touched"])?;
        assert_unchanged(before)?;
    }
    insula(&["machine", "reserve", "--cpu-list", "1"])?;
    let twice = ["machine", "reserve", "--cpu-list", "1,2", "--memory", "64M"];
    try_insula(&twice)?.refused(1, &["core 1 ", "nothing was touched"])?;
    insula(&["machine", "release"])?;
    assert_unchanged(before)
}

fn check_reserved(before: &Resources, now: &Resources) -> Result<(), Finding> {
    assert_equal("the base's cores", &now.online.as_str(), &"0,3")?;
    assert_equal("owners", &(now.owner(1), now.owner(2)), &("pool", "pool"))?;
    let pool = (now.pool_total, now.pool_free);
    assert_equal("memory in the pool", &pool, &(512 * MIB, 512 * MIB))?;
    assert_equal("memory of nodes", &now.allocated, &before.allocated)
}

/// A start takes from the pool alone, and all of it returns there.
fn node_uses_pool(context: &Context, reserved: &Resources) -> Result<(), Finding> {
    let node = TestNode::start("swimmer", &["--image", "old"], &NODE, "idle")?;
    let now = Resources::now()?;
    assert_equal("cores", &sorted(&node.cpus), &vec![1, 2])?;
    assert_equal("owners", &(now.owner(1), now.owner(2)), &("node", "node"))?;
    assert_equal("free in the pool", &now.pool_free, &(256 * MIB))?;
    assert_equal("allocated besides", &now.allocated, &reserved.allocated)?;
    assert_equal("the base's cores", &now.online, &reserved.online)?;
    node.assert_ready(&context.release("6.1")?)?;
    node.remove()?;
    assert_unchanged(reserved)
}

/// The pool is emptied while a node uses its memory: the node goes on, and its memory goes to the
/// base when it ends.
fn release_under_a_node(context: &Context, before: &Resources) -> Result<(), Finding> {
    let node = TestNode::start("diver", &["--image", "old"], &NODE, "compute")?;
    insula(&["machine", "release"])?;
    let now = Resources::now()?;
    assert_equal("free in the pool", &now.pool_free, &0)?;
    assert_equal("owners", &(now.owner(1), now.owner(2)), &("node", "node"))?;
    node.assert_ready(&context.release("6.1")?)?;
    node.assert_works()?;
    node.remove()?;
    assert_unchanged(before)
}

fn sorted(cpus: &[u32]) -> Vec<u32> {
    let mut cpus = cpus.to_vec();
    cpus.sort_unstable();
    cpus
}
