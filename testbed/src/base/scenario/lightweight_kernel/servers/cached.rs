//! Pages that a file server shares: the kernel reads the right ones, without a message, and programs map them.

use std::fs;

use super::on_disk::{IMAGE, run};
use super::{FILES, MAPPED, NODE, PROBE, SERVED, mapped, prints_the_same, there};
use crate::base::support::insula_command::{insula, insula_json};
use crate::base::{Context, Finding};

/// Reads of a file that is cached.
const READS: u64 = 2000;
/// Makes them, at random places and in order, by a process that has opened the file and one that has inherited it.
const READ: &str = "
import os, random
with open('/tmp/served/read', 'wb') as file:
    file.write(bytes(range(256)) * 400)
file = os.open('/tmp/served/read', os.O_RDONLY)
while os.read(file, 4096):
    pass
child = os.fork()
for number in range(500):
    at = random.randrange(100000)
    assert os.pread(file, 300, at) == bytes((at + byte) % 256 for byte in range(300))
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
for number in range(10):
    assert os.lseek(file, 0, os.SEEK_SET) == 0
    assert b''.join(iter(lambda: os.read(file, 1024), b'')) == bytes(range(256)) * 400
";
/// A store changes the file's time, which Linux does not do for files in memory.
const STORE: &str = "
import mmap, os
with open('/tmp/served/read', 'r+b') as file:
    mapped = mmap.mmap(file.fileno(), 4096)
    os.utime('/tmp/served/read', (1000, 1000))
    assert os.stat('/tmp/served/read').st_mtime == 1000
    mapped[5] = 66
    assert os.stat('/tmp/served/read').st_mtime > 1000000000
";

pub(super) fn play(context: &Context) -> Result<(), Finding> {
    // Blocks of the size of pages.
    run("mke2fs", &["-q", "-t", "ext4", "-b", "4096", IMAGE, "48M"])?;
    let start = ["servers", "start", NODE, "file", "--cpus", "1", "--", FILES];
    // Fewer pages than the files have that are played with.
    let disk = ["ext4", "--device", IMAGE, "--cache", "1M"];
    insula(&[&start[..], &disk].concat())?;
    insula(&there(SERVED, "rmdir /tmp/served/lost+found"))?;
    prints_the_same(&MAPPED)?;
    mapped::play()?;
    are_right(context)?;
    run_there(&["python3", "-c", STORE])?;
    insula(&there(SERVED, "mkdir -m 700 /tmp/served/lost+found"))?;
    insula(&["servers", "stop", NODE, "file"])?;
    run("e2fsck", &["-fn", IMAGE])?;
    Ok(fs::remove_file(IMAGE)?)
}

fn run_there(words: &[&str]) -> Result<(), Finding> {
    let place = ["exec", "--mount", SERVED, NODE, "--"];
    insula(&[&place[..], words].concat()).map(drop)
}

/// Threads find what they have written, whatever else is written and cut; and a server hears of the first reads only.
pub(super) fn are_right(context: &Context) -> Result<(), Finding> {
    let rounds = context.count(1500, 40_000).to_string();
    run_there(&[PROBE, "file_pages", "/tmp/served", &rounds])?;
    insula(&there(SERVED, "rm /tmp/served/pages*"))?;
    let before = received()?;
    run_there(&["python3", "-c", READ])?;
    let asked = received()? - before;
    println!("{asked} requests for {READS} reads, and what else the program does");
    Finding::unless(asked < READS / 10, || format!("{asked} requests"))
}

/// Requests that the server has received, with its shards.
fn received() -> Result<u64, Finding> {
    let listed = insula_json(&["servers", "ls", "--json", NODE])?;
    let servers = listed.as_array().into_iter().flatten();
    let received = servers.map(|one| one["endpoint"]["received"].as_u64());
    let received: Option<u64> = received.sum();
    received.ok_or_else(|| Finding::new(format!("{listed}")))
}
