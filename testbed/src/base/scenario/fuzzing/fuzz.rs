//! Random calls to the module, by several threads that share descriptors.

use std::fs;
use std::time::{Duration, Instant};

use fastrand::Rng;
use insula_abi::{Reason, ioctl};
use insula_driver::Driver;
use insula_driver::name::Name;
use nix::errno::Errno;

use super::call::ARENA_WORDS;
use super::found::found_once;
use super::requests::REQUESTS;
use super::targets::{Accepted, Targets};
use crate::base::support::insula_command::{assert_equal, with_cleanup};
use crate::base::support::nodes::peer_node::Peer;
use crate::base::support::nodes::test_node::{TestNode, path};
use crate::base::support::raw_device::Arena;
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;
use crate::host::payload::equipment::PEER_INITRD_PATH;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "fuzz",
    proves: "random and changed calls, from threads that share and close descriptors, harm nothing",
    machine: Shape {
        // Nodes can be confined there.
        emulator: Emulator::Backports,
        // And share cores.
        append: "no5lvl",
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_1],
    limit: Duration::from_secs(400),
    soak_limit: Some(Duration::from_secs(3500)),
    play,
};

const THREADS: u64 = 4;
/// So many times the calls are made at most, until each kind was accepted.
const ROUNDS_MAX: u64 = 5;
/// A name that is never generated.
const NEIGHBOUR: &str = "neighbour";
/// Requests that are always refused: no generated start can succeed, and no device can be given.
const REFUSED: [u32; 2] = [ioctl::NODE_START, ioctl::NODE_DEVICE_ADD];

fn play(context: &Context) -> Result<(), Finding> {
    let seed = Rng::new().u64(..);
    println!("seed: {seed}");
    let calls = context.count(40_000, 1_000_000);
    with_cleanup(|| {
        let before = Resources::now()?;
        let kernel = path(&context.kernel("6.1")?);
        let source = ["--kernel", &kernel, "--initrd", PEER_INITRD_PATH];
        let size = ["--cpu-list", "3", "--memory", "192M"];
        let neighbour = TestNode::start(NEIGHBOUR, &source, &size, "peer")?;
        neighbour.assert_ready(&context.release("6.1")?)?;
        let driver = Driver::open()?;
        let peer = Peer::new(&driver, NEIGHBOUR)?;
        let beside = Resources::now()?;

        found_once(&driver).map_err(|finding| finding.when("calls that once did harm"))?;
        assert_unchanged(&beside)?;
        calls_are_accepted(context, seed, calls)?;
        remove_all(&driver)?;
        assert_unchanged(&beside)?;
        peer.assert_answers()?;
        drop(peer);
        neighbour.remove()?;
        assert_unchanged(&before)
    })
}

/// Makes random calls, until each kind that the module can accept was accepted: otherwise only its
/// refusals were tested. Some are accepted a few times in tens of thousands.
fn calls_are_accepted(context: &Context, seed: u64, calls: u64) -> Result<(), Finding> {
    let began = Instant::now();
    let open = descriptors()?;
    let mut accepted = Accepted::new();
    let mut made = 0;
    for round in 0..ROUNDS_MAX {
        for (request, count) in call_at_random(seed.wrapping_add(round * THREADS), calls)? {
            *accepted.entry(request).or_default() += count;
        }
        made += calls;
        if missed(&accepted).is_empty() {
            break;
        }
    }
    assert_equal("descriptors open after the calls", &descriptors()?, &open)?;
    let seconds = began.elapsed().as_secs_f64();
    context.figure("fuzz.calls", made as f64, "1")?;
    let all: u64 = accepted.values().sum();
    context.figure("fuzz.accepted", all as f64, "1")?;
    // Otherwise almost only refusals were tested.
    Finding::unless(all > made / 10, || {
        format!("only {all} of {made} calls were accepted")
    })?;
    context.figure("fuzz.rate", made as f64 / seconds, "1/s")?;
    for &(request, name, ..) in REQUESTS {
        let count = accepted.get(&request).copied().unwrap_or_default();
        println!("accepted: {count:6} {name}");
    }
    let missed = missed(&accepted);
    Finding::unless(missed.is_empty(), || {
        format!("never accepted: {}", missed.join(", "))
    })
}

/// Names of what the module can accept, and never did.
fn missed(accepted: &Accepted) -> Vec<&'static str> {
    let is_missed = |request: &u32| !accepted.contains_key(request) && !REFUSED.contains(request);
    let requests = REQUESTS.iter();
    requests
        .filter(|(request, ..)| is_missed(request))
        .map(|&(_, name, ..)| name)
        .collect()
}

/// Makes that many random calls.
fn call_at_random(seed: u64, calls: u64) -> Result<Accepted, Finding> {
    let driver = Driver::open()?;
    let neighbour = driver.open_node(&NEIGHBOUR.parse::<Name>()?.to_abi())?;
    let targets = Targets::open(driver, neighbour)?;
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let targets = &targets;
            scope.spawn(move || {
                let mut rng = Rng::with_seed(seed.wrapping_add(number));
                let arena = Arena::new(ARENA_WORDS);
                (0..calls / THREADS).for_each(|_| targets.step(&mut rng, &arena));
            });
        }
    });
    Ok(targets.accepted())
}

/// Number of this process's open descriptors: an open one keeps its object.
fn descriptors() -> Result<usize, Finding> {
    Ok(fs::read_dir("/proc/self/fd")?.count())
}

/// Removes the nodes and images that random calls have left.
fn remove_all(driver: &Driver) -> Result<(), Finding> {
    driver.release()?;
    for name in driver.image_names()? {
        driver.remove_image(&name)?;
    }
    let neighbour = NEIGHBOUR.parse::<Name>()?.to_abi();
    for name in driver.node_names()? {
        if name == neighbour {
            continue;
        }
        let node = driver.open_node(&name)?;
        match node.stop(Reason::KILLED) {
            Err(error) if error.errno != Errno::EALREADY => return Err(error.into()),
            _ => node.remove()?,
        }
    }
    Ok(())
}
