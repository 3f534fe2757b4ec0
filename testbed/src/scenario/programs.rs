//! Debian's programs, unmodified, on the lightweight kernel: same output and same end as on Linux.
//! And programs that end badly, which must not affect the node.

mod bad;
mod inherited;
mod server;
mod stopped;
mod watched;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::kernels::Flavour;

use super::insula_command::{assert_equal, command, insula, insula_json, numbers, with_cleanup};
use super::{Context, Finding, Module, Scenario, Shape};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "programs",
    proves: "Debian's programs run on the lightweight kernel as on Linux, and their faults stay theirs",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: std::time::Duration::from_secs(500),
    soak_limit: None,
    play,
};

const NODE: &str = "quiet";
/// A static Rust program.
const PROBE: &str = "/payload/bin/insula-probe";

/// Runtime of the deadline server for normal tasks in each second, in ns: Linux's default.
const SHARE_NS: &str = "50000000";
/// File of the deadline server's runtime on the core that stays the base's.
const DEADLINE_SERVER: &str = "/sys/kernel/debug/sched/fair_server/cpu0/runtime";

fn play(_context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        // Real-time programs run there, too, and without the server normal tasks would starve. The
        // machine's first process has switched it off; kernels before 6.12 have none.
        if Path::new(DEADLINE_SERVER).exists() {
            fs::write(DEADLINE_SERVER, SHARE_NS)?;
        }
        let words = [
            "run",
            "--image",
            "lwk",
            "--cpus",
            "3",
            "--memory",
            "384M,chunk=32M",
            "--name",
            NODE,
        ];
        insula(&words)?;
        ALIKE.iter().try_for_each(Program::is_alike)?;
        uses_idle_cores()?;
        computes_on_the_node()?;
        measures()?;
        watched::is_watched()?;
        stopped::cores_are_free()?;
        stopped::computing_stops()?;
        inherited::can_be_changed()?;
        is_stressed()?;
        server::serves()?;
        bad::files()?;
        bad::pointers()?;
        bad::calls()?;
        bad::mass_kills()?;
        bad::limits()?;
        bad::ends()?;
        insula(&["rm", "--force", NODE])?;
        in_one_command()
    })
}

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
    program(&[PROBE, "late_replies"]),
    program(&[PROBE, "execute"]),
    program(&[PROBE, "leave"]),
    program(&[PROBE, "close_on_exec"]),
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

impl Program {
    fn is_alike(&self) -> Result<(), Finding> {
        let on_linux = output(&mut self.on_linux(), self.input)?;
        let on_node = output(&mut on_node(self.words), self.input)?;
        same(self.words, &on_node, &on_linux)
    }

    fn on_linux(&self) -> Command {
        let mut program = Command::new(self.words[0]);
        program.args(&self.words[1..]);
        program
    }
}

/// Two threads on one core: one of them moves to an idle core.
fn uses_idle_cores() -> Result<(), Finding> {
    let found = output(&mut on_node(&[PROBE, "balance"]), "")?;
    Finding::unless(found.status.success(), || {
        let error_output = String::from_utf8_lossy(&found.stderr);
        format!("threads and idle cores: {}, {error_output}", found.status)
    })
}

fn on_node(words: &[&str]) -> Command {
    command(&[&["exec", NODE, "--"], words].concat())
}

fn same(words: &[&str], found: &Output, wanted: &Output) -> Result<(), Finding> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let alike = found.stdout == wanted.stdout && found.status == wanted.status;
    Finding::unless(alike, || {
        format!(
            "{words:.60?} on the node: {}, {}{}\non Linux: {}, {}",
            found.status,
            text(&found.stdout),
            text(&found.stderr),
            wanted.status,
            text(&wanted.stdout)
        )
    })
}

fn output(program: &mut Command, input: &str) -> Result<Output, Finding> {
    let program = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = program.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    Ok(child.wait_with_output()?)
}

/// Asks the processor which core it is, then computes. Prints the id of the core's APIC, the
/// elapsed time, and the user time of its proxy, in microseconds.
const MEASURED_PROGRAM: &str = r#"
import ctypes, mmap, resource
code = bytes.fromhex("53" "b801000000" "0fa2" "89d8" "c1e818" "5b" "c3")
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
where = ctypes.CFUNCTYPE(ctypes.c_uint)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
def used():
    proxy = int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[11])
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime, proxy / 100
first, before = where(), used()
sum(i * i for i in range(8_000_000))
assert where() == first
print(first, *(int((now - then) * 1e6) for now, then in zip(used(), before)))
"#;

/// The node's cores execute its instructions, no others: while it computes, the proxy uses almost
/// no user time. It computes for seconds, so that a pause of the emulator on the proxy's turn does
/// not matter.
fn computes_on_the_node() -> Result<(), Finding> {
    // An emulated core's turn ends with each poll in vain: a proxy that polls two thousand times
    // before it sleeps would do so for minutes.
    let words = [
        "exec",
        "--polls",
        "0",
        NODE,
        "--",
        "/usr/bin/python3",
        "-c",
        MEASURED_PROGRAM,
    ];
    let printed = insula(&words)?;
    let words: Vec<u64> = printed
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let [apic_id, used_us, proxy_us] = words[..] else {
        return Err(Finding::new(format!("the program printed {printed}")));
    };
    let view = insula_json(&["inspect", NODE])?;
    let own = numbers(&view[0]["apic_ids"]);
    Finding::unless(own.iter().any(|&id| u64::from(id) == apic_id), || {
        format!("it ran on the core of APIC id {apic_id}, the node has {own:?}")
    })?;
    Finding::unless(proxy_us * 20 < used_us, || {
        format!("the proxy used {proxy_us} us, the program {used_us} us")
    })?;
    is_in_statistics()
}

/// The programs' calls are in the statistics.
fn is_in_statistics() -> Result<(), Finding> {
    let stats = insula_json(&["stats", NODE, "--json"])?;
    let programs = &stats[0]["programs"];
    let cores = programs["cores"].as_array().map_or(0, Vec::len);
    assert_equal("cores that count", &cores, &3)?;
    let calls = programs["calls"].as_array().into_iter().flatten();
    let counted = |name: &str, delegated: bool| {
        let mut same = calls.clone().filter(|call| call["name"] == name);
        same.any(|call| call["delegated"] == delegated && call["count"].as_u64() > Some(0))
    };
    let seen = counted("read", true) && counted("futex", false) && counted("rt_sigreturn", false);
    Finding::unless(seen, || format!("the node has counted {stats}"))?;
    let text = insula(&["stats", "--prometheus"])?;
    let line = "insula_node_cpus{node=\"quiet\"} 3";
    Finding::unless(text.contains(line), || {
        format!("for Prometheus there is {text}")
    })
}

/// A program that takes the time: a signal ends each of its rounds.
fn measures() -> Result<(), Finding> {
    let words = [
        "/usr/bin/openssl",
        "speed",
        "-seconds",
        "1",
        "-bytes",
        "1024",
        "sha256",
    ];
    let measured = output(&mut on_node(&words), "")?;
    let text = String::from_utf8_lossy(&measured.stdout).into_owned();
    let figure = text.lines().rfind(|line| line.starts_with("sha256"));
    let figure = figure.and_then(|line| {
        line.split_whitespace()
            .next_back()?
            .strip_suffix('k')?
            .parse::<f64>()
            .ok()
    });
    Finding::unless(
        measured.status.success() && figure.is_some_and(|figure| figure > 0.0),
        || format!("openssl measured {text}"),
    )
}

/// Several processes at once that compute, use memory, wake each other.
fn is_stressed() -> Result<(), Finding> {
    let words = "/usr/bin/stress-ng --cpu 2 --cpu-ops 20 --vm 1 --vm-bytes 4M --vm-ops 50 --futex 1 \
                 --futex-ops 1 --timeout 100 --metrics-brief";
    let words: Vec<&str> = words.split_whitespace().collect();
    let stressed = output(&mut on_node(&words), "")?;
    let text = [stressed.stdout, stressed.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let done = |name: &str| {
        let mut lines = text
            .lines()
            .filter_map(|line| line.split_once("] ")?.1.split_once(' '));
        let figures = lines.find(|(stressor, _)| *stressor == name)?.1;
        figures.split_whitespace().next()?.parse::<u64>().ok()
    };
    let least = [("cpu", 20), ("vm", 50), ("futex", 1)];
    let all = least.iter().all(|&(name, least)| done(name) >= Some(least));
    Finding::unless(stressed.status.success() && all, || {
        format!("stress-ng ended with {}: {text}", stressed.status)
    })
}

/// A node for one program, whose status is the command's; then the node powers off.
fn in_one_command() -> Result<(), Finding> {
    let words = [
        "run",
        "--image",
        "lwk",
        "--memory",
        "64M,chunk=8M",
        "--name",
        "once",
        "--",
    ];
    let run = |program: &[&str]| super::insula_command::try_insula(&[&words, program].concat());
    let status = run(&["/bin/sh", "-c", "echo hello; exit 7"])?;
    assert_equal("output", &status.output.as_str(), &"hello\n")?;
    assert_equal("status", &status.status, &Some(7))?;
    run(&["no-such-program"])?.refused(127, &["no-such-program"])?;
    super::insula_command::wait_for("the node to be removed", || {
        let left = super::insula_command::names(&["ps", "--all", "--json"])?;
        // Its supervisor, which has removed it, may still be ending.
        let users = fs::read_to_string("/sys/module/insula/refcnt")?;
        Ok((left.is_empty() && users.trim() == "0").then_some(()))
    })
}
