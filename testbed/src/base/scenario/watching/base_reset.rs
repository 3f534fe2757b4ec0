//! The base hangs for good: its watcher, on a core of its own, keeps the base's log and resets the machine.
//!
//! Memory outlives that, also in an emulated machine. So its next boot plays the second part.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::watcher_process::WatcherProcess;
use crate::base::support::insula_command::{assert_equal, insula, insula_json, text, try_insula};
use crate::base::support::spare::shell;
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "base_reset",
    proves: "a base that hangs is reset by its watcher, and the next boot has its log",
    machine: Shape {
        memory_mib: 2048,
        append: "memmap=1M$0x6000000",
        resets: true,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_1],
    limit: Duration::from_secs(600),
    soak_limit: None,
    play,
};

/// That memory, for Linux' own driver.
const RAMOOPS: &str =
    "modprobe ramoops mem_address=0x6000000 mem_size=0x100000 record_size=0x20000";
const PSTORE: &str = "mountpoint -q /sys/fs/pstore || mount -t pstore pstore /sys/fs/pstore";
const RULES: &str = "/tmp/rules.toml";
const RULES_TEXT: &str =
    "interval_s = 0.2\n[limits]\nhard_lockup_s = 3\n[on]\nhard-lockup = 'restart'\n";
/// The driver by which all cores hang, and for how long: longer than the scenario may last.
const DRIVER: &str = "/payload/insula_quiet.ko";
const HANG: &str = "/sys/module/insula_quiet/parameters/stop_ms";
const HANG_MS: u32 = 3_600_000;
/// A file on the machine's disk, from when it hangs.
const HAS_HUNG: &str = "/root/has-hung";
/// A line of the base's log before it hangs.
const LAST_LINE: &str = "testbed: the last line";

fn play(context: &Context) -> Result<(), Finding> {
    fs::write(RULES, RULES_TEXT)?;
    let watch = ["watch", "base", "--rules", RULES];
    let absent = ["nothing of the base can be kept", "ramoops is not loaded"];
    try_insula(&watch)?.refused(1, &absent)?;
    shell(RAMOOPS)?;
    shell(PSTORE)?;
    let logs = insula_json(&["postmortem", "--json"])?;
    let kept = match logs.as_array().map(Vec::as_slice) {
        Some([log]) => log_is_whole(log),
        Some([]) if !Path::new(HAS_HUNG).exists() => return hangs(context),
        _ => Err(Finding::new(format!("kept: {logs}"))),
    };
    shell("rm /sys/fs/pstore/*; umount /sys/fs/pstore; rmmod ramoops reed_solomon")?;
    kept
}

/// The first boot. Returns only if it is not reset.
fn hangs(context: &Context) -> Result<(), Finding> {
    node("plain", &[])?;
    node("quiet", &["--allow-ioperm"])?;
    let kernel = context.kernel(&context.version_of_the_base()?)?;
    let kernel = kernel.to_string_lossy();
    let options = ["base", "--kernel", &kernel, "--rules", RULES];
    let on_plain = ["exec", "plain", "--", "insula", "watch"];
    let denied = ["this program may not reset the machine", "--allow-ioperm"];
    try_insula(&[&on_plain[..], &options].concat())?.refused(1, &denied)?;
    insula(&["rm", "--force", "plain"])?;
    let _watcher = WatcherProcess::start_on("quiet", &options)?;
    shell(&format!("insmod {DRIVER}"))?;
    fs::write(HAS_HUNG, "")?;
    nix::unistd::sync();
    fs::write("/dev/kmsg", LAST_LINE)?;
    fs::write(HANG, HANG_MS.to_string())?;
    Err(Finding::new("the base hung, and was not reset"))
}

fn node(name: &str, options: &[&str]) -> Result<(), Finding> {
    let words = ["run", "--image", "lwk", "--cpus", "1", "--memory", "256M"];
    insula(&[&words[..], &["--name", name], options].concat()).map(drop)
}

/// The second boot: what was found is there, what the cores did, and the log up to its last line.
fn log_is_whole(log: &Value) -> Result<(), Finding> {
    let kept = text(&log["text"]);
    println!("{kept}");
    for part in [
        "insula watch: hard-lockup cpu ",
        "CPU 0: ",
        "multi_cpu_stop",
        LAST_LINE,
    ] {
        let has = kept.contains(part);
        assert_equal(&format!("'{part}' in what was kept"), &has, &true)?;
    }
    let shown = insula(&["postmortem"])?;
    assert_equal("shown", &shown.contains(LAST_LINE), &true)
}
