//! Tools to find faults of nodes: dumps, backtraces, gdb.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kimage::Btf;
use serde_json::{Value, json};

use crate::base::support::insula_command::{
    Answer, TIMEOUT, assert_equal, command, insula, insula_json, text, try_insula, wait_for,
    with_cleanup,
};
use crate::base::support::nodes::test_node::{TestNode, add_image, log};
use crate::base::{Context, Finding, HANG_SYMBOL, Module, Scenario, Shape, hang};
use crate::host::kernels::Flavour;
use crate::host::payload::equipment::TASKS_PATH;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "post_mortem",
    proves: "a node's memory becomes a core file that drgn reads, its cores print backtraces, gdb reads both",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
    soak_limit: None,
    play,
};

const IMAGE: &str = "debian";
/// A kernel with 128 MiB has far more threads than this.
const TASKS_MIN: usize = 20;
/// Start of the kernel's half of the address space.
const KERNEL_HALF: u64 = 1 << 63;

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        // drgn takes the types of the nodes' kernel from the base, which therefore runs the same.
        add_image(context, IMAGE, &context.version_of_the_base()?)?;
        let alive = start("alive", "2", "compute", &[])?;
        alive.wait_until_ready()?;
        each_core_prints_a_backtrace(&alive)?;
        live_dump_has_registers(&alive)?;
        gdb_reads(&alive)?;
        alive.assert_works()?;
        alive.remove()?;
        hung_dump_has_registers(context)?;
        // It spins after its panic until that is noticed: not while the other parts need the cores.
        let dead = start("dead", "1", "panic", &["--dump-on-crash"])?;
        let view = dead.wait_for_end()?;
        assert_equal("reason", &view["reason"].as_str(), &Some("crashed"))?;
        crashed_dump_is_whole(&dead)?;
        gdb_sees_registers(&dead)?;
        dumps_are_kept_within_limits(&dead)?;
        invalid_requests_are_refused(&dead)
    })
}

fn start(name: &str, cpus: &str, task: &str, more: &[&str]) -> Result<TestNode, Finding> {
    let size = ["--cpus", cpus, "--memory", "128M"];
    TestNode::start(name, &["--image", IMAGE], &[&size, more].concat(), task)
}

/// An NMI makes each core print its backtrace, once, and go on.
fn each_core_prints_a_backtrace(node: &TestNode) -> Result<(), Finding> {
    let printed = insula(&["backtrace", &node.name])?;
    for core in ["cpu 0", "cpu 1"] {
        let title = format!("NMI backtrace for {core}");
        assert_equal(&title, &printed.matches(&title).count(), &1)?;
    }
    // For an idle core some kernels print only that.
    let places = printed.matches("RIP: ").count() + printed.matches("idling at").count();
    Finding::unless(places >= 2, || {
        format!("the cores print no backtraces: {printed}")
    })?;
    node.assert_works()
}

/// The dump of a running node is marked as no snapshot; with an NMI it has the registers.
fn live_dump_has_registers(node: &TestNode) -> Result<(), Finding> {
    let path = "/tmp/live.vmcore";
    let words = ["dump", "--json", "--output", path];
    let without = insula_json(&[&words[..], &[&node.name]].concat())?;
    let warnings = without["warnings"].to_string();
    for warning in ["the node was running", "registers of 2 of 2 cores"] {
        Finding::unless(warnings.contains(warning), || {
            format!("a live dump does not warn of `{warning}`: {without}")
        })?;
    }
    let with = insula_json(&[&words[..], &["--nmi", &node.name]].concat())?;
    let warnings = with["warnings"].to_string();
    Finding::unless(!warnings.contains("registers"), || {
        format!("registers are missing: {warnings}")
    })?;
    fs::remove_file(path)?;
    Ok(())
}

/// A hung node gets an NMI before it is stopped: its log has the backtrace, its dump the registers.
fn hung_dump_has_registers(context: &Context) -> Result<(), Finding> {
    let node = start(
        "hung",
        "1",
        "idle",
        &["--on-hang", "stop", "--dump-on-crash"],
    )?;
    node.wait_until_ready()?;
    hang(
        &node.name,
        &fs::read(context.kernel(&context.version_of_the_base()?)?)?,
    )?;
    let view = node.wait_for_end()?;
    assert_equal("reason", &view["reason"].as_str(), &Some("unresponsive"))?;
    let log = log(&node.name)?;
    Finding::unless(log.contains("NMI backtrace for cpu 0"), || {
        format!("the log does not show where it hung: {log}")
    })?;
    insula(&["dump", "rm", &name_of(&kept_one()?)])?;
    let dump = insula_json(&["dump", "--json", &node.name])?;
    assert_equal("warnings", &dump["warnings"], &json!([]))?;
    let pipe = format!("| insula debug --stdio {}", node.name);
    let command = format!("monitor symbol {HANG_SYMBOL}");
    let shown = gdb(&pipe, &[&command, "p/x $rip"])?;
    let mut addresses = shown.lines().filter_map(|line| line.rsplit_once("0x"));
    let (one, other) = (addresses.next_back(), addresses.next_back());
    let same = one.map(|(_, rip)| rip) == other.map(|(_, rip)| rip);
    Finding::unless(same && other.is_some(), || {
        format!("it does not hang where it was made to: {shown}")
    })?;
    insula(&["dump", "rm", &name_of(&text(&dump["path"]))])?;
    node.remove()
}

/// The dump that its user requested, once the node's supervisor has written it. It is the only one.
fn kept_one() -> Result<String, Finding> {
    let mut kept = wait_for("the dump", || {
        Ok(Some(kept()?).filter(|kept| !kept.is_empty()))
    })?;
    assert_equal("dumps", &kept.len(), &1)?;
    Ok(kept.remove(0))
}

/// drgn opens it and finds the kernel's tasks, the node's init among them.
fn crashed_dump_is_whole(node: &TestNode) -> Result<(), Finding> {
    let path = kept_one()?;
    let tasks = drgn(&path)?;
    let tasks: Vec<_> = tasks.lines().collect();
    assert_equal("first task", &tasks.first(), &Some(&"0 swapper/0"))?;
    let known = tasks.contains(&"1 init") && tasks.contains(&"2 kthreadd");
    Finding::unless(known && tasks.len() >= TASKS_MIN, || {
        format!("drgn finds other tasks than there were: {tasks:?}")
    })?;
    let dump = insula_json(&["dump", "--json", &node.name])?;
    assert_equal("warnings", &dump["warnings"], &json!([]))?;
    let (size, written) = (&dump["size_bytes"], &dump["written_bytes"]);
    let is_sparse = written.as_u64() < size.as_u64();
    Finding::unless(is_sparse, || {
        format!("{written} of {size} bytes were written")
    })?;
    insula(&["dump", "rm", &name_of(&path)]).map(drop)
}

/// Name of a dump: that of its file.
fn name_of(path: &str) -> String {
    let name = path.rsplit('/').next();
    name.unwrap_or_default().to_owned()
}

/// Tasks in a core file, one per line.
fn drgn(core: &str) -> Result<String, Finding> {
    let layout = task_layout()?.to_string();
    let output = Command::new("python3")
        .args([TASKS_PATH, core, &layout])
        .output()?;
    Answer::new(&["drgn", core], &output).succeeded()
}

/// Debug information for drgn, taken from the base, whose kernel is the node's too.
fn task_layout() -> Result<Value, Finding> {
    let btf = Btf::parse(&fs::read("/sys/kernel/btf/vmlinux")?)?;
    let offset = |member| btf.offset_of("task_struct", member);
    Ok(json!({
        "init_task": base_symbol("init_task")?.wrapping_sub(base_symbol("_text")?),
        "size": btf.size_of("task_struct")?,
        "tasks": offset("tasks")?,
        "pid": offset("pid")?,
        "comm": offset("comm")?,
    }))
}

fn base_symbol(name: &str) -> Result<u64, Finding> {
    let symbols = fs::read_to_string("/proc/kallsyms")?;
    let line = symbols
        .lines()
        .find(|line| line.split(' ').nth(2) == Some(name));
    let address = line.and_then(|line| line.split(' ').next());
    let address = address.ok_or_else(|| Finding::new(format!("the base has no symbol {name}")))?;
    Ok(u64::from_str_radix(address, 16)?)
}

/// gdb reads the node's memory at a symbol's address, by both ways of reaching it.
fn gdb_reads(node: &TestNode) -> Result<(), Finding> {
    let pipe = format!("| insula debug --stdio {}", node.name);
    let address = gdb(&pipe, &["monitor symbol linux_banner"])?;
    // Other lines of gdb's with an address have more text.
    let address = address
        .lines()
        .find(|line| line.starts_with("0x") && !line.contains(' '))
        .map(str::to_owned)
        .ok_or_else(|| Finding::new(format!("gdb prints no address: {address}")))?;
    let debug = Debug::listen(node)?;
    let shown = gdb(&debug.address, &[&format!("x/s {address}"), "info threads"])?;
    let log = log(&node.name)?;
    let banner = log.lines().next().and_then(|line| line.split_once("] "));
    let banner = banner.map(|(_, banner)| banner).unwrap_or_default();
    Finding::unless(!banner.is_empty() && shown.contains(banner), || {
        format!("gdb shows another banner than `{banner}`: {shown}")
    })?;
    assert_equal("threads", &shown.matches("registers unknown").count(), &2)?;
    let refused = gdb(
        &debug.address,
        &[&format!("set var *(char *){address} = 0")],
    )?;
    Finding::unless(refused.contains("Cannot access memory"), || {
        format!("gdb could write: {refused}")
    })
}

/// The registers of the core that panicked are those of that moment, in the kernel's code.
fn gdb_sees_registers(node: &TestNode) -> Result<(), Finding> {
    let pipe = format!("| insula debug --stdio {}", node.name);
    let shown = gdb(&pipe, &["info threads", "p/x $rip", "p/x $rsp"])?;
    assert_equal("threads", &shown.matches("registers known").count(), &1)?;
    let values = shown.lines().filter_map(|line| line.split_once(" = 0x"));
    let values: Vec<_> = values
        .filter_map(|(_, digits)| u64::from_str_radix(digits.trim(), 16).ok())
        .collect();
    let in_kernel = values.iter().all(|value| *value >= KERNEL_HALF);
    Finding::unless(values.len() == 2 && in_kernel, || {
        format!("rip and rsp are not the kernel's: {shown}")
    })
}

fn gdb(target: &str, commands: &[&str]) -> Result<String, Finding> {
    let target = format!("target remote {target}");
    // The first answer needs the kernel's symbols, which takes seconds on a loaded host.
    let timeout = format!("set remotetimeout {}", TIMEOUT.as_secs());
    let all = ["set width 0", "set print elements 0", &timeout, &target];
    let words = all.iter().chain(commands).flat_map(|one| ["-ex", one]);
    let words: Vec<_> = ["-nx", "-batch"].into_iter().chain(words).collect();
    let output = Command::new("gdb")
        .args(&words)
        .stdin(Stdio::null())
        .output()?;
    let answer = Answer::new(&words, &output);
    // gdb prints messages, the stub's among them, to either stream.
    Ok(format!("{}{}", answer.output, answer.error_output))
}

/// An `insula debug` that waits for gdb, killed when this is dropped.
struct Debug {
    child: Child,
    /// Address for gdb.
    address: String,
}

impl Debug {
    fn listen(node: &TestNode) -> Result<Self, Finding> {
        let mut child = command(&["debug", &node.name])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let address = line.trim().trim_end_matches('\'').rsplit(' ').next();
        let address = address.unwrap_or_default().to_owned();
        Ok(Self { child, address })
    }
}

impl Drop for Debug {
    fn drop(&mut self) {
        // It would wait for ever; it may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The oldest dumps are removed first; one that exceeds the limit by itself leaves nothing behind.
fn dumps_are_kept_within_limits(node: &TestNode) -> Result<(), Finding> {
    let second = insula_json(&["dump", "--json", &node.name])?;
    assert_equal("dumps", &kept()?.len(), &2)?;
    let third = insula_json(&["dump", "--json", "--max", "2", &node.name])?;
    let path = |dump: &Value| text(&dump["path"]);
    assert_equal("dumps", &kept()?, &vec![path(&second), path(&third)])?;
    let large = try_insula(&["dump", "--size-max", "1M", &node.name])?;
    large.refused(1, &["takes more than 1M", "--size-max"])?;
    assert_equal("dumps", &kept()?.len(), &2)?;
    let mode = fs::metadata(path(&third)).map(|file| {
        use std::os::unix::fs::PermissionsExt;
        file.permissions().mode() & 0o777
    })?;
    assert_equal("permissions", &mode, &0o600)?;
    let names = insula_json(&["dump", "ls", "--json"])?;
    for dump in names.as_array().into_iter().flatten() {
        insula(&["dump", "rm", &text(&dump["name"])])?;
    }
    assert_equal("dumps", &kept()?, &Vec::new())
}

/// Files of the stored dumps, oldest first.
fn kept() -> Result<Vec<String>, Finding> {
    let listed = insula_json(&["dump", "ls", "--json"])?;
    let dumps = listed.as_array().into_iter().flatten();
    Ok(dumps.map(|dump| text(&dump["path"])).collect())
}

fn invalid_requests_are_refused(node: &TestNode) -> Result<(), Finding> {
    try_insula(&["backtrace", &node.name])?.refused(1, &["is not running"])?;
    try_insula(&["dump", "nobody"])?.refused(1, &["no node 'nobody'"])?;
    try_insula(&["dump", "rm", "nothing"])?.refused(1, &["no dump 'nothing'", "insula dump ls"])?;
    try_insula(&["dump", "-o", "/no/such/folder/x", &node.name])?.refused(1, &["/no/such/folder/x"])
}
