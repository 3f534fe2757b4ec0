//! A program of the lightweight kernel and a process of the base share a file. The program computes
//! on its pages without ever entering its kernel, while the base writes them by calls, writes them
//! back, moves them and reclaims them: no byte is wrong. A program whose file is truncated gets
//! SIGBUS, and the base goes on when a node is killed whose pages it is reclaiming.

mod database;
mod locks;
mod moved;
mod sharing;
mod taking_back;

use std::os::unix::fs::FileExt;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use nix::libc;
use sharing::{PAGES, Place, Sharing};
use taking_back::page_out;

use crate::base::support::insula_command::{assert_equal, command, insula, wait_for, with_cleanup};
use crate::base::support::spare::shell;
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::lwk::memory::answers::{PAGE, WORDS, pattern};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "base_mappings",
    proves: "a program shares a file with the base, whose memory management takes pages back",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_1],
    limit: Duration::from_secs(300),
    soak_limit: Some(Duration::from_secs(2400)),
    play,
};

const NODE: &str = "quiet";
const PROBE: &str = "/payload/bin/insula-probe";
/// Steps of a sequence of random ones.
const STEPS: &str = "400";
/// A file system on a loop device, and swap on another.
const FOLDER: &str = "/tmp/shared";
/// Rounds in each file: of a program on the base, for comparison, and of one on the node.
const ROUNDS_ON_BASE: Extent = Extent::new(16, Duration::from_secs(120));
const ROUNDS_ON_NODE: Extent = Extent::new(16, Duration::from_secs(600));
/// Sequences of random steps.
const SEQUENCES: Extent = Extent::new(2, Duration::from_secs(240));
/// Times that equal pages are merged.
const MERGES: Extent = Extent::new(1, Duration::from_secs(60));

/// How long something goes on: for a number of rounds, or for a time in a long run, which so lasts as
/// long on a computer that does other things as well.
#[derive(Clone, Copy)]
struct Extent {
    rounds: u64,
    long: Duration,
}

impl Extent {
    const fn new(rounds: u64, long: Duration) -> Self {
        Self { rounds, long }
    }

    /// The rounds, from 1 on.
    fn of(self, context: &Context) -> impl Iterator<Item = u64> {
        let (rounds, end) = context.select((self.rounds, None), (u64::MAX, Some(self.long)));
        let began = Instant::now();
        (1..=rounds).take_while(move |_| end.is_none_or(|end| began.elapsed() < end))
    }
}

fn play(context: &Context) -> Result<(), Finding> {
    play_on(context, &[])
}

/// Plays it on a node with the further arguments `node`.
pub(in crate::base::scenario) fn play_on(context: &Context, node: &[&str]) -> Result<(), Finding> {
    prepare()?;
    let done = with_cleanup(|| {
        let words = ["run", "--image", "lwk", "--cpus", "2", "--memory", "256M"];
        insula(&[&words[..], node, &["--name", NODE]].concat())?;
        for path in ["/tmp/shared/file", "/dev/shm/file"] {
            for (place, rounds) in [(Place::Base, ROUNDS_ON_BASE), (Place::Node, ROUNDS_ON_NODE)] {
                let took = Sharing::begin(path, place)?.play(rounds.of(context))?;
                took.report(context, &format!("{path}, program on the {place}"))?;
            }
        }
        SEQUENCES.of(context).try_for_each(is_alike)?;
        MERGES.of(context).try_for_each(|_| moved::are_merged())?;
        database::processes_share_memory()?;
        database::is_shared()?;
        locks::outlive_their_owners()?;
        has_huge_pages()?;
        ends_behind_the_end_of_the_file()?;
        killed_while_the_base_reclaims()?;
        insula(&["rm", "--force", NODE]).map(drop)
    });
    shell(&format!(
        "umount {FOLDER}; swapoff /dev/loop6; losetup -d /dev/loop5 /dev/loop6; \
         modprobe -r loop; rm -f /tmp/disk /tmp/swap /dev/shm/file"
    ))?;
    done
}

/// Mounts a file system with a disk below it, and provides swap.
fn prepare() -> Result<(), Finding> {
    shell(&format!(
        "modprobe loop && mkdir -p {FOLDER} && truncate -s 32M /tmp/disk /tmp/swap && \
         mke2fs -q -F -t ext4 /tmp/disk && losetup /dev/loop5 /tmp/disk && \
         losetup /dev/loop6 /tmp/swap && mkswap /dev/loop6 >/dev/null && \
         swapon /dev/loop6 && mount -t ext4 /dev/loop5 {FOLDER}"
    ))
    .map(drop)
}

/// Random steps on mapped files have the same results on the node as on the base, which swaps.
fn is_alike(seed: u64) -> Result<(), Finding> {
    let seed = (100 + seed).to_string();
    let words = [PROBE, "random", &seed, STEPS];
    let on_base = Command::new(PROBE).args(&words[1..]).output()?;
    Finding::unless(on_base.status.success(), || {
        format!("{words:?} on the base: {on_base:?}")
    })?;
    let on_node = command(&[&["exec", NODE, "--"], &words[..]].concat()).output()?;
    let lines = |output: &Output| -> Vec<String> {
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().map(str::to_owned).collect()
    };
    let (found, wanted) = (lines(&on_node), lines(&on_base));
    let differs = found.iter().zip(&wanted).find(|(one, other)| one != other);
    let is_same = on_node.status == on_base.status && found == wanted;
    Finding::unless(is_same, || {
        format!(
            "seed {seed}: {}, {differs:?} on node and base",
            on_node.status
        )
    })
}

/// Files of hugetlbfs are the same on the node as on the base.
fn has_huge_pages() -> Result<(), Finding> {
    const FOLDER: &str = "/tmp/huge";
    shell(&format!(
        "mkdir -p {FOLDER} && echo 8 > /proc/sys/vm/nr_hugepages && mount -t hugetlbfs none {FOLDER}"
    ))?;
    let play = |place: Place| -> Result<Output, Finding> {
        Ok(place.command(&["huge", FOLDER]).output()?)
    };
    let (wanted, found) = (play(Place::Base), play(Place::Node));
    shell(&format!(
        "umount {FOLDER} && echo 0 > /proc/sys/vm/nr_hugepages"
    ))?;
    let (wanted, found) = (wanted?, found?);
    let is_same = wanted.status.success() && found.status == wanted.status;
    Finding::unless(is_same && found.stdout == wanted.stdout, || {
        format!("huge pages on the base: {wanted:?}\non the node: {found:?}")
    })
}

/// A program whose file is truncated under it gets SIGBUS.
fn ends_behind_the_end_of_the_file() -> Result<(), Finding> {
    let mut sharing = Sharing::begin("/dev/shm/file", Place::Node)?;
    sharing.file.set_len(PAGE as u64)?;
    let status = wait_for("the program to end", || Ok(sharing.program.try_wait()?))?;
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_equal("its signal", &signal, &Some(libc::SIGBUS))
}

/// The base reclaims pages of a program while its node is killed: it does not wait for the node.
fn killed_while_the_base_reclaims() -> Result<(), Finding> {
    let mut sharing = Sharing::begin("/dev/shm/file", Place::Node)?;
    let mut kill = command(&["kill", NODE]).spawn()?;
    while sharing.program.try_wait()?.is_none() {
        for page in 0..PAGES {
            sharing.ask(page, 1)?;
        }
        // Once the proxy is gone it has no memory.
        let _ = page_out(sharing.program.id());
    }
    assert_equal("the end of `insula kill`", &kill.wait()?.code(), &Some(0))?;
    let mut content = vec![0; PAGES * PAGE];
    sharing.file.read_exact_at(&mut content, 0)?;
    let wanted = pattern(1, PAGES - 1, WORDS - 1).to_le_bytes();
    assert_equal(
        "the file's last word",
        &&content[content.len() - 8..],
        &&wanted[..],
    )
}
