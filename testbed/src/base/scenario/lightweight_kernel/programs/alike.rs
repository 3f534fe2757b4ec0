//! Programs with the same output and the same end on the node as on Linux.

use std::process::{Command, Output};

use super::{PROBE, on_node, output};
use crate::base::Finding;

/// A program with the same output wherever it runs.
struct Program {
    words: &'static [&'static str],
    input: &'static str,
}

const fn program(words: &'static [&'static str]) -> Program {
    Program { words, input: "" }
}

/// A shell that catches a signal of its own.
const TRAP: &str = "trap 'echo caught' USR1; kill -USR1 $$; echo after; exit 3";
/// Threads, a handler, a timer's signal, waiting for signals, a pipe that nobody reads.
const THREADS_AND_SIGNALS: &str = r#"
import os, signal, threading, time
found = []
def add(n):
    found.append(sum(i * n for i in range(5000)))
threads = [threading.Thread(target=add, args=(n,)) for n in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sorted(found))
signal.signal(signal.SIGUSR1, lambda *_: print("user"))
os.kill(os.getpid(), signal.SIGUSR1)
signal.signal(signal.SIGALRM, lambda *_: print("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.1)
signal.pause()
print(signal.sigtimedwait({signal.SIGUSR2}, 0.01))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
os.kill(os.getpid(), signal.SIGUSR2)
print(signal.sigpending(), signal.sigwait({signal.SIGUSR2}))
signal.setitimer(signal.ITIMER_REAL, 0.1)
began = time.monotonic()
time.sleep(0.3)
print(time.monotonic() - began >= 0.3)
read, write = os.pipe()
os.close(read)
try: os.write(write, b"x")
except BrokenPipeError: print("broken pipe")
print(time.process_time() > 0, time.thread_time() > 0)
"#;
/// Subshells, a pipe, a background program, a script of its own.
const SHELL: &str = "(echo child; exit 3); echo $?; echo b a c | tr ' ' '\\n' | sort; sleep 0 & wait $!; \
     printf '#!/bin/sh -e\\necho $# $1\\n' > /tmp/own; chmod +x /tmp/own; /tmp/own x y; rm /tmp/own; \
     /no/such; echo $?; /etc/passwd; echo $?; sh -c 'kill -TERM $$'; echo $?";
/// Processes that share memory, programs with captured output, close-on-exec.
const PROCESSES: &str = r#"
import mmap, os, signal, subprocess
shared, own = mmap.mmap(-1, 8192), bytearray(b"parent")
signal.signal(signal.SIGCHLD, lambda *_: print("a child has ended"))
pid = os.fork()
if pid == 0:
    shared[4096:4101], own[:] = b"hello", b"child"
    os._exit(7)
ended = os.waitpid(pid, 0)
print(ended[0] == pid, os.waitstatus_to_exitcode(ended[1]), shared[4096:4101], own)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0: os._exit(1)
try: os.wait()
except ChildProcessError: print("nobody to wait for")
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
print(subprocess.run(["/bin/cat"], input=b"through a pipe", capture_output=True))
print(subprocess.run("echo $0 $A; exit 5", shell=True, env={"A": "b"}, capture_output=True))
hidden = os.open("/etc/passwd", os.O_RDONLY)
given = os.open("/etc/passwd", os.O_RDONLY)
os.set_inheritable(given, True)
check = f"test -e /proc/self/fd/{hidden}; echo $?; test -e /proc/self/fd/{given}; echo $?"
print(subprocess.run(["/bin/sh", "-c", check], close_fds=False, capture_output=True).stdout)
try: subprocess.run(["/no/such"])
except FileNotFoundError as error: print(error)
try: os.posix_spawn("/no/such", ["x"], {})
except FileNotFoundError as error: print(error)
print(os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", "exit 4"], {}), 0)[1])
child = subprocess.Popen(["/bin/sleep", "100"])
child.kill()
print(child.wait())
os.execv("/bin/echo", ["echo", "at last"])
"#;
/// Signals from process to process, process groups, and wait statuses.
const GROUPS: &str = r#"
import os, signal, time
def child(action):
    pid = os.fork()
    if pid == 0:
        action()
        os._exit(0)
    return pid
got = []
signal.signal(signal.SIGUSR1, lambda *_: got.append("user"))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
parent = os.getpid()
pid = child(lambda: os.kill(parent, signal.SIGUSR1))
print(signal.sigwait({signal.SIGUSR1}), os.waitpid(pid, 0)[1])
def answers():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
    os.kill(parent, signal.SIGUSR1)
    os._exit(signal.sigwait({signal.SIGTERM, signal.SIGUSR2}))
pid = child(answers)
signal.sigwait({signal.SIGUSR1})
os.kill(pid, signal.SIGUSR2)
ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print(ended.si_pid == pid, ended.si_status, ended.si_code == os.CLD_EXITED)
ended = os.waitid(os.P_PID, pid, os.WEXITED)
print(ended.si_pid == pid, ended.si_status, ended.si_signo)
group = child(signal.pause)
os.setpgid(group, group)
others = [child(signal.pause) for _ in range(2)]
for other in others: os.setpgid(other, group)
print(os.getpgid(others[1]) == group, os.getpgrp() == os.getpgid(0), os.getpgrp() != group)
print(os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG))
os.killpg(group, signal.SIGTERM)
ends = [os.waitid(os.P_PGID, group, os.WEXITED) for _ in range(3)]
print(sorted(one.si_pid for one in ends) == sorted([group, *others]))
print([(one.si_status, one.si_code == os.CLD_KILLED) for one in ends])
try: os.killpg(group, 0)
except ProcessLookupError as error: print(error)
read, write = os.pipe()
def leads():
    os.setsid()
    os.write(write, b"%d %d" % (os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()))
os.waitpid(child(leads), 0)
print(os.read(read, 9))
"#;
/// An interactive shell on a terminal of its own: background and foreground jobs stop, continue and
/// end.
const TERMINAL: &str = r#"
import os, pty
SCRIPT = r'''
stopped() { until [ -n "$(jobs -s)" ]; do sleep 0.02; done; }
ended() { while kill -0 $1 2> /dev/null; do sleep 0.02; done; wait $1; echo $2 $?; jobs > /dev/null; }
for round in 1 2 3; do
  sleep 60 & kill -STOP $!; stopped; bg > /dev/null; kill $!; ended $! sleeps
  sleep 60 & kill -STOP $!; stopped; kill $!; kill -CONT $!; ended $! stops
  cat & stopped; kill -KILL $!; ended $! reads
  sh -c 'kill -TSTP $$; exit 5' & stopped; fg > /dev/null; echo again $?; jobs > /dev/null
  sleep 0.05 & fg > /dev/null; echo waits $?
  echo a | cat | tr a b
done
'''
pid, terminal = pty.fork()
if pid == 0:
    os.execv("/bin/bash", ["bash", "--norc", "--noprofile", "-i", "-c", SCRIPT])
text = b""
try:
    while piece := os.read(terminal, 4096): text += piece
except OSError: pass
words = ("sleeps", "stops", "reads", "again", "waits", "b", "bash")
lines = [line for line in text.decode().split("\r\n") if line.startswith(words)]
print(lines, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;
const SQL: &str = "create table t(a integer primary key, b text); \
     with recursive n(i) as (select 1 union all select i + 1 from n where i < 500) \
     insert into t select i, hex(i * i) from n; \
     create index k on t(b); select count(*), sum(a), min(b), max(b) from t; \
     select a from t where b like '%39' order by b limit 5;";
const ALIGNMENT: &str =
    ">a\nACGTACGTACGGT\n>b\nACGTACGTATGGT\n>c\nACGAACGTATCGT\n>d\nTCGAACGTATCGA\n";

const ALIKE: &[Program] = &[
    program(&["/bin/busybox", "sha256sum", "/bin/busybox"]),
    program(&["/bin/busybox", "ls", "-l", "/etc/passwd"]),
    program(&[
        "/bin/busybox",
        "awk",
        "BEGIN { for (i = 0; i < 2000; i++) s += i * i; print s }",
    ]),
    program(&[
        "/bin/busybox",
        "find",
        "/etc",
        "-maxdepth",
        "1",
        "-name",
        "pass*",
    ]),
    program(&["/bin/busybox", "sh", "-c", TRAP]),
    program(&["/bin/busybox", "sh", "-c", SHELL]),
    // It is the one that was executed last.
    program(&["/bin/bash", "-c", "exec /usr/bin/readlink /proc/self/exe"]),
    program(&["/usr/bin/python3", "-c", THREADS_AND_SIGNALS]),
    program(&["/usr/bin/python3", "-c", PROCESSES]),
    program(&[PROBE, "threads"]),
    program(&[PROBE, "memory"]),
    program(&[PROBE, "files"]),
    program(&[PROBE, "areas"]),
    program(&[PROBE, "layout"]),
    program(&[PROBE, "priorities"]),
    program(&[PROBE, "rseq"]),
    program(&[PROBE, "registers"]),
    program(&[PROBE, "clocks"]),
    program(&["/usr/bin/python3", "-c", GROUPS]),
    program(&[PROBE, "processes"]),
    program(&[PROBE, "signals"]),
    program(&[PROBE, "restarts"]),
    program(&[PROBE, "robust_locks"]),
    program(&[PROBE, "jobs"]),
    program(&["/usr/bin/python3", "-c", TERMINAL]),
    program(&[PROBE, "remote_faults"]),
    program(&[PROBE, "replaced"]),
    program(&[PROBE, "shared_files"]),
    program(&[PROBE, "private_files"]),
    program(&[PROBE, "random", "1", "600"]),
    program(&[PROBE, "random", "2", "600"]),
    program(&[PROBE, "forked"]),
    program(&[PROBE, "locked"]),
    program(&[PROBE, "event_rings"]),
    program(&[PROBE, "late_replies"]),
    program(&[PROBE, "execute"]),
    program(&[PROBE, "leave"]),
    program(&[PROBE, "close_on_exec"]),
    program(&[PROBE, "executable"]),
    program(&["/usr/bin/sqlite3", ":memory:", SQL]),
    program(&["/usr/bin/openssl", "dgst", "-sha3-256", "/bin/busybox"]),
    Program {
        words: &["/bin/busybox", "sort", "-r"],
        input: "b\na\nc\n",
    },
    // Programs of OpenMP, then of Go.
    Program {
        words: &["/usr/bin/fasttreeMP", "-nt", "-quiet"],
        input: ALIGNMENT,
    },
    Program {
        words: &["/usr/bin/fzf", "--filter", "an"],
        input: "apple\nbanana\ncherry\norange\n",
    },
];

/// Plays each on the node and on Linux.
pub(super) fn are_alike() -> Result<(), Finding> {
    ALIKE.iter().try_for_each(Program::is_alike)
}

/// Plays a program on the node and on Linux.
pub(in super::super) fn is_alike(words: &'static [&'static str]) -> Result<(), Finding> {
    program(words).is_alike()
}

impl Program {
    fn is_alike(&self) -> Result<(), Finding> {
        let on_linux = output(&mut self.on_linux(), self.input)?;
        // A probe that fails on both, alike, would prove nothing.
        Finding::unless(self.words[0] != PROBE || on_linux.status.success(), || {
            let error_output = String::from_utf8_lossy(&on_linux.stderr);
            format!(
                "{:?} on Linux: {}, {error_output}",
                self.words, on_linux.status
            )
        })?;
        let on_node = output(&mut on_node(self.words), self.input)?;
        same(self.words, &on_node, &on_linux)
    }

    fn on_linux(&self) -> Command {
        let mut program = Command::new(self.words[0]);
        program.args(&self.words[1..]);
        program
    }
}

/// Compares what a program did on the node with what it did on Linux.
pub(super) fn same(words: &[&str], found: &Output, wanted: &Output) -> Result<(), Finding> {
    let alike = found.stdout == wanted.stdout && found.status == wanted.status;
    Finding::unless(alike, || {
        let [found_text, errors, wanted_text] = [&found.stdout, &found.stderr, &wanted.stdout]
            .map(|bytes| String::from_utf8_lossy(bytes));
        format!(
            "{words:.60?} on the node: {}, {errors}\non Linux: {}\n{}",
            found.status,
            wanted.status,
            difference(&found_text, &wanted_text)
        )
    })
}

/// The first line in which two outputs differ, with some before it.
fn difference(found: &str, wanted: &str) -> String {
    const BEFORE: usize = 5;
    let alike = found.lines().zip(wanted.lines());
    let alike = alike.take_while(|(one, other)| one == other).count();
    let before: Vec<_> = wanted
        .lines()
        .take(alike)
        .skip(alike.saturating_sub(BEFORE))
        .collect();
    let next = |text: &str| text.lines().nth(alike).unwrap_or("the end").to_owned();
    format!(
        "line {}, after\n{}\non the node: {}\non Linux: {}",
        alike + 1,
        before.join("\n"),
        next(found),
        next(wanted)
    )
}
