//! The base takes back a page that the program has from a file: it waits for a core that uses the
//! page, but not for one that does not respond. Such a node is stopped.

use std::fs::{self, File};
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use insula_abi::lwk::{ACCESS_WRITE, COUNTERS_PAGES, Core, PAGE_SIZE, PTE_BASE, request};
use insula_abi::{Reason, State};
use nix::libc;

use super::fake_lwk::{AREA, FakeLwk};
use super::fake_program::{DEMAND, Program};
use super::{AWAKE, NODE, exec, wait_for_end};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, insula, wait_for};

const FILE: &str = "/dev/shm/taken-back";
/// Where the program maps it.
const AT: u64 = 0x5000_0000;
/// The node's first core, as the base sees it.
const CORE: u64 = AREA + (1 + COUNTERS_PAGES) as u64 * PAGE_SIZE;
/// Limits of the time for which the base waits for a node.
const LIMITS: std::ops::Range<Duration> = Duration::from_secs(4)..Duration::from_secs(30);

/// On a node of its own, as it ends.
pub(super) fn play() -> Result<(), Finding> {
    let fake = FakeLwk::start(NODE, 3)?;
    fake.accept_programs()?;
    let mut program = fake.exec(&mut exec(AWAKE))?;
    map_file(&program)?;
    responds(&program)?;
    does_not_respond(&program)?;
    let stopped = || {
        let (info, _) = fake.node.info()?;
        Ok((info.state == State::STOPPED).then_some(info.reason))
    };
    let reason = wait_for("the node to be stopped", stopped)?;
    assert_equal("the reason", &reason, &Reason::HUNG)?;
    let status = wait_for_end(&mut program.child)?;
    assert_equal("the proxy's status", &status.code(), &Some(125))?;
    fs::remove_file(FILE)?;
    drop(program);
    drop(fake);
    insula(&["rm", "--force", NODE]).map(drop)
}

fn map_file(program: &Program) -> Result<(), Finding> {
    fs::write(FILE, [7; PAGE_SIZE as usize])?;
    program.write(DEMAND.start, format!("{FILE}\0").as_bytes())?;
    let slot = program.first_slot()?;
    let open = [DEMAND.start, libc::O_RDWR as u64, 0];
    let file = program.call(slot, libc::SYS_open as u64, &open)?.result;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
    let mmap = [AT, PAGE_SIZE, protection, flags, file.cast_unsigned(), 0];
    let mapped = program.call(slot, libc::SYS_mmap as u64, &mmap)?.result;
    assert_equal("the mapping", &mapped.cast_unsigned(), &AT)
}

/// Has the base map the file's page in the program.
fn fault_in(program: &Program) -> Result<(), Finding> {
    // Makes the tables above the entry.
    assert_equal("a page before the fault", &program.is_mapped(AT)?, &false)?;
    let slot = program.first_slot()?;
    let found = program.call(slot, request::FAULT_IN, &[AT, ACCESS_WRITE])?;
    assert_equal("the fault", &found.result, &0)?;
    let entry = program.entry_at(AT)?;
    assert_equal("the entry's bit", &(entry & PTE_BASE), &PTE_BASE)
}

fn core_word(field: usize) -> u64 {
    CORE + field as u64
}

/// Has the core run the program, for all that the base can see.
fn enter(program: &Program) -> Result<(), Finding> {
    let memory = &program.fake.memory;
    let root = memory.start + program.root()?;
    memory.set(core_word(offset_of!(Core, running)), root)
}

/// Truncates the file. Returns how long that took.
fn truncate() -> Result<Duration, Finding> {
    let file = File::options().write(true).open(FILE)?;
    let began = Instant::now();
    file.set_len(0)?;
    let took = began.elapsed();
    file.set_len(PAGE_SIZE)?;
    Ok(took)
}

/// A core that flushes its TLB when it is asked to.
fn responds(program: &Program) -> Result<(), Finding> {
    fault_in(program)?;
    enter(program)?;
    let memory = &program.fake.memory;
    let is_done = AtomicBool::new(false);
    let flush = || {
        while !is_done.load(Ordering::Acquire) {
            let requests = memory.get(core_word(offset_of!(Core, flush_requests)))?;
            memory.set(core_word(offset_of!(Core, flushes_done)), requests)?;
            std::thread::yield_now();
        }
        Ok::<_, Finding>(())
    };
    let took = std::thread::scope(|scope| {
        let core = scope.spawn(flush);
        let took = truncate();
        is_done.store(true, Ordering::Release);
        core.join().map_err(|_| Finding::new("the core failed"))??;
        took
    })?;
    Finding::unless(took < LIMITS.start, || {
        format!("truncation took {took:?}, although the core responds")
    })?;
    assert_equal("the page after truncation", &program.is_mapped(AT)?, &false)
}

/// A core that goes on using the page: the base waits for a while, then stops the node.
fn does_not_respond(program: &Program) -> Result<(), Finding> {
    fault_in(program)?;
    enter(program)?;
    let took = truncate()?;
    println!("The base waited {took:?} for a core that does not respond.");
    Finding::unless(LIMITS.contains(&took), || {
        format!("truncation took {took:?}, while the core does not respond")
    })
}
