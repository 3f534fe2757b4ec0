//! Memory that programs of the base and a node use, and that is freed or revoked meanwhile.

mod granted;

use std::fs::{File, OpenOptions};
use std::io::{PipeReader, Read, Write, pipe};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use insula_abi::{GRANULE, NUMA_ANY, Request};
use insula_driver::{Driver, Memory};
use io_uring::IoUring;
use nix::errno::Errno;
use nix::libc;

use super::mapped_pages::{MappedPages, PAGE};
use crate::base::support::insula_command::{assert_equal, insula_json, wait_for, with_cleanup};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "frames",
    proves: "memory is taken from all its users, and reused only when none is left",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
    soak_limit: None,
    play,
};

/// File on a disk, so that I/O can bypass the page cache.
const FILE: &str = "/var/tmp/frames";
/// First word of each of the file's pages.
const MARK: u32 = 0x5ea1_ca4e;

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        let driver = Driver::open()?;
        one_futex_in_two_mappings(&driver)?;
        for _ in 0..context.count(3, 300) {
            freed_under_io(&driver)?;
        }
        pinned_for_long(&driver)?;
        quarantined_from_the_pool(&driver)?;
        for version in ["6.1", "6.12"] {
            let in_context = |error: Finding| error.when(&format!("with a node of {version}"));
            granted::to_node(context, &driver, version, &[]).map_err(in_context)?;
        }
        Ok(())
    })
}

/// Plays what is granted to a node, with the further arguments `node`.
pub(in crate::base::scenario) fn grants_to(
    context: &Context,
    node: &[&str],
) -> Result<(), Finding> {
    with_cleanup(|| granted::to_node(context, &Driver::open()?, "6.12", node))
}

fn request(size: u64) -> Request {
    Request {
        size,
        min_phys: 0,
        max_phys: 0,
        chunk_max: 0,
        numa_node: NUMA_ANY,
        flags: 0,
    }
}

/// A mapped memory object of `granules`.
fn map_object(driver: &Driver, granules: u64) -> Result<(Memory, MappedPages), Finding> {
    let memory = driver.create_memory()?;
    memory.grow(&request(granules * GRANULE))?;
    let pages = MappedPages::map(&memory, (granules * GRANULE) as usize)?;
    Ok((memory, pages))
}

/// Allocated and quarantined memory, in bytes.
fn memory_counts(driver: &Driver) -> Result<(u64, u64), Finding> {
    let (machine, _) = driver.machine()?;
    Ok((machine.allocated, machine.quarantined))
}

fn wait_for_memory_counts(driver: &Driver, expected: (u64, u64)) -> Result<(), Finding> {
    wait_for(
        &format!("allocated and quarantined memory to be {expected:?}"),
        || Ok((memory_counts(driver)? == expected).then_some(())),
    )
}

/// A futex's waiter through one mapping is woken through another: both are the same futex.
fn one_futex_in_two_mappings(driver: &Driver) -> Result<(), Finding> {
    let (memory, one) = map_object(driver, 1)?;
    let other = MappedPages::map(&memory, GRANULE as usize)?;
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| one.futex_wait(300));
        wait_for("a waiter to be woken", || {
            Ok((other.futex_wake(300)? == 1).then_some(()))
        })?;
        let result = waiter.join();
        Finding::unless(matches!(result, Ok(Ok(()))), || {
            format!("it result so: {result:?}")
        })
    })
}

/// Direct I/O both ways, also by io_uring, on an object that is freed meanwhile: each ends with
/// EFAULT, and every page is returned.
fn freed_under_io(driver: &Driver) -> Result<(), Finding> {
    let file = direct_file()?;
    let before = memory_counts(driver)?;
    let (memory, pages) = map_object(driver, 4)?;
    let done = [const { AtomicUsize::new(0) }; 3];
    std::thread::scope(|scope| {
        let until_it_fails = |kind: usize| -> Result<(), Errno> {
            let mut ring = IoUring::new(8).map_err(|_| Errno::ENOSYS)?;
            loop {
                let round = done[kind].fetch_add(1, Ordering::Relaxed);
                let page = (3 * round + kind) % (4 * GRANULE as usize / PAGE);
                match kind {
                    0 => drop(pages.read_from(file.as_fd(), page)?),
                    1 => drop(pages.write_to(file.as_fd(), page)?),
                    _ => pages.through_ring(&mut ring, file.as_fd(), page)?,
                }
            }
        };
        let threads = [0, 1, 2].map(|kind| scope.spawn(move || until_it_fails(kind)));
        let began = wait_for("I/O to be under way", || {
            let all = done.iter().all(|count| count.load(Ordering::Relaxed) > 20);
            Ok((all || threads.iter().any(|thread| thread.is_finished())).then_some(()))
        });
        drop(memory);
        pages.unmap()?;
        began?;
        for (kind, thread) in threads.into_iter().enumerate() {
            let ended = thread
                .join()
                .map_err(|_| Finding::new("doing I/O failed"))?;
            assert_equal(
                &format!("the end of I/O of kind {kind}"),
                &ended,
                &Err(Errno::EFAULT),
            )?;
        }
        Ok::<_, Finding>(())
    })?;
    wait_for_memory_counts(driver, before)
}

fn direct_file() -> Result<File, Finding> {
    let mut file = File::create(FILE)?;
    file.write_all(&MARK.to_ne_bytes().repeat(PAGE / 4))?;
    file.sync_all()?;
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(FILE);
    Ok(direct?)
}

/// A page that is pinned by a pipe: page `pinned` of the object, which has the mark in it.
fn pin(pages: &MappedPages, pinned: usize) -> Result<PipeReader, Finding> {
    pages.read_from(direct_file()?.as_fd(), pinned)?;
    assert_equal("data read into a page", &pages.peek(pinned)?, &MARK)?;
    let (reader, writer) = pipe()?;
    assert_equal(
        "bytes in the pipe",
        &pages.splice_to(&writer, pinned)?,
        &PAGE,
    )?;
    Ok(reader)
}

/// A pinned page stays quarantined, and is counted as such, until it is unpinned.
fn pinned_for_long(driver: &Driver) -> Result<(), Finding> {
    let (allocated, quarantined) = memory_counts(driver)?;
    let (memory, pages) = map_object(driver, 2)?;
    let mut reader = pin(&pages, 700)?;
    drop((memory, pages));
    wait_for_memory_counts(driver, (allocated, quarantined + PAGE as u64))?;
    let info = insula_json(&["machine", "info", "--json"])?;
    let shown = info["memory"]["quarantined_bytes"].as_u64();
    assert_equal(
        "quarantined memory that is shown",
        &shown,
        &Some(PAGE as u64),
    )?;
    reader.read_exact(&mut vec![0; PAGE])?;
    drop(reader);
    wait_for_memory_counts(driver, (allocated, quarantined))
}

/// The pool gets everything back but the granule with a pinned page.
fn quarantined_from_the_pool(driver: &Driver) -> Result<(), Finding> {
    driver.reserve(&[], request(3 * GRANULE))?;
    let (memory, pages) = map_object(driver, 3)?;
    let reader = pin(&pages, 600)?;
    drop((memory, pages));
    let (machine, _) = driver.machine()?;
    let pool = (machine.pool_total, machine.pool_free);
    assert_equal("the pool", &pool, &(2 * GRANULE, 2 * GRANULE))?;
    assert_equal("quarantined memory", &machine.quarantined, &(PAGE as u64))?;
    drop(reader);
    let (allocated, _) = memory_counts(driver)?;
    wait_for_memory_counts(driver, (allocated, 0))?;
    Ok(driver.release()?)
}
