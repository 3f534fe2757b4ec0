//! A program of the lightweight kernel and a process of the base share a file. The program computes
//! on its pages without ever entering its kernel, while the base writes them by calls, writes them
//! back, moves them and reclaims them: no byte is wrong. A program whose file is truncated gets
//! SIGBUS, and the base goes on when a node is killed whose pages it is reclaiming.

mod database;
mod moved;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;

use crate::base::support::insula_command::{assert_equal, command, insula, wait_for, with_cleanup};
use crate::base::support::spare::shell;
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::lwk::memory::answers::{ANSWER, END, PAGE, PATTERN, QUESTION, WORDS, WRONG, pattern};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "base_mappings",
    proves: "a program shares a file with the base, whose memory management takes pages back",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_1, Flavour::V6_12],
    limit: Duration::from_secs(300),
    soak_limit: Some(Duration::from_secs(2400)),
    play,
};

const NODE: &str = "quiet";
const PROBE: &str = "/payload/bin/insula-probe";
/// Sequences of random steps, and steps of each.
const SEEDS: u64 = 2;
const LONG_SEEDS: u64 = 400;
const STEPS: &str = "400";
/// A file system on a loop device, and swap on another.
const FOLDER: &str = "/tmp/shared";
const PAGES: usize = 48;
/// Rounds in each file.
const ROUNDS: u64 = 16;
const LONG_ROUNDS: u64 = 4000;
/// Memory is taken offline in one of so many rounds.
const OFFLINE_ROUNDS: u64 = 16;

fn play(context: &Context) -> Result<(), Finding> {
    let rounds = context.count(ROUNDS, LONG_ROUNDS);
    prepare()?;
    let done = with_cleanup(|| {
        let words = ["run", "--image", "lwk", "--cpus", "2", "--memory", "256M"];
        insula(&[&words[..], &["--name", NODE]].concat())?;
        for path in ["/tmp/shared/file", "/dev/shm/file"] {
            Sharing::begin(path)?.play(rounds)?;
        }
        let seeds = context.count(SEEDS, LONG_SEEDS);
        (0..seeds).try_for_each(is_alike)?;
        moved::are_merged()?;
        database::processes_share_memory()?;
        database::is_shared()?;
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

/// A file that a program on the node has mapped, and the program.
struct Sharing {
    file: File,
    program: Child,
}

impl Sharing {
    fn begin(path: &str) -> Result<Self, Finding> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true);
        let file = file.open(path)?;
        file.set_len((PAGES * PAGE) as u64)?;
        let words = ["exec", NODE, "--", PROBE, "answers", path];
        let mut program = command(&words).stdout(Stdio::piped()).spawn()?;
        let output = program.stdout.take().map(BufReader::new);
        let mut line = String::new();
        output.map_or(Ok(0), |mut output| output.read_line(&mut line))?;
        assert_equal("the program's first line", &line.as_str(), &"answers\n")?;
        Ok(Self { file, program })
    }

    /// Asks, has the base take the pages back, and asks again.
    fn play(mut self, rounds: u64) -> Result<(), Finding> {
        let mut longest = Duration::ZERO;
        for round in 1..=rounds {
            (0..PAGES).try_for_each(|page| self.ask(page, round))?;
            let begin = Instant::now();
            self.take_back(round)?;
            longest = longest.max(begin.elapsed());
            self.await_answers(round)?;
        }
        println!("taking back {PAGES} pages took {longest:?} at most");
        self.put(0, QUESTION, END)?;
        let status = wait_for("the program to end", || Ok(self.program.try_wait()?))?;
        assert_equal("its status", &status.code(), &Some(0))
    }

    /// Writes a question's pattern, then the question.
    fn ask(&self, page: usize, question: u64) -> Result<(), Finding> {
        let words: Vec<u8> = (PATTERN..WORDS)
            .flat_map(|place| pattern(question, page, place).to_le_bytes())
            .collect();
        self.file.write_all_at(&words, offset(page, PATTERN))?;
        self.put(page, QUESTION, question)
    }

    fn put(&self, page: usize, place: usize, word: u64) -> Result<(), Finding> {
        Ok(self
            .file
            .write_all_at(&word.to_le_bytes(), offset(page, place))?)
    }

    /// Has Linux' memory management take back the program's pages, in one of its ways.
    fn take_back(&self, round: u64) -> Result<(), Finding> {
        if round % OFFLINE_ROUNDS == OFFLINE_ROUNDS / 2 {
            return moved::offline_a_block(round / OFFLINE_ROUNDS);
        }
        match round % 4 {
            0 => fs::write("/proc/sys/vm/compact_memory", "1")?,
            1 => self.file.sync_all()?,
            2 => self.page_out()?,
            _ => {
                self.file.sync_all()?;
                self.page_out()?;
                fs::write("/proc/sys/vm/drop_caches", "3")?;
            }
        }
        Ok(())
    }

    /// Reclaims what the program's proxy maps of the file.
    fn page_out(&self) -> Result<(), Finding> {
        let pid = self.program.id();
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let line = maps.lines().find(|line| line.ends_with("/file"));
        let range = line.and_then(|line| line.split(' ').next()?.split_once('-'));
        let (start, _) = range.ok_or_else(|| Finding::new(format!("not mapped:\n{maps}")))?;
        let start = usize::from_str_radix(start, 16).unwrap_or_default();
        page_out(pid, start, PAGES * PAGE)
    }

    /// Waits until each page has the answer to a question.
    fn await_answers(&self, question: u64) -> Result<(), Finding> {
        for page in 0..PAGES {
            let found = wait_for("the program's answer", || {
                let mut bytes = [0; 8];
                self.file.read_exact_at(&mut bytes, offset(page, ANSWER))?;
                let answer = u64::from_le_bytes(bytes);
                Ok([question, WRONG].contains(&answer).then_some(answer))
            })?;
            assert_equal(&format!("the answer in page {page}"), &found, &question)?;
        }
        Ok(())
    }
}

fn offset(page: usize, place: usize) -> u64 {
    (page * PAGE + place * 8) as u64
}

/// process_madvise(2) with `MADV_PAGEOUT`.
#[expect(unsafe_code, reason = "the C library has no function for it")]
fn page_out(pid: u32, start: usize, size: usize) -> Result<(), Finding> {
    let range = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(start),
        iov_len: size,
    };
    // SAFETY: it takes no pointers.
    let pidfd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the range outlives the call, and is of another process, whose pages keep their
    // content.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            pidfd,
            &raw const range,
            1,
            libc::MADV_PAGEOUT,
            0,
        )
    };
    // SAFETY: it was opened above, and nobody else has it.
    unsafe { libc::close(pidfd as i32) };
    Ok(Errno::result(done).map(drop)?)
}

/// A program whose file is truncated under it gets SIGBUS.
fn ends_behind_the_end_of_the_file() -> Result<(), Finding> {
    let mut sharing = Sharing::begin("/dev/shm/file")?;
    sharing.file.set_len(PAGE as u64)?;
    let status = wait_for("the program to end", || Ok(sharing.program.try_wait()?))?;
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_equal("its signal", &signal, &Some(libc::SIGBUS))
}

/// The base reclaims pages of a program while its node is killed: it does not wait for the node.
fn killed_while_the_base_reclaims() -> Result<(), Finding> {
    let mut sharing = Sharing::begin("/dev/shm/file")?;
    let mut kill = command(&["kill", NODE]).spawn()?;
    while sharing.program.try_wait()?.is_none() {
        for page in 0..PAGES {
            sharing.ask(page, 1)?;
        }
        // Once the proxy is gone it has no memory.
        let _ = sharing.page_out();
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
