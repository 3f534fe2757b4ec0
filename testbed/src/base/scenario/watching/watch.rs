//! A node, and the base, are watched while a driver makes faults in their kernels (`insula_fault.c`).
//!
//! Each is found, and nothing else is; when it is undone, that is told, too.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::supervised;
use super::watcher_process::WatcherProcess;
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
    soak_limit: Some(Duration::from_secs(1500)),
    play,
};

/// The kernel and the isolation of the nodes that are watched: the first, in a long run all.
const NODES: [(&str, &str); 2] = [("6.12", "vmm"), ("6.1", "direct")];
/// The node that is watched.
pub(super) const NAME: &str = "watched";
const RULES: &str = "/tmp/watch.toml";
const CHECK: &str = "/tmp/check.toml";
/// Short limits: the faults do not last long.
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
";
/// Content of the image: a busybox, links to it, and the driver.
const CONTENT: &str = "/tmp/watched";
const PROGRAMS: [&str; 8] = [
    "insmod", "rmmod", "sh", "sleep", "cat", "mount", "umount", "kill",
];
pub(super) const DRIVER: &str = "insula_fault.ko";

/// A fault, and what is found of it: at least these, and nothing but these and those that may follow.
struct Fault {
    name: &'static str,
    kinds: &'static [&'static str],
    may_follow: &'static [&'static str],
}

const fn fault(name: &'static str, kinds: &'static [&'static str]) -> Fault {
    Fault {
        name,
        kinds,
        may_follow: &[],
    }
}

const FAULTS: [Fault; 12] = [
    fault("code", &["code-changed"]),
    fault("call", &["call-redirected"]),
    fault("constants", &["constants-changed"]),
    fault("gate", &["interrupt-table-changed"]),
    fault("unlisted", &["task-hidden"]),
    fault("unnumbered", &["task-hidden"]),
    fault("module", &["module-hidden"]),
    fault("hung", &["task-hung"]),
    fault("memory", &["memory-exhausted"]),
    Fault {
        name: "slab",
        kinds: &["slab-growth"],
        may_follow: &["memory-exhausted"],
    },
    Fault {
        name: "soft",
        kinds: &["soft-lockup"],
        may_follow: &["rcu-stall", "task-starved", "task-hung"],
    },
    Fault {
        name: "hard",
        kinds: &["hard-lockup"],
        may_follow: &["rcu-stall", "task-starved", "task-hung", "soft-lockup"],
    },
];

/// Faults that are repaired, and what is found of them.
const REPAIRED: [(&str, &str); 2] = [
    ("constants", "constants-changed"),
    ("gate", "interrupt-table-changed"),
];

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    fs::write(RULES, RULES_TEXT)?;
    let before = Resources::now()?;
    let played = with_cleanup(|| {
        for (version, isolation) in context.select(&NODES[..1], &NODES) {
            let watched = node_is_watched(context, version, isolation);
            watched.map_err(|finding| finding.when(version))?;
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
    insula(&[&own[..], &size, &supervised::OPTIONS].concat())?;
    in_node("sleep 0")?;
    nothing_is_found(&[NAME])?;
    let mut watcher = WatcherProcess::start(&[NAME, "--rules", RULES])?;
    for fault in &FAULTS {
        is_found(context, &mut watcher, fault).map_err(|finding| finding.when(fault.name))?;
    }
    credentials_are_found(&mut watcher)?;
    own_checks_are_made()?;
    own_patches_are_none(&mut watcher)?;
    drop(watcher);
    // Of a node that cannot be paused, code and what is larger than two words stay as they are.
    let paused = [("code", "code-changed"), ("unlisted", "task-hidden")];
    let paused = paused.into_iter().filter(|_| isolation == "vmm");
    for (fault, kind) in REPAIRED.into_iter().chain(paused) {
        is_repaired(fault, kind).map_err(|finding| finding.when(fault))?;
    }
    nothing_is_found(&[NAME])?;
    supervised::acts()?;
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

/// Makes a fault, waits until it is found, undoes it, and waits until that is told.
fn is_found(context: &Context, watcher: &mut WatcherProcess, fault: &Fault) -> Result<(), Finding> {
    let before = watcher.all().len();
    let began = Instant::now();
    in_node(&format!("insmod /{DRIVER} fault={}", fault.name))?;
    if matches!(fault.name, "soft" | "hard") {
        in_node("echo 1 > /sys/module/insula_fault/parameters/begin")?;
    }
    for kind in fault.kinds {
        let event = watcher.wait_for("found", kind)?;
        println!(
            "{}: {} {}",
            fault.name,
            text(&event["subject"]),
            text(&event["detail"])
        );
    }
    let figure = format!("{}-found", fault.name);
    context.figure(&figure, began.elapsed().as_secs_f64(), "s")?;
    in_node("rmmod insula_fault")?;
    for kind in fault.kinds {
        watcher.wait_for("ended", kind)?;
    }
    let events = watcher.all();
    let others = events[before..].iter().filter(|event| {
        let is_one = |kinds: &[&str]| kinds.iter().any(|kind| event["kind"] == *kind);
        !is_one(fault.kinds) && !is_one(fault.may_follow)
    });
    let others: Vec<_> = others.collect();
    Finding::unless(others.is_empty(), || format!("also found: {others:?}"))
}

/// A process gets the kernel's own credentials.
fn credentials_are_found(watcher: &mut WatcherProcess) -> Result<(), Finding> {
    let process = in_node("sleep 10000 > /dev/null 2>&1 & echo $!")?;
    let process = process.trim();
    in_node(&format!(
        "insmod /{DRIVER} fault=credentials process={process}"
    ))?;
    let event = watcher.wait_for("found", "credentials-changed")?;
    assert_equal(
        "subject",
        &text(&event["subject"]),
        &format!("pid {process} (sleep)"),
    )?;
    in_node(&format!("rmmod insula_fault; kill {process}"))?;
    watcher.wait_for("ended", "credentials-changed").map(drop)
}

/// What the kernel itself patches is no finding: a kprobe, calls of ftrace at all functions, modules
/// that come and go.
fn own_patches_are_none(watcher: &mut WatcherProcess) -> Result<(), Finding> {
    let before = watcher.all().len();
    in_node(
        "mount -t tracefs tracefs /sys/kernel/tracing && cd /sys/kernel/tracing &&
         echo 'p do_sys_openat2' > kprobe_events && echo 1 > events/kprobes/enable &&
         echo function > current_tracer",
    )?;
    nothing_is_found(&[NAME])?;
    in_node(
        "cd /sys/kernel/tracing && echo nop > current_tracer && echo 0 > events/kprobes/enable &&
         echo > kprobe_events && cd / && umount /sys/kernel/tracing",
    )?;
    nothing_is_found(&[NAME])?;
    let events = &watcher.all()[before..];
    Finding::unless(events.is_empty(), || {
        format!("the kernel's own changes are found: {events:?}")
    })
}

/// A fault is repaired; its driver's own undoing finds nothing to undo.
fn is_repaired(fault: &str, kind: &str) -> Result<(), Finding> {
    let repair = format!("{kind}=repair");
    let mut watcher = WatcherProcess::start(&[NAME, "--rules", RULES, "--on", &repair])?;
    in_node(&format!("insmod /{DRIVER} fault={fault}"))?;
    let repaired = watcher.wait_for("repaired", kind)?;
    println!("{fault} repaired: {}", repaired["repair"]);
    watcher.wait_for("ended", kind)?;
    drop(watcher);
    if kind == "constants-changed" {
        let undone = insula(&["watch", "--undo", NAME])?;
        assert_equal("undone", &undone.contains(kind), &true)?;
        assert_equal("found again", &once(&[NAME])?.output.contains(kind), &true)?;
        try_insula(&["watch", "--undo", NAME])?.refused(1, &["there is none in this run"])?;
    }
    in_node("rmmod insula_fault")?;
    nothing_is_found(&[NAME])
}

/// Checks of the rules' own are evaluated; one that does not fit the kernel is refused.
fn own_checks_are_made() -> Result<(), Finding> {
    let check = |when: &str| {
        let text = format!("[[check]]\nname = 'waits'\nin = 'tasks'\nwhen = '{when}'\n");
        fs::write(CHECK, text)?;
        once(&[NAME, "--rules", CHECK])
    };
    let when = r#"comm == "insula_fault" && real_parent.comm == "kthreadd""#;
    check(when)?.succeeded()?;
    in_node(&format!("insmod /{DRIVER} fault=hung"))?;
    let found = check(when)?;
    in_node("rmmod insula_fault")?;
    Finding::unless(found.output.contains("check waits: pid "), || {
        format!("not found: {found:?}")
    })?;
    let refused = check("real_parrent == 0")?;
    refused.refused(1, &["did you mean real_parent?"])?;
    fs::remove_file(CHECK)?;
    Ok(())
}

/// Looks once, at several moments.
fn nothing_is_found(target: &[&str]) -> Result<(), Finding> {
    for _ in 0..3 {
        let answer = once(target)?;
        assert_equal("findings", &answer.output.as_str(), &"")?;
        answer.succeeded()?;
    }
    Ok(())
}

fn once(target: &[&str]) -> Result<Answer, Finding> {
    try_insula(&[&["watch", "--once"], target].concat())
}

/// The base by itself: nothing is wrong with it, until a thread is hidden.
fn base_is_watched(context: &Context) -> Result<(), Finding> {
    let kernel = context.kernel(context.version_of_the_base()?)?;
    let kernel = kernel.to_string_lossy();
    let base = ["base", "--kernel", &kernel];
    nothing_is_found(&base)?;
    run("insmod", &[FAULT_PATH, "fault=unlisted"])?;
    let answer = once(&base);
    run("rmmod", &["insula_fault"])?;
    let answer = answer?;
    assert_equal("status", &answer.status, &Some(1))?;
    Finding::unless(answer.output.contains("task-hidden"), || {
        format!(
            "a hidden thread of the base is not found: {}",
            answer.output
        )
    })?;
    nothing_is_found(&base)
}

fn run(program: &str, words: &[&str]) -> Result<(), Finding> {
    let output = Command::new(program).args(words).output()?;
    Finding::unless(output.status.success(), || format!("{program}: {output:?}"))
}

fn invalid_requests_are_refused() -> Result<(), Finding> {
    try_insula(&["watch", "nobody"])?.refused(1, &["no node 'nobody'"])?;
    let on = ["watch", "base", "--on"];
    try_insula(&[&on[..], &["panic=stop"]].concat())?
        .refused(1, &["the base can only be reported on"])?;
    try_insula(&[&on[..], &["nothing=stop"]].concat())?.refused(2, &["no finding 'nothing'"])?;
    fs::write(RULES, "interval_s = 0")?;
    try_insula(&["watch", "base", "--rules", RULES])?.refused(1, &[RULES, "interval_s is 0"])?;
    let missing = ["watch", "base", "--kernel", "/no/kernel"];
    try_insula(&missing)?.refused(1, &["/no/kernel", "--kernel"])
}
