//! Memory that others use, programs of the base and a node, and that is taken back from them while
//! they do.

use std::fs::{File, OpenOptions};
use std::io::{PipeReader, Read, Write, pipe};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use insula::channel::End;
use insula::driver::{Driver, Lender, Memory};
use insula_abi::{GRANULE, NUMA_ANY, Request};
use insula_channel::Message;
use io_uring::IoUring;
use nix::errno::Errno;
use nix::libc;

use super::insula_command::{
    PATIENCE, ask, assert_equal, attended, insula, insula_json, text, wait_for,
};
use super::lent_pages::{LentPages, PAGE};
use super::peer_node::Peer;
use super::test_node::{TestNode, peer_image};
use super::{Context, Finding, Module, Scenario, Shape};
use crate::kernels::Flavour;
use crate::peer::Request as Requests;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "frames",
    proves: "memory is taken back from whoever uses it, and given on only when nobody does",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
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
        held_out_of_the_pool(&driver)?;
        for version in ["6.1", "6.12"] {
            let told = |error: Finding| error.when(&format!("with a node of {version}"));
            lent_to_node(context, &driver, version).map_err(told)?;
        }
        Ok(())
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
    wait_for(
        &format!("taken and withheld memory to be {expected:?}"),
        || Ok((holdings(driver)? == expected).then_some(())),
    )
}

/// Who waits through one mapping is woken through another: they are the same place.
fn one_futex_in_two_mappings(driver: &Driver) -> Result<(), Finding> {
    let (memory, one) = lend(driver, 1)?;
    let other = LentPages::map(&memory, GRANULE as usize)?;
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| one.futex_wait(300));
        wait_for("a sleeper to be woken", || {
            Ok((other.futex_wake(300)? == 1).then_some(()))
        })?;
        let slept = sleeper.join();
        Finding::unless(matches!(slept, Ok(Ok(()))), || {
            format!("it slept so: {slept:?}")
        })
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
    assert_equal(
        "a look at what was taken back",
        &pages.peek(0),
        &Err(Errno::EFAULT),
    )?;
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
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(FILE);
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

/// How long the node may take to give back.
const NODE_PATIENCE: Duration = Duration::from_secs(10);
/// Pages that are lent.
const LENT_PAGES: usize = 700;

fn lent_to_node(context: &Context, driver: &Driver, version: &str) -> Result<(), Finding> {
    let image = peer_image(context, version)?;
    let source = ["--image", &image];
    let name = format!("borrower-{version}");
    let node = TestNode::start(&name, &source, &["--memory", "256M"], "peer")?;
    node.wait_until_ready()?;
    let peer = Peer::new(driver, &name)?;
    of_every_kind(&peer, driver)?;
    truncated(&peer)?;
    not_writable(&peer)?;
    taken_under_load(&peer, context.count(200, 20_000))?;
    lender_leaves(&peer)?;
    does_not_give_back(&peer, &node)?;
    begins_anew_when_nobody_holds_it(&peer, &node)?;
    insula(&["rm", "--force", &name]).map(drop)
}

/// What a lender has lent, seen from the node.
struct Borrower {
    end: End,
}

impl Borrower {
    fn new(peer: &Peer, lender: &Lender, pages: &LentPages) -> Result<Self, Finding> {
        let mut end = peer.open(0)?;
        let (number, size) = (lender.number().to_le_bytes(), pages.size() as u32);
        let address = (pages.address(0) as u64).to_le_bytes();
        let words = [&number[..], &address, &size.to_le_bytes()].concat();
        end.send(&Message::bytes(Requests::Borrow as u8, &words), PATIENCE)?;
        end.receive(&mut [0; 8], PATIENCE)?;
        Ok(Self { end })
    }

    /// The word at an address of the lender's, as the node sees it.
    fn load(&mut self, address: *mut u8) -> Result<Result<u64, Errno>, Finding> {
        let answer = self.ask(Requests::Load, address, &[])?;
        Ok(match <[u8; 8]>::try_from(&answer[..]) {
            Ok(word) => Ok(u64::from_le_bytes(word)),
            Err(_) => Err(errno_of(&answer)),
        })
    }

    fn store(&mut self, address: *mut u8, word: u64) -> Result<Result<(), Errno>, Finding> {
        let answer = self.ask(Requests::Store, address, &word.to_le_bytes())?;
        Ok(if answer.is_empty() {
            Ok(())
        } else {
            Err(errno_of(&answer))
        })
    }

    /// Touches a page that is lent. The base may have taken it back by itself, to write a file out or
    /// to move memory: then it is lent once more.
    fn touch<T>(
        &mut self,
        lender: &Lender,
        address: *mut u8,
        writable: bool,
        touch: impl Fn(&mut Self) -> Result<Result<T, Errno>, Finding>,
    ) -> Result<Result<T, Errno>, Finding> {
        match touch(self)? {
            Err(Errno::EFAULT) => {
                lender.grant(address as u64, PAGE as u64, writable)?;
                touch(self)
            }
            touched => Ok(touched),
        }
    }

    /// The word at an address of what is lent for reading.
    fn load_lent(
        &mut self,
        lender: &Lender,
        address: *mut u8,
    ) -> Result<Result<u64, Errno>, Finding> {
        self.touch(lender, address, false, |own| own.load(address))
    }

    fn ask(&mut self, what: Requests, address: *mut u8, value: &[u8]) -> Result<Vec<u8>, Finding> {
        let words = [&(address as u64).to_le_bytes()[..], value].concat();
        self.end
            .send(&Message::bytes(what as u8, &words), PATIENCE)?;
        let mut buffer = [0; 64];
        let received = self.end.receive(&mut buffer, PATIENCE)?;
        Ok(received.bytes(&buffer).to_vec())
    }
}

fn errno_of(answer: &[u8]) -> Errno {
    let number = answer
        .iter()
        .rev()
        .fold(0, |sum, &byte| sum << 8 | i32::from(byte));
    Errno::from_raw(number)
}

/// The word of a page with that number.
fn word_of(page: usize) -> u64 {
    0x6c65_6e74_0000_0000 | page as u64
}

/// Lends pages and looks through the node's eyes at some of them, both ways.
fn lend_and_compare(peer: &Peer, pages: &LentPages) -> Result<(Lender, Borrower), Finding> {
    let lender = peer.node.lend(NODE_PATIENCE)?;
    for page in 0..pages.size() / PAGE {
        pages.poke(page, word_of(page))?;
    }
    let listed = lender.grant(pages.address(0) as u64, pages.size() as u64, true)?;
    assert_equal("pages listed", &listed.len(), &(pages.size() / PAGE))?;
    let mut borrower = Borrower::new(peer, &lender, pages)?;
    for page in [0, 1, pages.size() / PAGE - 1] {
        let address = pages.address(page);
        let seen = borrower.touch(&lender, address, true, |node| node.load(address))?;
        assert_equal("what the node sees", &seen, &Ok(word_of(page)))?;
        let store = |node: &mut Borrower| node.store(address, !word_of(page));
        let stored = borrower.touch(&lender, address, true, store)?;
        assert_equal("what the node may do", &stored, &Ok(()))?;
        assert_equal(
            "what the base sees",
            &pages.peek(page)?,
            &(!word_of(page) as u32),
        )?;
    }
    Ok((lender, borrower))
}

/// Anonymous memory, a file's pages and a memory object's, all by the same call; taken back by the
/// lender, and lent again.
fn of_every_kind(peer: &Peer, driver: &Driver) -> Result<(), Finding> {
    let file = sized_file()?;
    let (_memory, of_pool) = lend(driver, 2)?;
    let of_file = LentPages::map(&file, LENT_PAGES * PAGE)?;
    for pages in [LentPages::anonymous(LENT_PAGES * PAGE)?, of_file, of_pool] {
        let (lender, mut borrower) = lend_and_compare(peer, &pages)?;
        let (first, size) = (pages.address(0) as u64, pages.size() as u64);
        lender.take(first, size)?;
        let seen = borrower.load(pages.address(1))?;
        assert_equal("what was taken back", &seen, &Err(Errno::EFAULT))?;
        lender.grant(first, size, false)?;
        let seen = borrower.load_lent(&lender, pages.address(1))?;
        assert_equal("what was lent again", &seen, &Ok(!word_of(1)))?;
    }
    // What the node wrote into the file's pages is in the file.
    let mut word = [0; 8];
    file.read_at(&mut word, PAGE as u64)?;
    assert_equal("the file", &u64::from_le_bytes(word), &!word_of(1))
}

fn sized_file() -> Result<File, Finding> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(FILE)?;
    file.set_len((LENT_PAGES * PAGE) as u64)?;
    Ok(file)
}

/// The file is cut off while its pages are lent: the node has lost them when the call returns, and
/// may have them again when the file has grown again.
fn truncated(peer: &Peer) -> Result<(), Finding> {
    let file = sized_file()?;
    let pages = LentPages::map(&file, LENT_PAGES * PAGE)?;
    let (lender, mut borrower) = lend_and_compare(peer, &pages)?;
    file.set_len(3 * PAGE as u64)?;
    let seen = borrower.load(pages.address(3))?;
    assert_equal("a page behind the file's end", &seen, &Err(Errno::EFAULT))?;
    let (third, size) = (pages.address(3) as u64, PAGE as u64);
    let refused = lender
        .grant(third, size, false)
        .err()
        .map(|error| error.errno);
    assert_equal("lending what is not there", &refused, &Some(Errno::EFAULT))?;
    file.set_len((LENT_PAGES * PAGE) as u64)?;
    lender.grant(third, size, false)?;
    let seen = borrower.load_lent(&lender, pages.address(3))?;
    assert_equal("the new page", &seen, &Ok(0))
}

/// What was lent for reading can only be read; so can what the lender itself may not write.
fn not_writable(peer: &Peer) -> Result<(), Finding> {
    let pages = LentPages::anonymous(4 * PAGE)?;
    let lender = peer.node.lend(NODE_PATIENCE)?;
    lender.grant(pages.address(0) as u64, 4 * PAGE as u64, false)?;
    let mut borrower = Borrower::new(peer, &lender, &pages)?;
    let refused = borrower.store(pages.address(2), 1)?;
    assert_equal("writing to it", &refused, &Err(Errno::EFAULT))?;
    let seen = borrower.load_lent(&lender, pages.address(2))?;
    assert_equal("reading it", &seen, &Ok(0))?;
    for (address, size) in [
        (1, PAGE as u64),
        (0, 0),
        (u64::MAX - 4095, 8192),
        (1 << 62, 4096),
    ] {
        let refused = lender
            .grant(address, size, false)
            .err()
            .map(|error| error.errno);
        assert_equal("lending nonsense", &refused, &Some(Errno::EINVAL))?;
    }
    let refused = lender
        .grant(0, 1 << 60, false)
        .err()
        .map(|error| error.errno);
    assert_equal("lending more than there is", &refused, &Some(Errno::ENOMEM))?;
    let refused = peer
        .node
        .lend(Duration::from_millis(1))
        .err()
        .map(|error| error.errno);
    assert_equal("no patience at all", &refused, &Some(Errno::EINVAL))
}

/// The base discards the pages again and again while the node reads them and the lender lends them
/// anew: what the node sees is always what is there, or nothing.
fn taken_under_load(peer: &Peer, rounds: u64) -> Result<(), Finding> {
    let pages = LentPages::anonymous(8 * PAGE)?;
    let lender = peer.node.lend(NODE_PATIENCE)?;
    let (first, size) = (pages.address(0) as u64, pages.size() as u64);
    lender.grant(first, size, true)?;
    let mut borrower = Borrower::new(peer, &lender, &pages)?;
    let over = AtomicUsize::new(0);
    let seen = std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let result = (0..rounds).try_for_each(|_| {
                pages.discard(0..4)?;
                lender.grant(first, size, true)?;
                Ok::<_, Finding>(())
            });
            over.store(1, Ordering::Relaxed);
            result
        });
        let mut seen = [0_u64; 2];
        let mut look = || {
            while over.load(Ordering::Relaxed) == 0 {
                match borrower.load(pages.address(2))? {
                    Ok(0) => seen[0] += 1,
                    Err(Errno::EFAULT) => seen[1] += 1,
                    other => return Err(Finding::new(format!("the node saw {other:?}"))),
                }
            }
            Ok(seen)
        };
        let looked = look();
        changing
            .join()
            .map_err(|_| Finding::new("changing failed"))??;
        looked
    })?;
    println!(
        "seen under load: {} times zeros, {} times nothing",
        seen[0], seen[1]
    );
    Ok(())
}

/// The process that lends ends, with all that it has lent.
fn lender_leaves(peer: &Peer) -> Result<(), Finding> {
    let pages = LentPages::anonymous(16 * PAGE)?;
    let (lender, mut borrower) = lend_and_compare(peer, &pages)?;
    drop(lender);
    let seen = borrower.load(pages.address(0))?;
    assert_equal(
        "what a lender that has left had lent",
        &seen,
        &Err(Errno::EFAULT),
    )
}

/// The node's kernel crashes: the base has its pages back in time all the same, and the node ends.
fn does_not_give_back(peer: &Peer, node: &TestNode) -> Result<(), Finding> {
    let pages = LentPages::anonymous(LENT_PAGES * PAGE)?;
    let lender = peer.node.lend(Duration::from_millis(300))?;
    lender.grant(pages.address(0) as u64, pages.size() as u64, true)?;
    let mut end = peer.open(1)?;
    end.send(&Message::bytes(Requests::Crash as u8, &[]), PATIENCE)?;
    wait_for("the node to crash", || {
        let began = Instant::now();
        pages.discard(0..1)?;
        Finding::unless(began.elapsed() < PATIENCE / 3, || {
            "discarding took for ever".into()
        })?;
        let again = lender.grant(pages.address(0) as u64, PAGE as u64, true);
        Ok(again.is_err().then_some(()))
    })?;
    // Whoever looks for crashed nodes may have been faster.
    let ended = node.wait_for_end()?;
    let reason = text(&ended["reason"]);
    Finding::unless(
        ["unresponsive", "crashed"].contains(&reason.as_str()),
        || format!("the node ended as {reason}"),
    )?;
    pages.discard(0..LENT_PAGES)?;
    let refused = lender.grant(pages.address(0) as u64, PAGE as u64, true);
    let refused = refused.err().map(|error| error.errno);
    assert_equal(
        "lending to a node that has ended",
        &refused,
        &Some(Errno::EPIPE),
    )
}

/// A stopped node is not put together anew as long as somebody does I/O on its memory.
fn begins_anew_when_nobody_holds_it(peer: &Peer, node: &TestNode) -> Result<(), Finding> {
    let memory = peer.node.memory()?;
    // Behind what lies below 1 MiB.
    let held = 1000;
    let pages = LentPages::map(&memory, (held + 1) * PAGE)?;
    let reader = hold(&pages, held)?;
    ask(&["restart", &node.name])?.refused(1, &["still reading or writing its memory"])?;
    drop(reader);
    insula(&["restart", &node.name])?;
    assert_equal(
        "what was there before",
        &pages.peek(held)?.eq(&MARK),
        &false,
    )?;
    node.wait_until_ready()
}
