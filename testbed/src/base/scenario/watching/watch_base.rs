//! The base is watched by a program of the lightweight kernel, on a core of its own: which goes on
//! while cores of the base hang, and while all of them do.

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use super::watcher_process::WatcherProcess;
use crate::base::support::insula_command::{assert_equal, insula, text, wait_for, with_cleanup};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::support::spare::shell;
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "watch_base",
    proves: "a watcher on a lightweight kernel sees the base hang while it does",
    machine: Shape {
        memory_mib: 2048,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
    soak_limit: None,
    play,
};

const NODE: &str = "quiet";
const RULES: &str = "/tmp/rules.toml";
/// A short limit, so that the hangs can be short.
const RULES_TEXT: &str = "interval_s = 0.2\n[limits]\nhard_lockup_s = 3\n";
/// The driver by which cores hang, and its parameters for one core and for all.
const DRIVER: &str = "/payload/insula_quiet.ko";
const ONE: &str = "/sys/module/insula_quiet/parameters/spin_ms";
const ALL: &str = "/sys/module/insula_quiet/parameters/stop_ms";
/// How long: less than what the base's own watchdogs tolerate.
const ONE_MS: u32 = 5000;
const ALL_MS: u32 = 15_000;

fn play(context: &Context) -> Result<(), Finding> {
    let before = Resources::now()?;
    fs::write(RULES, RULES_TEXT)?;
    shell(&format!("insmod {DRIVER}"))?;
    let words = ["run", "--image", "lwk", "--cpus", "1", "--memory", "256M"];
    insula(&[&words[..], &["--name", NODE]].concat())?;
    with_cleanup(|| {
        let kernel = context.kernel(&context.version_of_the_base()?)?;
        let kernel = kernel.to_string_lossy();
        let began = Instant::now();
        let mut watcher =
            WatcherProcess::start_on(NODE, &["base", "--kernel", &kernel, "--rules", RULES])?;
        context.figure("watching-begins", began.elapsed().as_secs_f64(), "s")?;
        let one = Hang::of(ONE, ONE_MS)?;
        one.is_found(&mut watcher, 1)?;
        let all = Hang::of(ALL, ALL_MS)?;
        all.is_found(&mut watcher, online()?)
    })?;
    shell("rmmod insula_quiet")?;
    fs::remove_file(RULES)?;
    assert_unchanged(&before)
}

/// When cores hung.
struct Hang {
    begin: SystemTime,
    end: SystemTime,
}

impl Hang {
    /// Has cores hang, the own one among them.
    fn of(parameter: &str, ms: u32) -> Result<Self, Finding> {
        let begin = SystemTime::now();
        fs::write(parameter, ms.to_string())?;
        Ok(Self {
            begin,
            end: SystemTime::now(),
        })
    }

    /// It is told as lockups of so many cores, all of which were found before its end.
    fn is_found(&self, watcher: &mut WatcherProcess, cores: usize) -> Result<(), Finding> {
        let found = wait_for(&format!("{cores} lockups"), || {
            let found = self.lockups(watcher)?;
            Ok((found.len() >= cores).then_some(found))
        });
        let found = found.map_err(|finding| finding.when(&format!("of {:?}", watcher.all())))?;
        assert_equal("lockups found during the hang", &found.len(), &cores)?;
        for event in &found {
            println!("{}: {}", text(&event["subject"]), text(&event["detail"]));
        }
        watcher.wait_for("ended", "hard-lockup").map(drop)
    }

    /// The lockups that were found during it.
    fn lockups(&self, watcher: &WatcherProcess) -> Result<Vec<Value>, Finding> {
        let mut found = Vec::new();
        for event in watcher.all() {
            if event["event"] != "found" || event["kind"] != "hard-lockup" {
                continue;
            }
            let time = humantime::parse_rfc3339(&text(&event["time"]))?;
            if self.begin < time && time < self.end {
                found.push(event);
            }
        }
        Ok(found)
    }
}

/// Cores that the base has.
fn online() -> Result<usize, Finding> {
    let cpus = shell("grep -c ^processor /proc/cpuinfo")?;
    Ok(cpus.trim().parse()?)
}
