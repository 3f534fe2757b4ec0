//! Mapped files when what maps them, or what serves them, is killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use super::{NODE, SERVED, kept, there};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, command, insula, try_insula, wait_for};

/// Stores to a file, and is killed.
const KILLED: &str = "
import mmap, os
file = open('/tmp/served/killed', 'w+b')
file.truncate(1 << 20)
mapped = mmap.mmap(file.fileno(), 1 << 20)
mapped[0:5] = b'first'
mapped[500000:500006] = b'second'
os.kill(os.getpid(), 9)
";
/// Stores to a file; then waits for a line, and uses what it has mapped once more.
const LEFT: &str = "
import mmap, sys
file = open('/tmp/served/left', 'w+b')
file.truncate(8192)
mapped = mmap.mmap(file.fileno(), 8192)
mapped[0:5] = b'first'
mapped.flush()
mapped[4096:4102] = b'second'
print('ready', flush=True)
sys.stdin.readline()
print(mapped[0:5], mapped[4096:4102])
mapped[0:5] = b'other'
print(mapped[0:5])
try:
    mapped.flush()
except OSError as error:
    print(error.strerror)
";
/// What it prints then: its pages are there, and nobody writes them to a file any more.
const PRINTED: &str = "b'first' b'second'\nb'other'\nStale file handle\n";

pub(super) fn play() -> Result<(), Finding> {
    program_killed()?;
    server_killed()
}

/// What it has stored is the file's. With the file its pages go.
fn program_killed() -> Result<(), Finding> {
    let free = || insula(&there(SERVED, "stat -f -c %f /tmp/served"));
    let before = free()?;
    let words = [
        "exec", "--mount", SERVED, NODE, "--", "python3", "-c", KILLED,
    ];
    assert_equal("its status", &try_insula(&words)?.status, &None)?;
    let content = "head -c 5 /tmp/served/killed; tail -c +500001 /tmp/served/killed | head -c 6";
    assert_equal(
        "the file",
        &insula(&there(SERVED, content))?.as_str(),
        &"firstsecond",
    )?;
    insula(&there(SERVED, "rm /tmp/served/killed"))?;
    wait_for("its blocks to be free", || {
        Ok((free()? == before).then_some(()))
    })
}

/// What was synced is there for the next server; a program keeps the pages that it has.
fn server_killed() -> Result<(), Finding> {
    let words = ["exec", "--mount", SERVED, NODE, "--", "python3", "-c", LEFT];
    let mut program = command(&words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (stdin, stdout) = (program.stdin.take(), program.stdout.take());
    let (Some(mut stdin), Some(stdout)) = (stdin, stdout) else {
        return Err(Finding::new("it has no pipes"));
    };
    let mut stdout = BufReader::new(stdout);
    let mut ready = String::new();
    stdout.read_line(&mut ready)?;
    kept::killed(&kept::find()?)?;
    let content = || insula(&there(SERVED, "head -c 5 /tmp/served/left"));
    assert_equal("what was synced", &content()?.as_str(), &"first")?;
    stdin.write_all(b"\n")?;
    let mut printed = String::new();
    stdout.read_to_string(&mut printed)?;
    assert_equal("what it prints", &printed.as_str(), &PRINTED)?;
    Finding::unless(program.wait()?.success(), || "it has failed".into())?;
    assert_equal("what is there", &content()?.as_str(), &"first")?;
    insula(&there(SERVED, "rm /tmp/served/left")).map(drop)
}
