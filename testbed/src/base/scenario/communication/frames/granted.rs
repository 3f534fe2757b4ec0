//! Memory of a process of the base that is granted to a node, which may lose it at any moment.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use insula_channel::Message;
use insula_driver::channel::End;
use insula_driver::{Driver, GrantTable};
use nix::errno::Errno;

use super::{FILE, MARK, map_object, pin};
use crate::base::scenario::communication::mapped_pages::{MappedPages, PAGE};
use crate::base::support::insula_command::{
    TIMEOUT, assert_equal, insula, text, try_insula, wait_for,
};
use crate::base::support::nodes::peer_node::Peer;
use crate::base::support::nodes::test_node::{TestNode, peer_image};
use crate::base::{Context, Finding};
use crate::node::peer::Request as Requests;

/// Time limit of a node to revoke grants.
const NODE_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of granted pages.
const GRANTED_PAGES: usize = 700;

/// Plays on a node with a kernel of that version, and further arguments.
pub(super) fn to_node(
    context: &Context,
    driver: &Driver,
    version: &str,
    node: &[&str],
) -> Result<(), Finding> {
    let image = peer_image(context, version)?;
    let source = [&["--image", &image][..], node].concat();
    let name = format!("importer-{version}");
    let node = TestNode::start(&name, &source, &["--memory", "256M"], "peer")?;
    node.wait_until_ready()?;
    let peer = Peer::new(driver, &name)?;
    of_every_kind(&peer, driver)?;
    truncated(&peer)?;
    not_writable(&peer)?;
    revoked_under_load(&peer, context.count(200, 20_000))?;
    granter_exits(&peer)?;
    does_not_revoke(&peer, &node)?;
    restarts_when_unpinned(&peer, &node)?;
    insula(&["rm", "--force", &name]).map(drop)
}

/// Granted memory, as seen from the node.
struct Importer {
    end: End,
}

impl Importer {
    fn new(peer: &Peer, table: &GrantTable, pages: &MappedPages) -> Result<Self, Finding> {
        let mut end = peer.open(0)?;
        let (number, size) = (table.id().to_le_bytes(), pages.size() as u32);
        let address = (pages.address(0) as u64).to_le_bytes();
        let words = [&number[..], &address, &size.to_le_bytes()].concat();
        end.send(&Message::bytes(Requests::Import as u8, &words), TIMEOUT)?;
        end.receive(&mut [0; 8], TIMEOUT)?;
        Ok(Self { end })
    }

    /// Word at an address of the granting process, as the node sees it.
    fn load(&mut self, address: *mut u8) -> Result<Result<u64, Errno>, Finding> {
        let answer = self.send_request(Requests::Load, address, &[])?;
        Ok(match <[u8; 8]>::try_from(&answer[..]) {
            Ok(word) => Ok(u64::from_le_bytes(word)),
            Err(_) => Err(errno_of(&answer)),
        })
    }

    fn store(&mut self, address: *mut u8, word: u64) -> Result<Result<(), Errno>, Finding> {
        let answer = self.send_request(Requests::Store, address, &word.to_le_bytes())?;
        Ok(if answer.is_empty() {
            Ok(())
        } else {
            Err(errno_of(&answer))
        })
    }

    /// Accesses a granted page. The base may have revoked it by itself, for writeback or migration:
    /// then it is granted once more.
    fn access<T>(
        &mut self,
        table: &GrantTable,
        address: *mut u8,
        writable: bool,
        access: impl Fn(&mut Self) -> Result<Result<T, Errno>, Finding>,
    ) -> Result<Result<T, Errno>, Finding> {
        match access(self)? {
            Err(Errno::EFAULT) => {
                table.grant(address as u64, PAGE as u64, writable)?;
                access(self)
            }
            touched => Ok(touched),
        }
    }

    /// Word at an address that is granted read-only.
    fn load_granted(
        &mut self,
        table: &GrantTable,
        address: *mut u8,
    ) -> Result<Result<u64, Errno>, Finding> {
        self.access(table, address, false, |own| own.load(address))
    }

    fn send_request(
        &mut self,
        what: Requests,
        address: *mut u8,
        value: &[u8],
    ) -> Result<Vec<u8>, Finding> {
        let words = [&(address as u64).to_le_bytes()[..], value].concat();
        self.end
            .send(&Message::bytes(what as u8, &words), TIMEOUT)?;
        let mut buffer = [0; 64];
        let received = self.end.receive(&mut buffer, TIMEOUT)?;
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

/// Word of the page with that number.
fn word_of(page: usize) -> u64 {
    0x6c65_6e74_0000_0000 | page as u64
}

/// Grants pages and compares some of them from the node's side, both ways.
fn grant_and_compare(peer: &Peer, pages: &MappedPages) -> Result<(GrantTable, Importer), Finding> {
    let table = peer.node.create_grant_table(NODE_TIMEOUT)?;
    for page in 0..pages.size() / PAGE {
        pages.poke(page, word_of(page))?;
    }
    let listed = table.grant(pages.address(0) as u64, pages.size() as u64, true)?;
    assert_equal("pages listed", &listed.len(), &(pages.size() / PAGE))?;
    let mut importer = Importer::new(peer, &table, pages)?;
    for page in [0, 1, pages.size() / PAGE - 1] {
        let address = pages.address(page);
        let seen = importer.access(&table, address, true, |node| node.load(address))?;
        assert_equal("word read by the node", &seen, &Ok(word_of(page)))?;
        let store = |node: &mut Importer| node.store(address, !word_of(page));
        let stored = importer.access(&table, address, true, store)?;
        assert_equal("a write of the node", &stored, &Ok(()))?;
        assert_equal(
            "word read by the base",
            &pages.peek(page)?,
            &(!word_of(page) as u32),
        )?;
    }
    Ok((table, importer))
}

/// Anonymous memory, a file's pages and a memory object's, all granted by the same call; revoked,
/// and granted again.
fn of_every_kind(peer: &Peer, driver: &Driver) -> Result<(), Finding> {
    let file = sized_file()?;
    let (_memory, of_pool) = map_object(driver, 2)?;
    let of_file = MappedPages::map(&file, GRANTED_PAGES * PAGE)?;
    for pages in [
        MappedPages::anonymous(GRANTED_PAGES * PAGE)?,
        of_file,
        of_pool,
    ] {
        let (table, mut importer) = grant_and_compare(peer, &pages)?;
        let (first, size) = (pages.address(0) as u64, pages.size() as u64);
        table.revoke(first, size)?;
        let seen = importer.load(pages.address(1))?;
        assert_equal("a revoked page", &seen, &Err(Errno::EFAULT))?;
        table.grant(first, size, false)?;
        let seen = importer.load_granted(&table, pages.address(1))?;
        assert_equal("a page granted again", &seen, &Ok(!word_of(1)))?;
    }
    // The node's writes to the file's pages are in the file.
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
    file.set_len((GRANTED_PAGES * PAGE) as u64)?;
    Ok(file)
}

/// The file is truncated while its pages are granted: the node has lost them when the call returns,
/// and may get them again when the file has grown again.
fn truncated(peer: &Peer) -> Result<(), Finding> {
    let file = sized_file()?;
    let pages = MappedPages::map(&file, GRANTED_PAGES * PAGE)?;
    let (table, mut importer) = grant_and_compare(peer, &pages)?;
    file.set_len(3 * PAGE as u64)?;
    let seen = importer.load(pages.address(3))?;
    assert_equal("a page behind the file's end", &seen, &Err(Errno::EFAULT))?;
    let (third, size) = (pages.address(3) as u64, PAGE as u64);
    let refused = table
        .grant(third, size, false)
        .err()
        .map(|error| error.errno);
    assert_equal("a grant of unmapped memory", &refused, &Some(Errno::EFAULT))?;
    file.set_len((GRANTED_PAGES * PAGE) as u64)?;
    table.grant(third, size, false)?;
    let seen = importer.load_granted(&table, pages.address(3))?;
    assert_equal("the new page", &seen, &Ok(0))
}

/// Pages granted read-only cannot be written; nor can pages that are read-only in the granting
/// process.
fn not_writable(peer: &Peer) -> Result<(), Finding> {
    let pages = MappedPages::anonymous(4 * PAGE)?;
    let table = peer.node.create_grant_table(NODE_TIMEOUT)?;
    table.grant(pages.address(0) as u64, 4 * PAGE as u64, false)?;
    let mut importer = Importer::new(peer, &table, &pages)?;
    let refused = importer.store(pages.address(2), 1)?;
    assert_equal("writing to it", &refused, &Err(Errno::EFAULT))?;
    let seen = importer.load_granted(&table, pages.address(2))?;
    assert_equal("reading it", &seen, &Ok(0))?;
    for (address, size) in [
        (1, PAGE as u64),
        (0, 0),
        (u64::MAX - 4095, 8192),
        (1 << 62, 4096),
    ] {
        let refused = table
            .grant(address, size, false)
            .err()
            .map(|error| error.errno);
        assert_equal("an invalid grant", &refused, &Some(Errno::EINVAL))?;
    }
    let refused = table
        .grant(0, 1 << 60, false)
        .err()
        .map(|error| error.errno);
    assert_equal(
        "a grant of more memory than exists",
        &refused,
        &Some(Errno::ENOMEM),
    )?;
    let refused = peer
        .node
        .create_grant_table(Duration::from_millis(1))
        .err()
        .map(|error| error.errno);
    assert_equal(
        "a timeout that is too short",
        &refused,
        &Some(Errno::EINVAL),
    )
}

/// The base discards the pages again and again while the node reads them and the process grants
/// them again: the node sees the current content, or no page.
fn revoked_under_load(peer: &Peer, rounds: u64) -> Result<(), Finding> {
    let pages = MappedPages::anonymous(8 * PAGE)?;
    let table = peer.node.create_grant_table(NODE_TIMEOUT)?;
    let (first, size) = (pages.address(0) as u64, pages.size() as u64);
    table.grant(first, size, true)?;
    let mut importer = Importer::new(peer, &table, &pages)?;
    let over = AtomicUsize::new(0);
    let seen = std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let result = (0..rounds).try_for_each(|_| {
                pages.discard(0..4)?;
                table.grant(first, size, true)?;
                Ok::<_, Finding>(())
            });
            over.store(1, Ordering::Relaxed);
            result
        });
        let mut seen = [0_u64; 2];
        let mut read = || {
            while over.load(Ordering::Relaxed) == 0 {
                match importer.load(pages.address(2))? {
                    Ok(0) => seen[0] += 1,
                    Err(Errno::EFAULT) => seen[1] += 1,
                    other => return Err(Finding::new(format!("the node saw {other:?}"))),
                }
            }
            Ok(seen)
        };
        let result = read();
        changing
            .join()
            .map_err(|_| Finding::new("changing failed"))??;
        result
    })?;
    println!(
        "under load: zeros {} times, no page {} times",
        seen[0], seen[1]
    );
    Ok(())
}

/// The granting process ends, with all its grants.
fn granter_exits(peer: &Peer) -> Result<(), Finding> {
    let pages = MappedPages::anonymous(16 * PAGE)?;
    let (table, mut importer) = grant_and_compare(peer, &pages)?;
    drop(table);
    let seen = importer.load(pages.address(0))?;
    assert_equal(
        "a grant of a process that has ended",
        &seen,
        &Err(Errno::EFAULT),
    )
}

/// The node's kernel crashes: the base gets its pages back in time all the same, and the node ends.
fn does_not_revoke(peer: &Peer, node: &TestNode) -> Result<(), Finding> {
    let pages = MappedPages::anonymous(GRANTED_PAGES * PAGE)?;
    let table = peer.node.create_grant_table(Duration::from_millis(300))?;
    table.grant(pages.address(0) as u64, pages.size() as u64, true)?;
    let mut end = peer.open(1)?;
    end.send(&Message::bytes(Requests::Crash as u8, &[]), TIMEOUT)?;
    wait_for("the node to crash", || {
        let began = Instant::now();
        pages.discard(0..1)?;
        Finding::unless(began.elapsed() < TIMEOUT / 3, || {
            "discarding took for ever".into()
        })?;
        let again = table.grant(pages.address(0) as u64, PAGE as u64, true);
        Ok(again.is_err().then_some(()))
    })?;
    // The exit poll may have found the crash first.
    let ended = node.wait_for_end()?;
    let reason = text(&ended["reason"]);
    Finding::unless(
        ["unresponsive", "crashed"].contains(&reason.as_str()),
        || format!("the node ended as {reason}"),
    )?;
    pages.discard(0..GRANTED_PAGES)?;
    let refused = table.grant(pages.address(0) as u64, PAGE as u64, true);
    let refused = refused.err().map(|error| error.errno);
    assert_equal(
        "a grant to a node that has ended",
        &refused,
        &Some(Errno::EPIPE),
    )
}

/// A stopped node is not restarted while its memory is pinned for I/O.
fn restarts_when_unpinned(peer: &Peer, node: &TestNode) -> Result<(), Finding> {
    let memory = peer.node.memory()?;
    // Beyond the chunk below 1 MiB.
    let pinned = 1000;
    let pages = MappedPages::map(&memory, (pinned + 1) * PAGE)?;
    let reader = pin(&pages, pinned)?;
    try_insula(&["restart", &node.name])?.refused(1, &["still reading or writing its memory"])?;
    drop(reader);
    insula(&["restart", &node.name])?;
    assert_equal(
        "the earlier content",
        &pages.peek(pinned)?.eq(&MARK),
        &false,
    )?;
    node.wait_until_ready()
}
