//! In a long run: the base works for an hour, which its watcher, by its usual rules, must find nothing in.

use std::fs;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::watcher_process::WatcherProcess;
use crate::base::support::insula_command::with_cleanup;
use crate::base::support::spare::shell;
use crate::base::{Context, Finding, Module, Scenario, Shape};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "watch_work",
    proves: "an hour of work is no finding: loads, modules, programs of BPF, tracing, nodes",
    machine: Shape::USUAL,
    module: Module::Loaded,
    // An hour is too long for each test, and a few minutes prove little.
    bases: &[],
    limit: Duration::from_secs(1200),
    soak_limit: Some(Duration::from_secs(3 * 3600)),
    play,
};

/// How long the base works, in minutes: usually, and in a long run.
const WORK_MIN: (u64, u64) = (2, 60);
/// Files of the modules, ours among them, by which their code is compared.
const MODULE_FILES: &str = "/tmp/modules";
const COPY_MODULES: &str =
    "set -e; mkdir /tmp/modules; cp /payload/insula.ko /payload/insula_quiet.ko /tmp/modules
for module in $(cut -d ' ' -f 1 /proc/modules) dummy loop; do
    [ $module = insula ] || cp \"$(modinfo -n $module)\" /tmp/modules
done";
/// Processes, memory, files, pipes and sockets, for some seconds.
const LOAD: &str = "stress-ng --quiet --temp-path /tmp --fork 2 --vm 1 --vm-bytes 64M --hdd 1 --hdd-bytes 32M \
                    --pipe 1 --sock 1 --sock-port 20000 --timer 1 --mmap 1 --mmap-bytes 16M --timeout 40";
/// What changes the kernel's text and tables, one after another.
const CHANGES: [&str; 4] = [MODULES, TRACING, BPF, NODES];
const MODULES: &str = "set -e; for round in 1 2 3; do
    insmod /payload/insula_quiet.ko; modprobe dummy; modprobe loop; rmmod insula_quiet; modprobe -r dummy loop
done";
const TRACING: &str = "set -e; mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
echo 'p do_sys_openat2' > kprobe_events; echo 'r vfs_read' >> kprobe_events; echo 1 > events/kprobes/enable
echo 'vfs_*' > set_ftrace_filter; echo function > current_tracer; echo 1 > events/sched/enable
sleep 3
echo 0 > events/sched/enable; echo nop > current_tracer; echo > set_ftrace_filter
echo 0 > events/kprobes/enable; echo > kprobe_events";
const BPF: &str = "python3 /tmp/bpf.py";
const BPF_PATH: &str = "/tmp/bpf.py";
const NODES: &str = "set -e; insula run --image lwk --cpus 1 --memory 64M --name quiet
insula exec quiet -- /bin/true; insula rm --force quiet";
/// Has a program of BPF called at a function's begin, through a trampoline in the kernel's text, and another
/// one filter what a socket receives. Sources: bpf(2), uapi/linux/bpf.h, Documentation/bpf/btf.rst.
const BPF_TEXT: &str = r#"
import ctypes, os, socket, struct, time
BPF, LOAD, ATTACH, TRACING, FENTRY = 321, 5, 17, 26, 24
FUNC, SIZES = 12, {1: 4, 3: 12, 14: 4, 17: 4}
EACH = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}
def function(wanted):
    btf = open("/sys/kernel/btf/vmlinux", "rb").read()
    head, types, size, names = struct.unpack_from("<4xIIII", btf)
    at, number = head + types, 1
    while at < head + types + size:
        name, info, _ = struct.unpack_from("<III", btf, at)
        kind, start = info >> 24 & 31, head + names + name
        if kind == FUNC and btf[start:btf.index(b"\0", start)] == wanted:
            return number
        at += 12 + SIZES.get(kind, 0) + EACH.get(kind, 0) * (info & 0xffff)
        number += 1
def bpf(command, attributes):
    buffer = ctypes.create_string_buffer(attributes, 160)
    answer = ctypes.CDLL(None, use_errno=True).syscall(BPF, command, buffer, 160)
    if answer < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer
# r0 = 0; exit
code = ctypes.create_string_buffer(bytes.fromhex("b700000000000000" "9500000000000000"))
licence = ctypes.create_string_buffer(b"GPL")
program = bpf(LOAD, struct.pack("<IIQQIIQII16sIIIIQIIQII", TRACING, 2, ctypes.addressof(code),
    ctypes.addressof(licence), 0, 0, 0, 0, 0, b"watched", 0, FENTRY, 0, 0, 0, 0, 0, 0, 0, function(b"vfs_read")))
attached = bpf(ATTACH, struct.pack("<QI", 0, program))
one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
# ret 1
filters = ctypes.create_string_buffer(struct.pack("<HBBI", 6, 0, 0, 1))
one.setsockopt(socket.SOL_SOCKET, 26, struct.pack("<H6xQ", 1, ctypes.addressof(filters)))
for _ in range(30):
    other.send(b"word")
    assert one.recv(9) == b"w"
    time.sleep(0.1)
"#;

fn play(context: &Context) -> Result<(), Finding> {
    fs::write(BPF_PATH, BPF_TEXT)?;
    with_cleanup(|| {
        shell(COPY_MODULES)?;
        let kernel = context.kernel(&context.version_of_the_base()?)?;
        let kernel = kernel.to_string_lossy();
        let options = ["--kernel", &kernel, "--modules", MODULE_FILES];
        let watcher = WatcherProcess::start(&[&["base"], &options[..]].concat())?;
        let rounds = works(context)?;
        context.figure("rounds", rounds as f64, "1")?;
        let events = watcher.all();
        let findings: Vec<_> = events.iter().filter(|one| !one["kind"].is_null()).collect();
        context.figure("findings", findings.len() as f64, "1")?;
        Finding::unless(findings.is_empty(), || {
            format!("in {rounds} rounds of work found: {findings:?}")
        })?;
        still_finds(watcher)
    })
}

/// Works for as long as it should. Returns how often everything was done.
fn works(context: &Context) -> Result<u64, Finding> {
    let limit = Duration::from_secs(60 * context.count(WORK_MIN.0, WORK_MIN.1));
    let (began, mut rounds) = (Instant::now(), 0);
    while began.elapsed() < limit {
        let mut load = Load::start()?;
        for change in CHANGES {
            shell(change)?;
        }
        load.end()?;
        rounds += 1;
    }
    context.figure("time", began.elapsed().as_secs_f64(), "s")?;
    Ok(rounds)
}

/// It has looked all the time, and sees a thread that hides.
fn still_finds(mut watcher: WatcherProcess) -> Result<(), Finding> {
    shell("insmod /payload/insula_fault.ko fault=unlisted")?;
    let found = watcher.wait_for("found", "task-hidden");
    shell("rmmod insula_fault")?;
    found.map(drop)
}

/// The load, ended when dropped.
struct Load(Child);

impl Load {
    fn start() -> Result<Self, Finding> {
        let mut words = LOAD.split_whitespace();
        let program = words.next().unwrap_or_default();
        Ok(Self(Command::new(program).args(words).spawn()?))
    }

    /// Waits until it has ended, which it must do well.
    fn end(&mut self) -> Result<(), Finding> {
        let status = self.0.wait()?;
        Finding::unless(status.success(), || format!("the load: {status}"))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
