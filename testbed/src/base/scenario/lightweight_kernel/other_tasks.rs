//! Tasks of the base that access a program's memory, other than its proxy's threads in its calls: a
//! debugger and other processes, also when nothing of the program runs.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::ptrace;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::programs::alike::is_alike;
use crate::base::support::insula_command::{assert_equal, command, insula, wait_for, with_cleanup};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "other_tasks",
    proves: "any task of the base accesses a program's memory: debuggers, other processes, io_uring",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(300),
    soak_limit: None,
    play,
};

const NODE: &str = "quiet";
const PROBE: &str = "/payload/bin/insula-probe";

fn play(_: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        let words = ["run", "--image", "lwk", "--cpus", "2", "--memory", "256M"];
        insula(&[&words[..], &["--name", NODE]].concat())?;
        is_alike(&[PROBE, "others"])?;
        is_debugged()?;
        is_alike(&[PROBE, "io_uring"])?;
        is_alike(&[PROBE, "signal_files"])?;
        ENGINES.iter().try_for_each(|words| verifies(words))?;
        reads_signals()?;
        insula(&["rm", "--force", NODE]).map(drop)
    })
}

/// Ways in which fio uses io_uring: through the page cache and past it, by the kernel's own thread,
/// by several processes.
const ENGINES: &[&str] = &[
    "--direct=0 --fsync=16",
    "--direct=1 --registerfiles=1",
    "--direct=1 --sqthread_poll=1",
    "--direct=0 --force_async=2 --numjobs=2",
];

/// A child queues signals for its parent, which reads them from a descriptor.
fn reads_signals() -> Result<(), Finding> {
    const WORDS: &str = "/usr/bin/stress-ng --verify --sigfd 1 --sigfd-ops 400";
    let words: Vec<&str> = ["exec", NODE, "--"]
        .into_iter()
        .chain(WORDS.split(' '))
        .collect();
    insula(&words).map(drop)
}

/// fio writes a file and reads it back, and finds each block as it was written.
fn verifies(words: &str) -> Result<(), Finding> {
    const COMMON: &str = "/usr/bin/fio --name=verified --directory=/var/tmp --ioengine=io_uring \
        --rw=randrw --bs=4k --size=2M --iodepth=8 --verify=crc32c --verify_fatal=1 --unlink=1";
    let program = COMMON.split_whitespace().chain(words.split(' '));
    let words: Vec<&str> = ["exec", NODE, "--"].into_iter().chain(program).collect();
    let output = insula(&words)?;
    let is_right = output.contains("err= 0") && !output.contains("err=5");
    Finding::unless(is_right, || format!("{words:?}: {output}"))
}

/// A program that maps memory without touching it, and computes.
fn absent_memory() -> Result<(Child, u64), Finding> {
    let words = ["exec", NODE, "--", PROBE, "absent"];
    let mut program = command(&words).stdout(Stdio::piped()).spawn()?;
    let output = program.stdout.take().map(BufReader::new);
    let mut line = String::new();
    output.map_or(Ok(0), |mut output| output.read_line(&mut line))?;
    let at = u64::from_str_radix(line.trim_end(), 16);
    let at = at.map_err(|_| Finding::new(format!("no address: {line}")))?;
    Ok((program, at))
}

/// The base reads and writes pages that the program does not have yet, by ptrace(2) and by
/// `/proc/PID/mem`. The program ends when it sees what is written.
fn is_debugged() -> Result<(), Finding> {
    let (mut program, at) = absent_memory()?;
    let pid = Pid::from_raw(program.id().cast_signed());
    ptrace::attach(pid)?;
    waitpid(pid, None)?;
    let place = |page: u64| std::ptr::without_provenance_mut((at + page * 4096) as usize);
    assert_equal("a word", &ptrace::read(pid, place(1))?, &0)?;
    ptrace::write(pid, place(2), 77)?;
    assert_equal(
        "a word that was written",
        &ptrace::read(pid, place(2))?,
        &77,
    )?;
    ptrace::detach(pid, None)?;
    let memory = File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/{pid}/mem"))?;
    let mut word = [1; 8];
    memory.read_exact_at(&mut word, at + 2 * 4096)?;
    assert_equal("the file's word", &u64::from_le_bytes(word), &77)?;
    memory.read_exact_at(&mut word, at + 40 * 4096)?;
    assert_equal("an absent word", &u64::from_le_bytes(word), &0)?;
    memory.write_all_at(&1_u64.to_le_bytes(), at)?;
    let status = wait_for("the program to end", || Ok(program.try_wait()?))?;
    assert_equal("its status", &status.code(), &Some(0))
}
