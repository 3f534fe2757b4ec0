//! Calls that did harm once.

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use insula::driver::{Channel, Driver, Memory, Node};
use insula::name::Name;
use insula_abi::channel::{Channels, SLOTS_MIN};
use insula_abi::{
    Chunk, CpuOwner, GRANULE, NUMA_ANY, NodeSupervise, REQUEST_BLOCKS, Reason, Request,
};
use insula_channel::Words;
use nix::errno::Errno;
use nix::sys::eventfd::EventFd;

use super::Finding;
use super::fuzz_numbers;
use super::fuzz_targets::SUPPLY;
use super::idle_node::IdleMemory;
use super::insula_command::{PATIENCE, assert_equal};
use super::real_time::alone_on_a_core;

/// One granule.
const GRANULE_OF_MEMORY: Request = Request {
    size: GRANULE,
    min_phys: 0,
    max_phys: 0,
    chunk_max: GRANULE,
    numa_node: NUMA_ANY,
    flags: REQUEST_BLOCKS,
};

const NAME: &str = "found";
/// How often memory is taken from a node while it is copied into.
const ROUNDS: u32 = 60;
/// Channels of which the kernel takes as much memory as of [`SPRAY`].
const CHANNELS: u32 = 15;
/// Bytes that the kernel keeps for a while of what is written to one of its parameters.
const SPRAY: usize = 12 << 10;
const PARAMETER: &str = "/proc/sys/kernel/panic";

type Call = fn(&Driver) -> Result<(), Finding>;

/// Makes them.
pub(super) fn found_once(driver: &Driver) -> Result<(), Finding> {
    let calls: [(&str, Call); _] = [
        ("bounds of memory", bounds_of_memory),
        ("cores that are none", cores),
        ("a copy into what is taken", copy_into_what_is_taken),
        ("work of a channel that is gone", work_of_closed_channel),
        ("mappings of a former life", mappings_of_former_life),
    ];
    for (what, call) in calls {
        call(driver).map_err(|finding| finding.when(what))?;
    }
    Ok(())
}

/// A node under a name of its own, not started, on core 1.
fn create(driver: &Driver, memory: &Memory) -> Result<Node, Finding> {
    let name = NAME.parse::<Name>()?.to_abi();
    Ok(driver.create_node(&name, &[], &[1], memory)?)
}

/// Whatever bound is asked for, no memory outside it is given, and none that nobody took: a bound
/// that was rounded up beyond 2^64 gave what lies below the pool.
fn bounds_of_memory(driver: &Driver) -> Result<(), Finding> {
    driver.reserve(&[], GRANULE_OF_MEMORY)?;
    for (index, bound) in fuzz_numbers::all().into_iter().enumerate() {
        let (chunk_max, flags) = [(0, 0), (GRANULE, REQUEST_BLOCKS)][index % 2];
        // More than the pool has.
        let above = Request {
            size: 2 * GRANULE,
            min_phys: bound,
            chunk_max,
            flags,
            ..GRANULE_OF_MEMORY
        };
        take_within(driver, &above)?;
        let below = Request {
            min_phys: 0,
            max_phys: bound,
            ..above
        };
        take_within(driver, &below)?;
    }
    Ok(driver.release()?)
}

fn take_within(driver: &Driver, request: &Request) -> Result<(), Finding> {
    let memory = driver.create_memory()?;
    match memory.grow(request) {
        Err(error) if [Errno::ENOMEM, Errno::EINVAL].contains(&error.errno) => return Ok(()),
        answer => answer?,
    }
    let end = match request.max_phys {
        0 => u64::MAX,
        end => end,
    };
    for chunk in memory.chunks()? {
        let inside = chunk.start >= request.min_phys && chunk.start + chunk.size <= end;
        Finding::unless(inside, || format!("{chunk:x?} was given for {request:x?}"))?;
    }
    Ok(())
}

/// What is no core is refused before anything is looked up by it.
fn cores(driver: &Driver) -> Result<(), Finding> {
    let memory = IdleMemory::take(driver, &SUPPLY)?;
    let node = create(driver, &memory.object)?;
    node.start(&memory.beginning())?;
    for no_core in [0, 1 << 8, u32::MAX] {
        let refused = node.grow(&[2, no_core], None).err();
        let errno = refused.map(|error| error.errno);
        assert_equal("more of what is no core", &errno, &Some(Errno::EINVAL))?;
    }
    // Its core is held for it, by a descriptor that is still open when it is gone.
    node.supervise(NodeSupervise {
        hold: 1 << Reason::CRASHED.0,
        flags: 0,
    })?;
    node.stop(Reason::CRASHED)?;
    driver
        .open_node(&NAME.parse::<Name>()?.to_abi())?
        .remove()?;
    let (_, cores) = driver.machine()?;
    let owner = cores
        .iter()
        .find(|core| core.cpu == 1)
        .map(|core| core.owner);
    assert_equal("the core's owner", &owner, &Some(CpuOwner::BASE))
}

/// Memory is taken from a node while somebody copies into it. Whoever has it next finds zeros there,
/// now and later: no copy was still under way.
fn copy_into_what_is_taken(driver: &Driver) -> Result<(), Finding> {
    let memory = IdleMemory::take(driver, &SUPPLY)?;
    let node = create(driver, &memory.object)?;
    node.start(&memory.beginning())?;
    let source = driver.create_memory()?;
    source.grow(&GRANULE_OF_MEMORY)?;
    source.map()?.write(0, &[0xff; GRANULE as usize])?;
    // So that what is taken goes to the pool, where nobody but us gets it from.
    driver.reserve(&[], GRANULE_OF_MEMORY)?;
    let target = node.memory()?;
    let (copies, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let copied = target.copy_from(&source, 0, SUPPLY.size, GRANULE);
                copies.fetch_add(u64::from(copied.is_ok()), Ordering::Relaxed);
            }
        });
        let taken = (0..ROUNDS).try_for_each(|_| take_while_copied(driver, &node, &copies));
        over.store(true, Ordering::Relaxed);
        taken
    })?;
    node.stop(Reason::KILLED)?;
    node.remove()?;
    Ok(driver.release()?)
}

fn take_while_copied(driver: &Driver, node: &Node, copies: &AtomicU64) -> Result<(), Finding> {
    let (more, chunk) = one_granule(driver)?;
    node.grow(&[], Some(&more))?;
    let (began, before) = (Instant::now(), copies.load(Ordering::Relaxed));
    while copies.load(Ordering::Relaxed) == before {
        Finding::unless(began.elapsed() < PATIENCE, || "nothing is copied".into())?;
        std::thread::yield_now();
    }
    node.shrink(&[], 1)?;
    let (next, same) = one_granule(driver)?;
    assert_equal("the memory had next", &same, &chunk)?;
    assert_zero(&bytes_of(&next)?)
}

fn bytes_of(memory: &Memory) -> Result<Vec<u8>, Finding> {
    let mapping = memory.map()?;
    let mut bytes = vec![0; mapping.size() as usize];
    mapping.read(0, &mut bytes)?;
    Ok(bytes)
}

fn assert_zero(bytes: &[u8]) -> Result<(), Finding> {
    let written = bytes.iter().position(|&byte| byte != 0);
    assert_equal("the first byte that is not zero", &written, &None)
}

/// A granule, which the pool has, and where it lies.
fn one_granule(driver: &Driver) -> Result<(Memory, Option<Chunk>), Finding> {
    let memory = driver.create_memory()?;
    memory.grow(&GRANULE_OF_MEMORY)?;
    let chunk = memory.chunks()?.first().copied();
    Ok((memory, chunk))
}

/// The first of the channels of a node, which are in the second granule of its memory.
fn open_channel(node: &Node, memory: &IdleMemory) -> Result<Channel, Finding> {
    node.lay_out_channels(Channels {
        start: memory.start + GRANULE,
        count: CHANNELS,
        slots: SLOTS_MIN,
    })?;
    Ok(node.open_channel(0)?)
}

/// An eventfd of a channel goes, of which the module has work to do, and at once the channel goes,
/// the last of a node that is gone. The work finds all that it needs, and not what the kernel has
/// kept in the same place meanwhile.
fn work_of_closed_channel(driver: &Driver) -> Result<(), Finding> {
    let memory = IdleMemory::take(driver, &SUPPLY)?;
    let node = create(driver, &memory.object)?;
    let channel = open_channel(&node, &memory)?;
    drop(node);
    let (incoming, outgoing) = (EventFd::new()?, EventFd::new()?);
    channel.bind_event(0, Some((&incoming, &outgoing)))?;
    let mut parameter = File::options().write(true).open(PARAMETER)?;
    let spray = [0xff; SPRAY];
    let refused = alone_on_a_core(|| {
        drop(incoming);
        drop(channel);
        parameter.write(&spray).is_err()
    })?;
    Finding::unless(refused, || format!("{PARAMETER} is what it cannot be"))
}

/// Whoever has mapped a node's memory, or the rings of a channel, changes nothing of its next life
/// thereby, and sees nothing of it.
fn mappings_of_former_life(driver: &Driver) -> Result<(), Finding> {
    let memory = IdleMemory::take(driver, &SUPPLY)?;
    let node = create(driver, &memory.object)?;
    let channel = open_channel(&node, &memory)?;
    let rings = channel.map()?;
    let own = memory.words.word(0)?;
    node.start(&memory.beginning())?;
    node.supervise(NodeSupervise {
        hold: 1 << Reason::CRASHED.0,
        flags: 0,
    })?;
    rings.store(0, 1, Ordering::Relaxed);
    node.stop(Reason::CRASHED)?;
    node.recreate(&[], 0)?;

    rings.store(0, u64::MAX, Ordering::Relaxed);
    assert_zero(&bytes_of(&node.memory()?)?).map_err(|finding| finding.when("by rings"))?;
    own.store(u64::MAX, Ordering::Relaxed);
    assert_zero(&bytes_of(&node.memory()?)?).map_err(|finding| finding.when("by memory"))?;
    let next = node.memory()?.map()?;
    next.word(0)?.store(1, Ordering::Relaxed);
    assert_equal("the word seen", &own.load(Ordering::Relaxed), &u64::MAX)?;
    drop(node);
    Ok(driver
        .open_node(&NAME.parse::<Name>()?.to_abi())?
        .remove()?)
}
