//! A redis with much memory, and as much again in its append-only file, moves there and back: all of it is right
//! afterwards, and read again from the file.

use std::time::Duration;

use super::redis::{self, Redis};
use super::{NODES, address, build_image};
use crate::base::support::insula_command::{assert_equal, insula, wait_at_most, with_cleanup};
use crate::base::support::virtio_modules::{NETWORK_MODULES, SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::machine::Emulator;
use crate::host::root::Root;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "large_redis",
    proves: "a redis with much memory moves between kernels, and has all of it",
    machine: Shape {
        root: Root::Applications,
        emulator: Emulator::Backports,
        thread_per_core: true,
        memory_mib: 16 << 10,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[],
    limit: Duration::from_secs(1800),
    soak_limit: Some(Duration::from_secs(3 * 3600)),
    play,
};
/// Bytes of a value, and values in a MiB.
const VALUE: u64 = 4096;
const VALUES_PER_MIB: u64 = (1 << 20) / VALUE;
/// Memory of a node besides four times what redis has: its own and its file's, and the images of both.
const BESIDES_MIB: u64 = 768;
/// Within what time redis has written its file.
const WRITTEN_TIMEOUT: Duration = Duration::from_secs(600);

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    with_cleanup(|| played(context))?;
    unload(&[&NETWORK_MODULES[..], &SOCKET_MODULES].concat())
}

fn played(context: &Context) -> Result<(), Finding> {
    let size_mib = context.count(64, 1024);
    let memory = format!("{}M", 4 * size_mib + BESIDES_MIB);
    for version in NODES {
        let image = build_image(context, version)?;
        let run = [
            "run", "--image", &image, "--name", version, "--memory", &memory,
        ];
        insula(&[&run[..], &["--network", "--rootfs", "/", "--overlay"]].concat())?;
    }
    let values = size_mib * VALUES_PER_MIB;
    redis::start_server(NODES[0])?;
    let mut redis = Redis::connect(&address(redis::NAME)?)?;
    redis.ask(&format!("DEBUG POPULATE {values} key {VALUE}"))?;
    write_file(&mut redis)?;
    let digest = redis.ask("DEBUG DIGEST")?;
    for to in [NODES[1], NODES[0]] {
        println!("{}", insula(&["move", redis::NAME, to])?.trim_end());
        assert_equal("the values", &redis.ask("DBSIZE")?, &format!(":{values}"))?;
        assert_equal("their digest", &redis.ask("DEBUG DIGEST")?, &digest)?;
    }
    redis::has_all(&address(redis::NAME)?)?;
    NODES
        .iter()
        .try_for_each(|node| insula(&["rm", "--force", node]).map(drop))
}

/// Has redis write all of it to its file: what it is populated with it does not.
fn write_file(redis: &mut Redis) -> Result<(), Finding> {
    redis.ask("BGREWRITEAOF")?;
    wait_at_most(WRITTEN_TIMEOUT, "the file to be written", || {
        let told = redis.ask_for_text("INFO persistence")?;
        let is_written = ["aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0"]
            .iter()
            .all(|line| told.contains(line));
        Ok(is_written.then_some(()))
    })
}
