//! Memory and cores of a chosen NUMA node.

use std::fs;
use std::time::Duration;

use crate::base::support::insula_command::{assert_equal, try_insula, with_cleanup};
use crate::base::support::nodes::test_node::{TestNode, add_unpacked_image};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "numa",
    proves: "a node's memory lies on the NUMA node that was asked for, and its cores beside it",
    machine: Shape {
        numa_nodes: 2,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_1],
    limit: Duration::from_secs(400),
    soak_limit: None,
    play,
};

/// Memory below this address is not checked: a node's real-mode memory can only lie there.
const LOWMEM_LIMIT: u64 = 1 << 20;

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        add_unpacked_image(context, "old", "6.1")?;
        let before = Resources::now()?;
        for numa_node in [0, 1] {
            on(context, numa_node)?;
        }
        let absent = ["run", "--image", "old", "--memory", "64M,numa=7"];
        try_insula(&absent)?.refused(1, &["NUMA", "nothing was touched"])?;
        assert_unchanged(&before)
    })
}

fn on(context: &Context, numa_node: u32) -> Result<(), Finding> {
    let memory = format!("256M,numa={numa_node},chunk=64M");
    let node = TestNode::start("near", &["--image", "old"], &["--memory", &memory], "idle")?;
    node.assert_ready(&context.release("6.1")?)?;
    let blocks = Blocks::of(numa_node)?;
    let inspected = node.inspect()?;
    let chunks = inspected["memory"].as_array().into_iter().flatten();
    let places =
        chunks.filter_map(|chunk| Some((chunk["start"].as_u64()?, chunk["size"].as_u64()?)));
    let high: Vec<_> = places.filter(|(start, _)| *start >= LOWMEM_LIMIT).collect();
    assert_equal(
        "size",
        &high.iter().map(|(_, size)| size).sum(),
        &(256 << 20),
    )?;
    for (start, size) in high {
        Finding::unless(blocks.hold(start, size), || {
            format!("memory at {start:#x} is not of NUMA node {numa_node}")
        })?;
    }
    for cpu in &node.cpus {
        let near = format!("/sys/devices/system/node/node{numa_node}/cpu{cpu}");
        Finding::unless(fs::exists(&near)?, || format!("there is no {near}"))?;
    }
    node.remove()
}

/// The kernel's memory blocks of a NUMA node.
struct Blocks {
    size: u64,
    numbers: Vec<u64>,
}

impl Blocks {
    fn of(numa_node: u32) -> Result<Self, Finding> {
        let size = fs::read_to_string("/sys/devices/system/memory/block_size_bytes")?;
        let folder = format!("/sys/devices/system/node/node{numa_node}");
        let mut numbers = Vec::new();
        for entry in fs::read_dir(folder)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            numbers.extend(
                name.strip_prefix("memory")
                    .and_then(|n| n.parse::<u64>().ok()),
            );
        }
        Ok(Self {
            size: u64::from_str_radix(size.trim(), 16)?,
            numbers,
        })
    }

    fn hold(&self, start: u64, size: u64) -> bool {
        let last = start + size - 1;
        (start / self.size..=last / self.size).all(|block| self.numbers.contains(&block))
    }
}
