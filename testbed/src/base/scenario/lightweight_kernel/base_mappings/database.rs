//! A database that a process of the node and one of the base write at the same time: sqlite's index
//! of the write-ahead log is memory that they share.

use std::process::{Command, Stdio};

use super::NODE;
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, command};

const PYTHON: &str = "/usr/bin/python3";
const DATABASE: &str = "/tmp/shared/database";
/// Additions of each process.
const ADDITIONS: u32 = 60;
const CREATES: &str = r#"
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
assert database.execute("pragma journal_mode=wal").fetchone() == ("wal",)
database.execute("create table sums(who text primary key, sum integer)")
database.execute("insert into sums values('all', 0)")
database.commit()
"#;
const ADDS: &str = r#"
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
for step in range(int(sys.argv[2])):
    database.execute("begin immediate")
    database.execute("update sums set sum = sum + 1 where who = 'all'")
    database.execute("insert into sums values(?, ?)", (f"{sys.argv[3]} {step}", step))
    database.execute("commit")
"#;
const CHECKS: &str = r#"
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
print(*database.execute("select sum, (select count(*) from sums) from sums where who = 'all'").fetchone(),
      *database.execute("pragma integrity_check").fetchone())
"#;
/// Python's shared memory: a block that forked processes fill, and read.
const SHARES: &str = r#"
from multiprocessing import Process, shared_memory, get_context
def fill(name, part):
    block = shared_memory.SharedMemory(name)
    block.buf[part * 4096:(part + 1) * 4096] = bytes([part + 1]) * 4096
    block.close()
if __name__ == "__main__":
    context = get_context("fork")
    block = shared_memory.SharedMemory(create=True, size=16 * 4096)
    fillers = [context.Process(target=fill, args=(block.name, part)) for part in range(16)]
    [filler.start() for filler in fillers]
    [filler.join() for filler in fillers]
    print(sum(block.buf), [filler.exitcode for filler in fillers])
    block.close()
    block.unlink()
"#;

/// Both processes add at the same time: nothing is lost.
pub(super) fn is_shared() -> Result<(), Finding> {
    let additions = ADDITIONS.to_string();
    python(&["-c", CREATES, DATABASE], Side::Base)?;
    let words = ["-c", ADDS, DATABASE, &additions, "node"];
    let mut on_node = begin(&words, Side::Node).spawn()?;
    python(&["-c", ADDS, DATABASE, &additions, "base"], Side::Base)?;
    assert_equal("the node's process", &on_node.wait()?.code(), &Some(0))?;
    let wanted = format!("{} {} ok\n", 2 * ADDITIONS, 2 * ADDITIONS + 1);
    for side in [Side::Base, Side::Node] {
        assert_equal(
            "the database",
            &python(&["-c", CHECKS, DATABASE], side)?,
            &wanted,
        )?;
    }
    Ok(())
}

/// Python's processes on the node share memory.
pub(super) fn processes_share_memory() -> Result<(), Finding> {
    let wanted = python(&["-c", SHARES], Side::Base)?;
    let found = python(&["-c", SHARES], Side::Node)?;
    assert_equal(
        "the sum of what processes of the node have shared",
        &found,
        &wanted,
    )
}

/// Where a program runs.
#[derive(Clone, Copy)]
enum Side {
    Node,
    Base,
}

fn begin(words: &[&str], side: Side) -> Command {
    match side {
        Side::Node => command(&[&["exec", NODE, "--", PYTHON], words].concat()),
        Side::Base => {
            let mut program = Command::new(PYTHON);
            program.args(words);
            program
        }
    }
}

/// Runs a program of Python. Returns its output.
fn python(words: &[&str], side: Side) -> Result<String, Finding> {
    let ended = begin(words, side).stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    Finding::unless(ended.status.success(), || {
        format!("{words:.60?}: {}, {text}", ended.status)
    })?;
    Ok(text)
}
