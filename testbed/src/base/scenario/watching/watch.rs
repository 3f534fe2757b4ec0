//! A node, and the base, are watched while a driver makes faults in their kernels (`driver/fault`).
//!
//! Each is found, and nothing else is; when it is undone, that is told, too.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::faults::{
    CHECKED, DRIVER, Fault, HANGS, HANGS_ALSO, NO_PROCESS, REPAIRED, REPAIRED_IN_PAUSE, TOGETHER,
    UNDONE, expected, make,
};
use super::watcher_process::WatcherProcess;
use super::{many_faults, supervised};
use crate::base::support::insula_command::{
    Answer, assert_equal, insula, text, try_insula, with_cleanup,
};
use crate::base::support::nodes::in_node::{build_image, script};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::support::virtio_modules::{SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;
use crate::host::payload::equipment::{FAULT_PATH, MODULES_PATH};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "watch",
    proves: "a watcher finds faults of a node's kernel and of the base's from outside, and only these",
    machine: Shape {
        emulator: Emulator::Backports,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(900),
    soak_limit: Some(Duration::from_secs(4 * 3600)),
    play,
};

/// The kernel and the isolation of the nodes that are watched: the first, in a long run all.
const NODES: [(&str, &str); 2] = [("6.12", "vmm"), ("6.1", "direct")];
/// The node that is watched.
pub(super) const NAME: &str = "watched";
/// Its kernel's file, unpacked: most of what a watcher needs to begin is to unpack it.
const UNPACKED: &str = "/tmp/vmlinux";
/// The node, watched with that.
const NODE: [&str; 3] = [NAME, "--kernel", UNPACKED];
const RULES: &str = "/tmp/watch.toml";
const CHECK: &str = "/tmp/check.toml";
const CHECK_TEXT: &str = "[[check]]\nname = 'waits'\nin = 'tasks'\nwhen = 'real_parrent == 0'\n";
/// Short limits: the faults do not last long. The check finds all threads of the driver.
const RULES_TEXT: &str = "\
interval_s = 0.2
[limits]
task_hung_s = 3
task_starved_s = 30
soft_lockup_s = 4
hard_lockup_s = 4
rcu_stall_s = 8
[memory]
available_min_percent = 40
slab_max_percent = 20
[[check]]
name = 'waits'
in = 'tasks'
when = 'comm == \"insula_fault\" && real_parent.comm == \"kthreadd\"'
";
/// Content of the image: a busybox, links to it, and the driver.
const CONTENT: &str = "/tmp/watched";
const PROGRAMS: [&str; 8] = [
    "insmod", "rmmod", "sh", "sleep", "cat", "mount", "umount", "kill",
];

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    fs::write(RULES, RULES_TEXT)?;
    let before = Resources::now()?;
    let played = with_cleanup(|| {
        for (version, isolation) in nodes(context)? {
            let watched = node_is_watched(context, &version, isolation);
            watched.map_err(|finding| finding.when(&version))?;
            assert_unchanged(&before)?;
        }
        Ok(())
    });
    fs::remove_dir_all(CONTENT)?;
    played?;
    unload(&SOCKET_MODULES)?;
    base_is_watched(context)?;
    invalid_requests_are_refused()?;
    fs::remove_file(RULES)?;
    Ok(())
}

/// The nodes: also one with the base's kernel, first, if that is newer.
fn nodes(context: &Context) -> Result<Vec<(String, &'static str)>, Finding> {
    let own = context.newer_version_of_the_base()?;
    let own = own.map(|version| (version, "vmm"));
    let known = context.select(&NODES[..1], &NODES).iter();
    let known = known.map(|&(version, isolation)| (version.to_owned(), isolation));
    Ok(own.into_iter().chain(known).collect())
}

fn node_is_watched(context: &Context, version: &str, isolation: &str) -> Result<(), Finding> {
    make_content(context, version)?;
    build_image(context, NAME, version, &["--content", CONTENT])?;
    let size = ["--memory", "192M", "--cpus", "2", "--restart", "no"];
    let own = [
        "run",
        "--image",
        NAME,
        "--name",
        NAME,
        "--isolation",
        isolation,
    ];
    // By itself: a watcher that looks again and again takes a core.
    insula(&[&own[..], &size, &supervised::OPTIONS].concat())?;
    in_node("sleep 0")?;
    let began = Instant::now();
    supervised::acts()?;
    context.figure("acted-within", began.elapsed().as_secs_f64(), "s")?;
    insula(&["rm", "--force", NAME])?;
    insula(&[&own[..], &size].concat())?;
    in_node("sleep 0")?;
    let kernel = fs::read(context.kernel(version)?)?;
    fs::write(UNPACKED, kimage::vmlinux(&kernel)?)?;
    drop(kernel);
    let began = Instant::now();
    let modules = format!("{MODULES_PATH}/{}", context.release(version)?);
    let options = ["--rules", RULES, "--modules", &modules];
    let watcher = WatcherProcess::start(&[&NODE, &options[..]].concat())?;
    context.figure("watching-begins", began.elapsed().as_secs_f64(), "s")?;
    are_found(context, &watcher)?;
    for &fault in context.select(&HANGS[..1], &HANGS) {
        hang_is_found(context, &watcher, fault).map_err(|finding| finding.when(fault.0))?;
    }
    own_patches_are_none(context, &watcher)?;
    if context.select(false, true) {
        many_faults::are_found(context, version, &watcher)?;
        many_faults::work_is_none(context, version, &watcher)?;
    }
    drop(watcher);
    context.figure("found-at", began.elapsed().as_secs_f64(), "s")?;
    are_repaired(match isolation {
        "vmm" => &REPAIRED_IN_PAUSE,
        _ => &REPAIRED,
    })?;
    if context.select(false, true) {
        nothing_is_found(&[NAME])?;
    }
    fs::remove_file(UNPACKED)?;
    context.figure("repaired-at", began.elapsed().as_secs_f64(), "s")?;
    insula(&["rm", "--force", NAME])?;
    insula(&["image", "rm", NAME]).map(drop)
}

fn make_content(context: &Context, version: &str) -> Result<(), Finding> {
    let _ = fs::remove_dir_all(CONTENT);
    let content = Path::new(CONTENT);
    for folder in ["bin", "dev", "etc", "proc", "run", "sys", "tmp"] {
        fs::create_dir_all(content.join(folder))?;
    }
    fs::copy("/bin/busybox", content.join("bin/busybox"))?;
    for name in PROGRAMS {
        symlink("busybox", content.join("bin").join(name))?;
    }
    let release = context.release(version)?;
    fs::copy(
        format!("{MODULES_PATH}/{release}/{DRIVER}"),
        content.join(DRIVER),
    )?;
    Ok(())
}

/// Runs a script in the node, which must succeed.
pub(super) fn in_node(words: &str) -> Result<String, Finding> {
    let (status, output) = script(NAME, words)?;
    Finding::unless(status == 0, || {
        format!("`{words}`: status {status}, {output}")
    })?;
    Ok(output)
}

/// Faults are made together: each is found, and nothing else is. They are undone, and that is told.
fn are_found(context: &Context, watcher: &WatcherProcess) -> Result<(), Finding> {
    let before = watcher.all().len();
    let began = Instant::now();
    let process = in_node("sleep 10000 > /dev/null 2>&1 & echo $!")?;
    let process = process.trim();
    make(&TOGETHER, process)?;
    let mut expected = expected(&TOGETHER);
    expected.push(CHECKED);
    for event in watcher.wait_for_each(before, "found", &expected)? {
        let [kind, subject, detail] = ["kind", "subject", "detail"].map(|key| text(&event[key]));
        println!("{kind} {subject}: {detail}");
    }
    context.figure("together-found", began.elapsed().as_secs_f64(), "s")?;
    in_node(&format!("rmmod insula_fault; kill {process}"))?;
    watcher.wait_for_each(before, "ended", &expected)?;
    let events = watcher.all();
    let is_other = |event: &&Value| !expected.iter().any(|one| one.is_told_by(event));
    let others: Vec<_> = events[before..].iter().filter(is_other).collect();
    Finding::unless(others.is_empty(), || format!("also found: {others:?}"))
}

/// A core is occupied, from when the driver is loaded: loading it needs all.
fn hang_is_found(context: &Context, watcher: &WatcherProcess, fault: Fault) -> Result<(), Finding> {
    let (name, hang) = fault;
    let before = watcher.all().len();
    make(&[fault], NO_PROCESS)?;
    in_node("echo 1 > /sys/module/insula_fault/parameters/begin")?;
    let began = Instant::now();
    watcher.wait_for_each(before, "found", &[hang])?;
    context.figure(&format!("{name}-found"), began.elapsed().as_secs_f64(), "s")?;
    in_node("rmmod insula_fault")?;
    watcher.wait_for_each(before, "ended", &[hang])?;
    let events = watcher.all();
    let may_be = |event: &Value| HANGS_ALSO.contains(&text(&event["kind"]).as_str());
    let is_other = |event: &&Value| !hang.is_told_by(event) && !may_be(event);
    let others: Vec<_> = events[before..].iter().filter(is_other).collect();
    Finding::unless(others.is_empty(), || format!("also found: {others:?}"))
}

/// What the kernel itself patches is no finding: a kprobe, calls of ftrace at the start of functions,
/// of its own and of modules, in a long run of all. It may keep cores busy meanwhile.
fn own_patches_are_none(context: &Context, watcher: &WatcherProcess) -> Result<(), Finding> {
    let before = watcher.all().len();
    let functions = context.select("vfs_* virtio*", "*");
    in_node(&format!(
        "mount -t tracefs tracefs /sys/kernel/tracing && cd /sys/kernel/tracing &&
         echo 'p do_sys_openat2' > kprobe_events && echo 1 > events/kprobes/enable &&
         echo '{functions}' > set_ftrace_filter && echo function > current_tracer"
    ))?;
    nothing_is_found(&NODE)?;
    in_node(
        "cd /sys/kernel/tracing && echo nop > current_tracer && echo 0 > events/kprobes/enable &&
         echo > kprobe_events && echo > set_ftrace_filter && cd / && umount /sys/kernel/tracing",
    )?;
    let events = watcher.all();
    let is_other = |event: &&Value| {
        let kind = text(&event["kind"]);
        !HANGS_ALSO.contains(&kind.as_str())
    };
    let others: Vec<_> = events[before..].iter().filter(is_other).collect();
    Finding::unless(others.is_empty(), || {
        format!("the kernel's own changes are found: {others:?}")
    })
}

/// Faults are repaired; their driver's own undoing finds nothing to undo. The first repair is undone.
fn are_repaired(faults: &[Fault]) -> Result<(), Finding> {
    let mut words = NODE.map(str::to_owned).to_vec();
    words.extend(["--rules".into(), RULES.into()]);
    for (_, fault) in faults.iter().chain([&UNDONE]) {
        words.extend(["--on".into(), format!("{}=repair", fault.kind)]);
    }
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let watcher = WatcherProcess::start(&words)?;
    for faults in [&[UNDONE], faults] {
        let before = watcher.all().len();
        make(faults, NO_PROCESS)?;
        let expected = expected(faults);
        for repaired in watcher.wait_for_each(before, "repaired", &expected)? {
            println!("{} repaired: {}", repaired["kind"], repaired["repair"]);
        }
        watcher.wait_for_each(before, "ended", &expected)?;
        let undone = faults[0].0 == UNDONE.0;
        let checked = match undone {
            true => watcher.while_stopped(|| repair_is_undone(UNDONE.1.kind)),
            false => Ok(()),
        };
        in_node("rmmod insula_fault")?;
        checked?;
    }
    Ok(())
}

/// What was repaired is wrong again, and there is nothing more to undo.
fn repair_is_undone(kind: &str) -> Result<(), Finding> {
    let undone = insula(&["watch", "--undo", NAME])?;
    assert_equal("undone", &undone.contains(kind), &true)?;
    fs::write(CHECK, CHECK_TEXT)?;
    let found = once(&NODE)?;
    assert_equal("status", &found.status, &Some(1))?;
    assert_equal("found again", &found.output.contains(kind), &true)?;
    try_insula(&["watch", "--undo", NAME])?.refused(1, &["there is none in this run"])?;
    let refused = once(&[&NODE[..], &["--rules", CHECK]].concat())?;
    fs::remove_file(CHECK)?;
    refused.refused(1, &["did you mean real_parent?"])
}

/// Looks once.
fn nothing_is_found(target: &[&str]) -> Result<(), Finding> {
    let answer = once(target)?;
    assert_equal("findings", &answer.output.as_str(), &"")?;
    answer.succeeded().map(drop)
}

fn once(target: &[&str]) -> Result<Answer, Finding> {
    try_insula(&[&["watch", "--once"], target].concat())
}

/// The base by itself: nothing is wrong with it, until a thread is hidden.
fn base_is_watched(context: &Context) -> Result<(), Finding> {
    let kernel = context.kernel(&context.version_of_the_base()?)?;
    let kernel = kernel.to_string_lossy();
    let mut watcher = WatcherProcess::start(&["base", "--kernel", &kernel])?;
    run("insmod", &[FAULT_PATH, "fault=unlisted"])?;
    let found = watcher.wait_for("found", "task-hidden");
    run("rmmod", &["insula_fault"])?;
    found?;
    watcher.wait_for("ended", "task-hidden")?;
    let events = watcher.all();
    let told = events.iter().filter(|one| !one["kind"].is_null()).count();
    Finding::unless(told == 2, || format!("found of the base: {events:?}"))
}

fn run(program: &str, words: &[&str]) -> Result<(), Finding> {
    let output = Command::new(program).args(words).output()?;
    Finding::unless(output.status.success(), || format!("{program}: {output:?}"))
}

fn invalid_requests_are_refused() -> Result<(), Finding> {
    try_insula(&["watch", "nobody"])?.refused(1, &["no node 'nobody'"])?;
    let on = ["watch", "base", "--on"];
    let neither = "the base is neither repaired nor stopped";
    try_insula(&[&on[..], &["oops=stop"]].concat())?.refused(1, &[neither])?;
    let panic = "nothing can be done about a panic of the base";
    try_insula(&[&on[..], &["panic=restart"]].concat())?.refused(1, &[panic])?;
    let unkept = ["nothing of the base can be kept", "ramoops is not loaded"];
    try_insula(&[&on[..], &["oops=restart"]].concat())?.refused(1, &unkept)?;
    try_insula(&[&on[..], &["nothing=stop"]].concat())?.refused(2, &["no finding 'nothing'"])?;
    fs::write(RULES, "interval_s = 0")?;
    try_insula(&["watch", "base", "--rules", RULES])?.refused(1, &[RULES, "interval_s is 0"])?;
    let missing = ["watch", "base", "--kernel", "/no/kernel"];
    try_insula(&missing)?.refused(1, &["/no/kernel", "--kernel"])
}
