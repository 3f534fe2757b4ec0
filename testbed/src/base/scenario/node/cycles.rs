//! Starts and stops, over and over.

use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::base::support::insula_command::{insula, with_cleanup};
use crate::base::support::nodes::test_node::{TestNode, add_unpacked_image};
use crate::base::support::resources::{Resources, assert_unchanged, free_kib};
use crate::base::{BaseState, Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "cycles",
    proves: "nodes of varying size start and end, at any moment of their boot, and nothing leaks",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(400),
    soak_limit: Some(Duration::from_secs(7200)),
    play,
};

/// Cycles before measuring: the base keeps some memory that it allocates for the first time.
const WARM_UP: u64 = 2;
/// Smallest significant loss of free memory per cycle, in KiB. With few cycles it is half the
/// smallest unit of allocation; with many, two pages.
const BOUND_KIB: f64 = 1024.0;
const SOAK_BOUND_KIB: f64 = 8.0;
/// One node in so many boots completely.
const BOOTED: u64 = 3;
/// The others are ended within this time of their start, while their kernel boots.
const YOUNG_MS: u64 = 400;

const MEMORY: [&[&str]; 5] = [
    &["--memory", "192M"],
    &["--memory", "512M"],
    &["--memory", "128M", "--memory", "64M,above=4G"],
    &["--memory", "384M,chunk=128M"],
    &["--memory", "256M,above=4G"],
];

fn play(context: &Context) -> Result<(), Finding> {
    let seed = Rng::new().u64(..);
    println!("seed: {seed}");
    let mut rng = Rng::with_seed(seed);
    let cycles = context.count(6, 1000);
    with_cleanup(|| {
        add_unpacked_image(context, "old", "6.1")?;
        add_unpacked_image(context, "new", "6.12")?;
        let (resources, base) = (Resources::now()?, BaseState::capture()?);
        let mut free = Vec::new();
        let mut began = Instant::now();
        for number in 0..cycles + WARM_UP {
            if number == WARM_UP {
                began = Instant::now();
            }
            cycle(number, &mut rng).map_err(|finding| finding.when(&format!("cycle {number}")))?;
            assert_unchanged(&resources)?;
            BaseState::capture()?.assert_same(&base)?;
            if number >= WARM_UP {
                free.push(free_kib()? as f64);
            }
        }
        let seconds = began.elapsed().as_secs_f64() / cycles as f64;
        context.figure("cycles", cycles as f64, "1")?;
        context.figure("cycle", seconds, "s")?;
        check_slope(context, &free)
    })
}

/// Starts a node of some size, and ends it soon or when it is up.
fn cycle(number: u64, rng: &mut Rng) -> Result<(), Finding> {
    let cpus = rng.u32(1..=3).to_string();
    let memory = MEMORY[rng.usize(..MEMORY.len())];
    let size = [&["--cpus", &cpus], memory].concat();
    let image = ["old", "new"][rng.usize(..2)];
    let node = TestNode::start("fleeting", &["--image", image], &size, "compute")?;
    if number.is_multiple_of(BOOTED) {
        node.wait_until_ready()?;
    } else {
        std::thread::sleep(Duration::from_millis(rng.u64(..YOUNG_MS)));
    }
    if rng.bool() {
        insula(&["kill", &node.name])?;
    }
    node.remove()
}

/// Fails if free memory falls from cycle to cycle.
fn check_slope(context: &Context, free_kib: &[f64]) -> Result<(), Finding> {
    let slope = slope(free_kib);
    context.figure("cycles.free_memory_slope", slope, "KiB/cycle")?;
    let bound = if free_kib.len() < 100 {
        BOUND_KIB
    } else {
        SOAK_BOUND_KIB
    };
    Finding::unless(slope > -bound, || {
        format!(
            "each cycle loses {:.1} KiB of free memory: {free_kib:?}",
            -slope
        )
    })
}

/// Slope of the least-squares line through the values, per value.
fn slope(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let middle = (count - 1.0) / 2.0;
    let mean = values.iter().sum::<f64>() / count;
    let offsets = (0..values.len()).map(|index| index as f64 - middle);
    let (product, square) =
        offsets
            .zip(values)
            .fold((0.0, 0.0), |(product, square), (offset, value)| {
                (product + offset * (value - mean), square + offset * offset)
            });
    if square > 0.0 { product / square } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slope_of_a_line_is_its_own() {
        assert_eq!(slope(&[5.0, 3.0, 1.0, -1.0]), -2.0);
        assert_eq!(slope(&[7.0, 7.0, 7.0]), 0.0);
        assert_eq!(slope(&[7.0]), 0.0);
    }

    #[test]
    fn noise_has_none() {
        assert!(slope(&[4.0, 6.0, 6.0, 4.0]).abs() < 1e-9);
    }
}
