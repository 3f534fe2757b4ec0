//! A node that is watched by its supervisor: what it finds is told as events, and acted upon.

use std::fs;
use std::time::SystemTime;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde_json::Value;

use super::faults::DRIVER;
use super::watch::{NAME, in_node};
use crate::base::Finding;
use crate::base::support::insula_command::{
    insula, insula_json, insula_json_lines, text, wait_for,
};
use crate::base::support::nodes::in_node::script;

/// What the node is watched for: nothing that the scenario finds by the command.
pub(super) const OPTIONS: [&str; 6] = [
    "--watch",
    "list-corrupted=repair",
    "--watch",
    "oops=restart",
    "--watch",
    "panic",
];
/// `TAINT_DIE` of include/linux/panic.h: the kernel had an oops.
const TAINT_DIE: u64 = 1 << 7;

/// The node's events from a moment on: a node of that name may have been there before.
struct Events {
    since: String,
}

impl Events {
    fn from_now() -> Self {
        let since = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        Self { since }
    }

    /// Waits for an event with an attribute that contains a text.
    fn wait_for(&self, status: &str, attribute: &str, part: &str) -> Result<Value, Finding> {
        let words = ["events", "--no-stream", "--json", "--since", &self.since];
        wait_for(&format!("the event {status} {part}"), || {
            let events = insula_json_lines(&[&words[..], &[NAME]].concat())?;
            let is_it = |event: &&Value| {
                let value = event["attributes"][attribute].as_str();
                event["status"] == status && value.is_some_and(|value| value.contains(part))
            };
            Ok(events.iter().find(is_it).cloned())
        })
    }
}

/// A link is repaired, an oops has the node started again, a panic is told. A watcher that is killed
/// is started again.
pub(super) fn acts() -> Result<(), Finding> {
    let events = Events::from_now();
    let killed = kill_watcher()?;
    wait_for("another watcher", || {
        Ok(watchers()?.iter().any(|one| *one != killed).then_some(()))
    })?;
    in_node(&format!("insmod /{DRIVER} fault=link"))?;
    for status in ["found", "repaired", "ended"] {
        events.wait_for(status, "kind", "list-corrupted")?;
    }
    in_node("rmmod insula_fault")?;
    oops_restarts(&events)?;
    in_node("echo c > /proc/sysrq-trigger")
        .map(drop)
        .or(Ok::<_, Finding>(()))?;
    events.wait_for("died", "reason", "crashed")?;
    events.wait_for("found", "kind", "panic")?;
    is_shown()
}

/// An oops has a dump written, and the node started again.
fn oops_restarts(events: &Events) -> Result<(), Finding> {
    in_node(&format!("insmod /{DRIVER} fault=oops"))?;
    events.wait_for("found", "kind", "oops")?;
    let dump = events.wait_for("dump", "path", "")?;
    let name = text(&dump["attributes"]["path"]);
    let name = name.rsplit('/').next().unwrap_or_default();
    insula(&["dump", "rm", name])?;
    events.wait_for("died", "reason", "finding")?;
    wait_for("the node to be started again", || {
        let (status, output) = script(NAME, "cat /proc/sys/kernel/tainted")?;
        // The project's modules taint it, too.
        let has_died = output
            .trim()
            .parse()
            .map_or(true, |mask: u64| mask & TAINT_DIE != 0);
        Ok((status == 0 && !has_died).then_some(()))
    })
}

/// What was found is shown with the node, and as a metric.
fn is_shown() -> Result<(), Finding> {
    let shown = insula_json(&["inspect", NAME])?;
    let findings = shown[0]["findings"].as_array();
    let mut kinds = findings.into_iter().flatten().map(|one| &one["kind"]);
    Finding::unless(kinds.any(|kind| kind == "panic"), || {
        format!("no panic in {shown}")
    })?;
    let metrics = insula(&["stats", "--prometheus", NAME])?;
    for (kind, count) in [("panic", 1), ("oops", 0)] {
        let metric = format!("insula_node_findings{{node=\"{NAME}\",kind=\"{kind}\"}} {count}\n");
        Finding::unless(metrics.contains(&metric), || {
            format!("no '{metric}' in {metrics}")
        })?;
    }
    Ok(())
}

fn kill_watcher() -> Result<Pid, Finding> {
    let watcher = wait_for("the watcher's process", || Ok(watchers()?.pop()))?;
    signal::kill(watcher, Signal::SIGKILL)?;
    Ok(watcher)
}

/// Processes that watch for a supervisor.
fn watchers() -> Result<Vec<Pid>, Finding> {
    let expected = ["insula", "watch", NAME, "--here"];
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // It may have ended.
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words = words.split(|byte| *byte == 0);
        if words.take(4).eq(expected.map(str::as_bytes)) {
            found.push(Pid::from_raw(pid));
        }
    }
    Ok(found)
}
