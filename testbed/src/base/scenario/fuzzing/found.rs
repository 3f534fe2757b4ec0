//! Calls that once did harm.

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use insula_abi::channel::{Channels, SLOTS_MIN};
use insula_abi::{
    Chunk, CpuOwner, GRANULE, NUMA_ANY, NodeSupervise, REQUEST_BLOCKS, Reason, Request,
};
use insula_channel::Words;
use insula_driver::name::Name;
use insula_driver::{Channel, Driver, Memory, Node};
use nix::errno::Errno;
use nix::sys::eventfd::EventFd;

use super::numbers;
use super::real_time::alone_on_a_core;
use crate::base::Finding;
use crate::base::support::insula_command::{TIMEOUT, assert_equal};
use crate::base::support::nodes::idle_node::{IdleMemory, SUPPLY};

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
/// Number of times that memory is removed from a node during a copy into it.
const ROUNDS: u32 = 60;
/// Number of channels for which the kernel allocates as much memory as for [`SPRAY`].
const CHANNELS: u32 = 15;
/// Bytes written to a kernel parameter, which the kernel keeps for a while.
const SPRAY: usize = 12 << 10;
const PARAMETER: &str = "/proc/sys/kernel/panic";

type Call = fn(&Driver) -> Result<(), Finding>;

/// Makes them.
pub(super) fn found_once(driver: &Driver) -> Result<(), Finding> {
    let calls: [(&str, Call); _] = [
        ("bounds of memory", bounds_of_memory),
        ("cores that are none", cores),
        ("a copy into removed memory", copy_into_removed_memory),
        ("work of a closed channel", work_of_closed_channel),
        ("mappings of an earlier run", mappings_of_an_earlier_run),
    ];
    for (what, call) in calls {
        call(driver).map_err(|finding| finding.when(what))?;
    }
    Ok(())
}

/// A node with its own name, not started, on core 1.
fn create(driver: &Driver, memory: &Memory) -> Result<Node, Finding> {
    let name = NAME.parse::<Name>()?.to_abi();
    Ok(driver.create_node(&name, &[], &[1], memory)?)
}

/// Memory is never given outside the requested bounds, nor without an allocation: a bound that was
/// rounded up beyond 2^64 gave memory below the pool.
fn bounds_of_memory(driver: &Driver) -> Result<(), Finding> {
    driver.reserve(&[], GRANULE_OF_MEMORY)?;
    for (index, bound) in numbers::all().into_iter().enumerate() {
        let (chunk_max, flags) = [(0, 0), (GRANULE, REQUEST_BLOCKS)][index % 2];
        // More than the pool has.
        let above = Request {
            size: 2 * GRANULE,
            min_phys: bound,
            chunk_max,
            flags,
            ..GRANULE_OF_MEMORY
        };
        allocate_within(driver, &above)?;
        let below = Request {
            min_phys: 0,
            max_phys: bound,
            ..above
        };
        allocate_within(driver, &below)?;
    }
    Ok(driver.release()?)
}

fn allocate_within(driver: &Driver, request: &Request) -> Result<(), Finding> {
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

/// An invalid core number is refused before it is used as an index.
fn cores(driver: &Driver) -> Result<(), Finding> {
    let memory = IdleMemory::allocate(driver, &SUPPLY)?;
    let node = create(driver, &memory.object)?;
    node.start(&memory.start_parameters())?;
    for no_core in [0, 1 << 8, u32::MAX] {
        let refused = node.grow(&[2, no_core], None).err();
        let errno = refused.map(|error| error.errno);
        assert_equal("growing by an invalid core", &errno, &Some(Errno::EINVAL))?;
    }
    // Its core is kept for it, by a descriptor that is still open when the node is gone.
    node.supervise(NodeSupervise {
        keep_cpus: 1 << Reason::CRASHED.0,
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

/// Memory is removed from a node during a copy into it. Its next owner finds zeros there, now and
/// later: no copy was still in progress.
fn copy_into_removed_memory(driver: &Driver) -> Result<(), Finding> {
    let memory = IdleMemory::allocate(driver, &SUPPLY)?;
    let node = create(driver, &memory.object)?;
    node.start(&memory.start_parameters())?;
    let source = driver.create_memory()?;
    source.grow(&GRANULE_OF_MEMORY)?;
    source.map()?.write(0, &[0xff; GRANULE as usize])?;
    // So that removed memory goes to the pool, which nobody else uses.
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
        let shrunk = (0..ROUNDS).try_for_each(|_| shrink_during_copy(driver, &node, &copies));
        over.store(true, Ordering::Relaxed);
        shrunk
    })?;
    node.stop(Reason::KILLED)?;
    node.remove()?;
    Ok(driver.release()?)
}

fn shrink_during_copy(driver: &Driver, node: &Node, copies: &AtomicU64) -> Result<(), Finding> {
    let (more, chunk) = one_granule(driver)?;
    node.grow(&[], Some(&more))?;
    let (began, before) = (Instant::now(), copies.load(Ordering::Relaxed));
    while copies.load(Ordering::Relaxed) == before {
        Finding::unless(began.elapsed() < TIMEOUT, || "nothing is copied".into())?;
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

/// A granule of the pool, and its address.
fn one_granule(driver: &Driver) -> Result<(Memory, Option<Chunk>), Finding> {
    let memory = driver.create_memory()?;
    memory.grow(&GRANULE_OF_MEMORY)?;
    let chunk = memory.chunks()?.first().copied();
    Ok((memory, chunk))
}

/// First of the channels of a node, which are in the second granule of its memory.
fn open_channel(node: &Node, memory: &IdleMemory) -> Result<Channel, Finding> {
    node.lay_out_channels(Channels {
        start: memory.start + GRANULE,
        count: CHANNELS,
        slots: SLOTS_MIN,
    })?;
    Ok(node.open_channel(0)?)
}

/// An eventfd that is bound to a channel is closed, which queues work in the module, and then the
/// channel, the last user of a removed node. The work must find the channel intact, not memory that
/// the kernel has reused meanwhile.
fn work_of_closed_channel(driver: &Driver) -> Result<(), Finding> {
    let memory = IdleMemory::allocate(driver, &SUPPLY)?;
    let node = create(driver, &memory.object)?;
    let channel = open_channel(&node, &memory)?;
    drop(node);
    let (ioeventfd, irqfd) = (EventFd::new()?, EventFd::new()?);
    channel.bind_eventfds(0, Some((&ioeventfd, &irqfd)))?;
    let mut parameter = File::options().write(true).open(PARAMETER)?;
    let spray = [0xff; SPRAY];
    let refused = alone_on_a_core(|| {
        drop(ioeventfd);
        drop(channel);
        parameter.write(&spray).is_err()
    })?;
    Finding::unless(refused, || format!("{PARAMETER} accepted an invalid value"))
}

/// A mapping of a node's memory, or of the rings of a channel, neither sees nor changes anything of
/// the node's next run.
fn mappings_of_an_earlier_run(driver: &Driver) -> Result<(), Finding> {
    let memory = IdleMemory::allocate(driver, &SUPPLY)?;
    let node = create(driver, &memory.object)?;
    let channel = open_channel(&node, &memory)?;
    let rings = channel.map()?;
    let own = memory.words.word(0)?;
    node.start(&memory.start_parameters())?;
    node.supervise(NodeSupervise {
        keep_cpus: 1 << Reason::CRASHED.0,
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
    assert_equal("the word read", &own.load(Ordering::Relaxed), &u64::MAX)?;
    drop(node);
    Ok(driver
        .open_node(&NAME.parse::<Name>()?.to_abi())?
        .remove()?)
}
