//! Memory that others use, and that is taken back from them while they do.

use std::fs::{File, OpenOptions};
use std::io::{PipeReader, Read, Write, pipe};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use insula::driver::{Driver, Memory};
use insula_abi::{GRANULE, NUMA_ANY, Request};
use io_uring::IoUring;
use nix::errno::Errno;
use nix::libc;

use super::insula_command::{assert_equal, attended, insula_json, wait_for};
use super::lent_pages::{LentPages, PAGE};
use super::{Context, Finding, Module, Scenario, Shape};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "frames",
    proves: "memory is taken back from whoever uses it, and given on only when nobody does",
    machine: Shape::USUAL,
    module: Module::Loaded,
    limit: Duration::from_secs(240),
    soak_limit: None,
    play,
};

/// On a disk, so that I/O can go past the page cache.
const FILE: &str = "/var/tmp/frames";
/// What the first word of each of the file's pages is.
const MARK: u32 = 0x5ea1_ca4e;

fn play(context: &Context) -> Result<(), Finding> {
    attended(|| {
        let driver = Driver::open()?;
        one_futex_in_two_mappings(&driver)?;
        for _ in 0..context.count(3, 300) {
            revoked_under_io(&driver)?;
        }
        held_for_long(&driver)?;
        held_out_of_the_pool(&driver)
    })
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

/// An object of `granules`, mapped.
fn lend(driver: &Driver, granules: u64) -> Result<(Memory, LentPages), Finding> {
    let memory = driver.create_memory()?;
    memory.grow(&request(granules * GRANULE))?;
    let pages = LentPages::map(&memory, (granules * GRANULE) as usize)?;
    Ok((memory, pages))
}

/// Taken and withheld memory, in bytes.
fn holdings(driver: &Driver) -> Result<(u64, u64), Finding> {
    let (machine, _) = driver.machine()?;
    Ok((machine.taken, machine.withheld))
}

fn wait_for_holdings(driver: &Driver, expected: (u64, u64)) -> Result<(), Finding> {
    wait_for(&format!("taken and withheld memory to be {expected:?}"), || {
        Ok((holdings(driver)? == expected).then_some(()))
    })
}

/// Who waits through one mapping is woken through another: they are the same place.
fn one_futex_in_two_mappings(driver: &Driver) -> Result<(), Finding> {
    let (memory, one) = lend(driver, 1)?;
    let other = LentPages::map(&memory, GRANULE as usize)?;
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| one.futex_wait(300));
        wait_for("a sleeper to be woken", || Ok((other.futex_wake(300)? == 1).then_some(())))?;
        let slept = sleeper.join();
        Finding::unless(matches!(slept, Ok(Ok(()))), || format!("it slept so: {slept:?}"))
    })
}

/// I/O past the page cache both ways, and by io_uring, all on memory that is taken back meanwhile:
/// each ends with EFAULT, and every page goes back.
fn revoked_under_io(driver: &Driver) -> Result<(), Finding> {
    let file = direct_file()?;
    let before = holdings(driver)?;
    let (memory, pages) = lend(driver, 4)?;
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
        memory.revoke()?;
        began?;
        for (kind, thread) in threads.into_iter().enumerate() {
            let ended = thread.join().map_err(|_| Finding::new("doing I/O failed"))?;
            assert_equal(&format!("the end of I/O of kind {kind}"), &ended, &Err(Errno::EFAULT))?;
        }
        Ok::<_, Finding>(())
    })?;
    assert_equal("a look at what was taken back", &pages.peek(0), &Err(Errno::EFAULT))?;
    let refused = memory.chunks().err().map(|error| error.errno);
    assert_equal("a call on it", &refused, &Some(Errno::ENODEV))?;
    let refused = LentPages::map(&memory, PAGE).err();
    assert_equal("another mapping", &refused, &Some(Errno::ENODEV))?;
    wait_for_holdings(driver, before)
}

fn direct_file() -> Result<File, Finding> {
    let mut file = File::create(FILE)?;
    file.write_all(&MARK.to_ne_bytes().repeat(PAGE / 4))?;
    file.sync_all()?;
    let direct = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(FILE);
    Ok(direct?)
}

/// A page that a pipe holds: `held` is the object's, and has the mark in it.
fn hold(pages: &LentPages, held: usize) -> Result<PipeReader, Finding> {
    pages.read_from(direct_file()?.as_fd(), held)?;
    assert_equal("what was read into a page", &pages.peek(held)?, &MARK)?;
    let (reader, writer) = pipe()?;
    assert_equal("bytes in the pipe", &pages.splice_to(&writer, held)?, &PAGE)?;
    Ok(reader)
}

/// What somebody holds on to is nobody else's, and is known of, until he lets go.
fn held_for_long(driver: &Driver) -> Result<(), Finding> {
    let (taken, withheld) = holdings(driver)?;
    let (memory, pages) = lend(driver, 2)?;
    let mut reader = hold(&pages, 700)?;
    memory.revoke()?;
    wait_for_holdings(driver, (taken, withheld + PAGE as u64))?;
    let info = insula_json(&["machine", "info", "--json"])?;
    let shown = info["memory"]["withheld_bytes"].as_u64();
    assert_equal("withheld memory that is shown", &shown, &Some(PAGE as u64))?;
    reader.read_exact(&mut vec![0; PAGE])?;
    drop(reader);
    wait_for_holdings(driver, (taken, withheld))
}

/// The pool has all back but the granule of which a page is held.
fn held_out_of_the_pool(driver: &Driver) -> Result<(), Finding> {
    driver.reserve(&[], request(3 * GRANULE))?;
    let (memory, pages) = lend(driver, 3)?;
    let reader = hold(&pages, 600)?;
    drop((memory, pages));
    let (machine, _) = driver.machine()?;
    let pool = (machine.pool_total, machine.pool_free);
    assert_equal("the pool", &pool, &(2 * GRANULE, 2 * GRANULE))?;
    assert_equal("withheld memory", &machine.withheld, &(PAGE as u64))?;
    drop(reader);
    let (taken, _) = holdings(driver)?;
    wait_for_holdings(driver, (taken, 0))?;
    Ok(driver.release()?)
}
