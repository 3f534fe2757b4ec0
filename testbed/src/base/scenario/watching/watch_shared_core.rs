//! A core that the base shares with a lightweight kernel, which is entered by NMIs: while the base
//! spins there with interrupts off, programs of the other kernel go on, and a watcher among them
//! sees it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::watcher_process::WatcherProcess;
use crate::base::support::insula_command::{
    assert_equal, command, insula, text, try_insula, wait_for, with_cleanup,
};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::support::spare::shell;
use crate::base::{Context, Finding, Module, Scenario, Shape, splat};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "watch_shared_core",
    proves: "a kernel entered by NMIs runs, and sees it, while the base spins on their core",
    machine: Shape {
        append: "no5lvl",
        memory_mib: 2048,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
    soak_limit: Some(Duration::from_secs(3600)),
    play,
};

const NODE: &str = "quiet";
/// The shared core.
const CPU: &str = "2";
const RULES: &str = "/tmp/rules.toml";
/// A short limit, so that the hang can be short.
const RULES_TEXT: &str = "interval_s = 0.2\n[limits]\nhard_lockup_s = 2\n";
/// The driver that has the writing core spin with interrupts off, and for how long.
const DRIVER: &str = "/payload/insula_quiet.ko";
const SPIN: &str = "/sys/module/insula_quiet/parameters/spin_ms";
const SPIN_MS: u64 = 5000;
/// While the watcher has to look some times: on a busy computer each look takes long. Less than what Linux itself
/// takes for a lockup.
const WATCHED_SPIN_MS: u64 = 10_000;
/// Between starts and stops: shorter than any of them.
const SHORT_SPIN_MS: u64 = 20;
/// Many of them, while a program computes.
const MANY_SPIN_MS: u64 = 200;
const SPINS: u32 = 30;
/// Lines that a program prints meanwhile, at least, each by a call and after a timeout.
const LINES_MIN: usize = 10;
/// A program that waits for a timeout by itself, and makes a call.
const PRINTING: &str = "while :; do read -t 0.02 line <> /tmp/never; echo line; done";
const COMPUTING: &str = "while :; do :; done";

fn play(context: &Context) -> Result<(), Finding> {
    let before = Resources::now()?;
    fs::write(RULES, RULES_TEXT)?;
    shell(&format!("insmod {DRIVER}; mkfifo /tmp/never"))?;
    with_cleanup(|| {
        is_refused()?;
        let waiting = by(&[], printed_meanwhile)?;
        println!("by interrupts: {waiting} lines while the base spun");
        by(&["--share-by", "nmi"], || {
            is_shown()?;
            let lines = printed_meanwhile()?;
            println!("by NMIs: {lines} lines");
            Finding::unless(lines >= LINES_MIN, || format!("only {lines} lines"))?;
            is_watched(context)?;
            keeps_to_its_share()
        })?;
        assert_unchanged(&before)?;
        is_started_often(context.count(5, 200))?;
        let unknown = shell("dmesg")?.contains("NMI received for unknown reason");
        Finding::unless(!unknown, || "an NMI of the module's was unknown".into())?;
        by(&["--share-by", "nmi"], base_handles_nmis_meanwhile)
    })?;
    shell("rmmod insula_quiet; rm /tmp/never")?;
    fs::remove_file(RULES)?;
    assert_unchanged(&before)
}

fn is_refused() -> Result<(), Finding> {
    let words = ["run", "--image", "lwk", "--share-by", "nmi"];
    try_insula(&words)?.refused(2, &["--share-core"])
}

/// Runs a step with a node that shares the core so.
fn by<T>(more: &[&str], step: impl FnOnce() -> Result<T, Finding>) -> Result<T, Finding> {
    let usual = ["run", "--image", "lwk", "--share-core", CPU];
    let named = ["--memory", "256M", "--name", NODE];
    insula(&[&usual[..], &named, more].concat())?;
    let value = step()?;
    insula(&["kill", NODE])?;
    insula(&["rm", NODE])?;
    Ok(value)
}

fn is_shown() -> Result<(), Finding> {
    let view = insula(&["inspect", NODE])?;
    Finding::unless(view.contains("\"share_by\": \"nmi\""), || {
        format!("inspect does not tell how the core is shared: {view}")
    })
}

/// Has the base spin on the core.
fn spin(ms: u64) -> Result<Child, Finding> {
    let mut shell = Command::new("taskset");
    shell.args(["-c", CPU, "sh", "-c", &format!("echo {ms} > {SPIN}")]);
    Ok(shell.spawn()?)
}

fn has_spun(mut spinning: Child) -> Result<(), Finding> {
    let done = spinning.wait()?.success();
    Finding::unless(done, || "the core did not spin".into())
}

/// A program of the node, killed when this is dropped.
struct Program(Child);

impl Program {
    fn start(script: &str) -> Result<Self, Finding> {
        let words = ["exec", NODE, "--", "/bin/bash", "-c", script];
        Ok(Self(command(&words).stdout(Stdio::piped()).spawn()?))
    }

    /// Times at which it has printed lines.
    fn lines(&mut self) -> Receiver<Instant> {
        let (sender, times) = channel();
        if let Some(output) = self.0.stdout.take() {
            thread::spawn(move || {
                for _line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(Instant::now()).is_err() {
                        return;
                    }
                }
            });
        }
        times
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns how many lines a program of the node prints while the base spins on its core.
fn printed_meanwhile() -> Result<usize, Finding> {
    let mut program = Program::start(PRINTING)?;
    let times = program.lines();
    times.recv_timeout(Duration::from_secs(60))?;
    let began = Instant::now();
    let spinning = spin(SPIN_MS)?;
    let second = Duration::from_secs(1);
    has_spun(spinning)?;
    let spun = began + second..began + Duration::from_millis(SPIN_MS) - second;
    Ok(times.try_iter().filter(|time| spun.contains(time)).count())
}

/// The watcher on the core tells that it hangs while it does.
fn is_watched(context: &Context) -> Result<(), Finding> {
    let kernel = context.kernel(&context.version_of_the_base()?)?;
    let kernel = kernel.to_string_lossy();
    let words = ["base", "--kernel", &kernel, "--rules", RULES];
    let mut watcher = WatcherProcess::start_on(NODE, &words)?;
    let spinning = spin(WATCHED_SPIN_MS)?;
    let event = watcher.wait_for("found", "hard-lockup")?;
    let (told, made) = (SystemTime::now(), text(&event["time"]));
    has_spun(spinning)?;
    let end = SystemTime::now();
    println!("{}: {}", text(&event["subject"]), text(&event["detail"]));
    let made = humantime::parse_rfc3339(&made)?;
    let subject = text(&event["subject"]);
    Finding::unless(subject.contains(CPU), || format!("it is of {subject}"))?;
    let left = end.duration_since(told.max(made)).unwrap_or_default();
    context.figure("told-before-its-end", left.as_secs_f64(), "s")?;
    Finding::unless(!left.is_zero(), || "it was told too late".into())?;
    watcher.wait_for("ended", "hard-lockup").map(drop)
}

/// While a program computes, the base comes to the end of its sections: whatever it is doing when the
/// other kernel is entered, that leaves in time.
fn keeps_to_its_share() -> Result<(), Finding> {
    let _program = Program::start(COMPUTING)?;
    for _ in 0..SPINS {
        has_spun(spin(MANY_SPIN_MS)?)?;
    }
    let stayed = shell("dmesg")?.contains("does not leave it");
    Finding::unless(!stayed, || "the other kernel did not leave the core".into())
}

/// An NMI of the base's own, here for a backtrace, reaches it while the other kernel computes in an
/// NMI, and the backtrace shows where the base spins.
fn base_handles_nmis_meanwhile() -> Result<(), Finding> {
    // A backtrace looks like an error's.
    fs::write("/dev/kmsg", splat::EXPECTED)?;
    let _program = Program::start(COMPUTING)?;
    let spinning = spin(SPIN_MS)?;
    wait_for("a backtrace of the core", || {
        fs::write("/proc/sysrq-trigger", "l")?;
        let log = shell("dmesg")?;
        let of_the_core = log.split("NMI backtrace for cpu ").skip(1);
        let found = of_the_core
            .filter(|trace| trace.starts_with(CPU))
            .any(|trace| trace.contains("busy_wait") || trace.contains("insula_quiet"));
        Ok(found.then_some(()))
    })?;
    has_spun(spinning)
}

fn is_started_often(count: u64) -> Result<(), Finding> {
    for _ in 0..count {
        by(&["--share-by", "nmi", "--core-share", "50"], || {
            let spinning = spin(SHORT_SPIN_MS)?;
            let echo = insula(&["exec", NODE, "--", "/bin/echo", "often"])?;
            assert_equal("a program", &echo.as_str(), &"often\n")?;
            has_spun(spinning)
        })?;
    }
    Ok(())
}
