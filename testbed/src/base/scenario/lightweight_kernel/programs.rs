//! Debian's programs, unmodified, on the lightweight kernel: same output and same end as on Linux.
//! And programs that end badly, which must not affect the node.

pub(super) mod alike;
mod bad;
mod inherited;
mod server;
mod stopped;
mod watched;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::base::support::insula_command::{
    assert_equal, command, insula, insula_json, names, numbers, try_insula, wait_for, with_cleanup,
};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "programs",
    proves: "Debian's programs run on the lightweight kernel as on Linux, and their faults stay theirs",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(500),
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

fn play(_: &Context) -> Result<(), Finding> {
    play_on(&[])
}

/// Plays it on nodes with the further arguments `node`.
pub(in crate::base::scenario) fn play_on(node: &[&str]) -> Result<(), Finding> {
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
        insula(&[&words[..], node].concat())?;
        alike::are_alike()?;
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
        in_one_command(node)
    })
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
    // Two cores at least have run programs, and none has worked for longer than there is the node.
    let ran_ns = stats[0]["ran_ns"].as_u64();
    let cores = programs["cores"].as_array().into_iter().flatten();
    let busy: Vec<_> = cores.map(|core| core["busy_ns"].as_u64()).collect();
    let worked = busy.iter().filter(|ns| **ns > Some(0)).count();
    Finding::unless(worked >= 2 && busy.iter().all(|ns| *ns <= ran_ns), || {
        format!("the cores of the node, which ran for {ran_ns:?} ns, worked for {busy:?}")
    })?;
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
fn in_one_command(node: &[&str]) -> Result<(), Finding> {
    let words = [
        "run",
        "--image",
        "lwk",
        "--memory",
        "64M,chunk=8M",
        "--name",
        "once",
    ];
    let run = |program: &[&str]| try_insula(&[&words, node, &["--"], program].concat());
    let status = run(&["/bin/sh", "-c", "echo hello; exit 7"])?;
    assert_equal("output", &status.output.as_str(), &"hello\n")?;
    assert_equal("status", &status.status, &Some(7))?;
    run(&["no-such-program"])?.refused(127, &["no-such-program"])?;
    wait_for("the node to be removed", || {
        let left = names(&["ps", "--all", "--json"])?;
        // Its supervisor, which has removed it, may still be ending.
        let users = fs::read_to_string("/sys/module/insula/refcnt")?;
        Ok((left.is_empty() && users.trim() == "0").then_some(()))
    })
}
