//! Eight nodes from one file.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::base::support::insula_command::{
    Answer, assert_equal, command, insula, insula_json, text, try_insula, wait_for, with_cleanup,
};
use crate::base::support::nodes::test_node::path;
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::support::supervisor_process;
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "up_down",
    proves: "eight nodes of one file start and end in order; only changed ones are touched",
    machine: Shape {
        cpus: 9,
        emulator: Emulator::Backports,
        thread_per_core: true,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
    soak_limit: None,
    play,
};

const FOLDER: &str = "/tmp/up_down";
const FILE: &str = "/tmp/up_down/insula.toml";
/// Long enough for nodes that power off all at once.
const STOP_TIMEOUT: [&str; 2] = ["--time", "60"];

/// The nodes, and those that each starts after.
const NODES: [(&str, &[&str]); 8] = [
    ("db", &[]),
    ("cache", &["db"]),
    ("queue", &[]),
    ("web-1", &["db", "cache"]),
    ("web-2", &["db", "cache"]),
    ("mail", &["queue"]),
    ("front", &["web-1", "web-2"]),
    ("watch", &["db", "queue"]),
];

fn play(context: &Context) -> Result<(), Finding> {
    fs::create_dir_all(FOLDER)?;
    let file = File::new(context)?;
    with_cleanup(|| {
        let before = Resources::now()?;
        refusals(&file)?;
        comes_up_in_the_end(context)?;
        comes_up_in_order(context, &file)?;
        nothing_differs()?;
        one_differs(&file)?;
        one_is_gone(&file)?;
        interrupted(&file)?;
        goes_down(context)?;
        assert_unchanged(&before)
    })
}

/// The file that describes them.
struct File {
    image: String,
}

impl File {
    fn new(context: &Context) -> Result<Self, Finding> {
        let (kernel, initrd) = (path(&context.kernel("6.1")?), path(context.node_initrd()));
        let image = format!("[images.small]\nkernel = \"{kernel}\"\ninitrd = \"{initrd}\"\n");
        Ok(Self { image })
    }

    /// All nodes but those `without`; `more` follows.
    fn text(&self, without: &[&str], more: &str) -> String {
        let node = |(name, after): &(&str, &[&str])| {
            format!(
                "[nodes.{name}]\nimage = \"small\"\nmemory = \"128M\"\nafter = {after:?}\n\
                 ready = {{ log = \"insula-node: ready\", timeout_s = 120 }}\n"
            )
        };
        let nodes = NODES.iter().filter(|(name, _)| !without.contains(name));
        let nodes: String = nodes.map(node).collect();
        format!("{}{nodes}{more}", self.image)
    }

    fn write(text: &str) -> Result<(), Finding> {
        Ok(fs::write(FILE, text)?)
    }
}

/// Brings the file up. Returns the action on each node.
fn up() -> Result<Value, Finding> {
    let words = ["up", "--file", FILE, "--json"];
    insula_json(&[&words[..], &STOP_TIMEOUT].concat())
}

/// Action on each node.
fn actions(report: &Value) -> BTreeMap<String, String> {
    let nodes = report["nodes"].as_array().into_iter().flatten();
    nodes
        .map(|node| (text(&node["name"]), text(&node["action"])))
        .collect()
}

/// Id and number of starts of all running nodes.
fn running() -> Result<BTreeMap<String, (u64, u64)>, Finding> {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let listed = insula_json(&["ps", "--json"])?;
    let nodes = listed.as_array().into_iter().flatten();
    let stamp = |node: &Value| (number(&node["id"]), number(&node["starts"]));
    Ok(nodes
        .map(|node| (text(&node["name"]), stamp(node)))
        .collect())
}

/// When each node was started, in ns of one clock.
fn started(names: impl Iterator<Item = String>) -> Result<BTreeMap<String, u64>, Finding> {
    let machine = insula_json(&["machine", "info", "--json"])?;
    let khz = machine["tsc_khz"].as_u64().unwrap_or(1);
    let time = |name: String| {
        let ticks = insula_json(&["inspect", &name])?[0]["start_tsc"].as_u64();
        let ns = u128::from(ticks.unwrap_or_default()) * 1_000_000 / u128::from(khz);
        Ok((name, u64::try_from(ns)?))
    };
    names.map(time).collect()
}

/// Each error is reported with its line, and changes nothing.
fn refusals(file: &File) -> Result<(), Finding> {
    let before = Resources::now()?;
    // Text that is added behind the last node, with the expected message and its line from there.
    let cases = [
        ("colour = \"red\"", 1, "unknown field `colour`"),
        ("cpus = 9", 1, "9 cores requested"),
        ("cpu_list = \"0\"", 1, "core 0 is not available"),
        ("cpu_list = \"3-\"", 1, "is not a list of cores"),
        (
            "append = \"tsc_early_khz=1\"",
            1,
            "cannot be set for a node",
        ),
        ("[nodes.db]", 1, "duplicate key"),
        (
            "[nodes.more]\nimage = \"none\"",
            2,
            "there is no image 'none'",
        ),
        (
            "[nodes.more]\nimage = \"small\"\nafter = [\"more\"]",
            3,
            "dependency cycle",
        ),
        (
            "[nodes.more]\nimage = \"small\"\nmemory = \"64G\"",
            3,
            "memory requested",
        ),
        (
            "[nodes.more]\nimage = \"small\"\nmemory = \"16M\"",
            3,
            "request a larger",
        ),
        (
            "[images.more]\nkernel = \"/no/vmlinuz\"",
            2,
            "cannot be read",
        ),
    ];
    let lines = file.text(&["mail"], "").lines().count();
    for (more, line, message) in cases {
        File::write(&file.text(&["mail"], more))?;
        let location = format!("{FILE}:{}:", lines + line);
        let answer = try_insula(&["up", "--file", FILE])?;
        answer.refused(1, &[&location, message, "nothing was touched"])?;
        assert_unchanged(&before).map_err(|finding| finding.when(message))?;
    }
    Ok(())
}

/// A node that fails before it is ready is waited for as long as its policy restarts it, also when
/// its supervisor ends with it.
fn comes_up_in_the_end(context: &Context) -> Result<(), Finding> {
    let (images, nodes) = ("/tmp/up_down/images.toml", "/tmp/up_down/nodes.toml");
    let describe = |restart: &str| {
        format!(
            "[nodes.late]\nimage = \"late\"\nmemory = \"128M\"\nrestart = \"{restart}\"\n\
             ready = {{ log = \"insula-node: ready\", timeout_s = 120 }}\n"
        )
    };
    let starts = || Ok::<_, Finding>(insula_json(&["inspect", "late"])?[0]["starts"].as_u64());
    // Without an initial file system its kernel panics.
    let kernel = path(&context.kernel("6.1")?);
    let image = format!("[images.late]\nkernel = \"{kernel}\"\n");
    fs::write(images, &image)?;
    insula(&["up", "--file", images])?;

    fs::write(nodes, describe("on-failure:1"))?;
    let answer = try_insula(&["up", "--file", nodes])?;
    answer.refused(1, &["'late' has stopped before it was ready (crashed)"])?;
    assert_equal("starts", &starts()?, &Some(2))?;

    fs::write(nodes, describe("always"))?;
    let words = ["up", "--file", nodes, "--json"];
    let child = command(&words).stdout(Stdio::piped()).spawn()?;
    supervisor_process::kill("late")?;
    supervisor_process::wait_for_one("late")?;
    wait_for("another start", || Ok((starts()? >= Some(2)).then_some(())))?;
    let initrd = path(context.node_initrd());
    fs::write(images, format!("{image}initrd = \"{initrd}\"\n"))?;
    insula(&["up", "--file", images])?;
    Answer::new(&words, &child.wait_with_output()?).succeeded()?;
    insula(&["down", "--file", nodes])?;
    insula(&["down", "--file", images, "--images"]).map(drop)
}

/// Each is started when those that it starts after are ready, not before.
fn comes_up_in_order(context: &Context, file: &File) -> Result<(), Finding> {
    File::write(&file.text(&[], ""))?;
    let planned = insula_json(&["up", "--file", FILE, "--dry-run", "--json"])?;
    assert_equal("nodes after a dry run", &running()?.len(), &0)?;
    let began = Instant::now();
    let report = up()?;
    context.figure("up", began.elapsed().as_secs_f64(), "s")?;
    assert_equal("actions", &actions(&report), &actions(&planned))?;
    let started = started(running()?.into_keys())?;
    let nodes = report["nodes"].as_array().into_iter().flatten();
    let ready = |node: &Value| Some((text(&node["name"]), node["ready_ns"].as_u64()?));
    let ready: BTreeMap<String, u64> = nodes.filter_map(ready).collect();
    for (name, after) in NODES {
        for before in after {
            let start = started.get(name).copied();
            let earlier = started.get(*before).map(|time| time + ready[*before]);
            Finding::unless(earlier.is_some() && earlier <= start, || {
                format!("{name} was started at {start:?}, {before} was ready at {earlier:?}")
            })?;
        }
    }
    // Two that do not wait for each other start in parallel.
    let end = |name: &str| started[name] + ready[name];
    let both = started["db"] < end("queue") && started["queue"] < end("db");
    Finding::unless(both, || format!("not side by side: {started:?}, {ready:?}"))
}

/// If nothing has changed, all run on. A node without a supervisor is given another.
fn nothing_differs() -> Result<(), Finding> {
    let before = running()?;
    supervisor_process::kill("db")?;
    let report = up()?;
    supervisor_process::wait_for_one("db")?;
    let all_kept = actions(&report).values().all(|action| action == "keep");
    Finding::unless(all_kept && report["images"][0]["action"] == "keep", || {
        format!("not all was kept: {report}")
    })?;
    assert_equal("nodes", &running()?, &before)
}

/// A node with another command line is restarted, alone.
fn one_differs(file: &File) -> Result<(), Finding> {
    let mut before = running()?;
    File::write(&file.text(&[], "append = \"changed=1\"\n"))?;
    let report = up()?;
    let mut after = running()?;
    assert_equal(
        "its action",
        &actions(&report)["watch"].as_str(),
        &"restart",
    )?;
    let line = insula_json(&["inspect", "watch"])?[0]["command_line"].to_string();
    Finding::unless(line.contains("changed=1"), || {
        format!("not changed: {line}")
    })?;
    let (old, new) = (before.remove("watch"), after.remove("watch"));
    Finding::unless(new.is_some() && new != old, || {
        format!("it is still the same: {old:?}, {new:?}")
    })?;
    assert_equal("the others", &after, &before)
}

/// A node that the file no longer describes is removed, alone. A node of no file stays.
fn one_is_gone(file: &File) -> Result<(), Finding> {
    let mut before = running()?;
    File::write(&file.text(&["watch", "mail"], ""))?;
    up()?;
    before.remove("watch");
    before.remove("mail");
    assert_equal("the others", &running()?, &before)?;
    let unrelated = [
        "run", "--image", "small", "--name", "mail", "--memory", "128M",
    ];
    insula(&unrelated)?;
    File::write(&file.text(&["watch"], ""))?;
    let answer = try_insula(&["up", "--file", FILE])?;
    answer.refused(
        1,
        &[
            "already is a node 'mail'",
            "which was not created by this project",
        ],
    )?;
    insula(&["down", "--project", "elsewhere"])?;
    assert_equal("nodes", &running()?.len(), &(before.len() + 1))?;
    insula(&["rm", "--force", "mail"]).map(drop)
}

/// Ctrl-C keeps what runs and removes the rest; the next `up` continues from there.
fn interrupted(file: &File) -> Result<(), Finding> {
    let before = running()?;
    let text = file.text(&["watch", "mail"], "");
    let more = |name: &str, after: &str| {
        format!(
            "[nodes.{name}]\nimage = \"small\"\nmemory = \"128M\"\nafter = {after}\n\
             ready = {{ log = \"insula-node: ready\", timeout_s = 120 }}\n"
        )
    };
    File::write(&format!(
        "{text}{}{}",
        more("one", "[]"),
        more("two", "[\"one\"]")
    ))?;
    let mut child = command(&["up", "--file", FILE])
        .stdout(Stdio::piped())
        .spawn()?;
    let output = BufReader::new(
        child
            .stdout
            .take()
            .ok_or_else(|| Finding::new("no output"))?,
    );
    for line in output.lines() {
        if line?.starts_with("node one: started") {
            let pid = Pid::from_raw(i32::try_from(child.id())?);
            kill(pid, Signal::SIGINT)?;
        }
    }
    child.wait()?;
    let mut after = running()?;
    Finding::unless(after.remove("one").is_some(), || {
        "the started node was removed".into()
    })?;
    assert_equal("the others", &after, &before)?;
    let report = up()?;
    let done = actions(&report);
    assert_equal(
        "actions",
        &(done["one"].as_str(), done["two"].as_str()),
        &("keep", "start"),
    )?;
    assert_equal("nodes", &running()?.len(), &NODES.len())
}

/// Each ends before those that it started after; nothing is left.
fn goes_down(context: &Context) -> Result<(), Finding> {
    let began = Instant::now();
    let output = insula(&[&["down", "--file", FILE, "--images"][..], &STOP_TIMEOUT].concat())?;
    context.figure("down", began.elapsed().as_secs_f64(), "s")?;
    let position = |name: &str| {
        let line = format!("node {name}: powered off, removed");
        let found = output.lines().position(|one| one == line);
        found.ok_or_else(|| Finding::new(format!("{name} did not end: {output}")))
    };
    for (name, after) in [
        ("two", &["one"][..]),
        NODES[1],
        NODES[3],
        NODES[4],
        NODES[6],
    ] {
        for before in after {
            Finding::unless(position(name)? < position(before)?, || {
                format!("{before} ended before {name}: {output}")
            })?;
        }
    }
    Finding::unless(output.ends_with("image small: removed\n"), || {
        format!("the image is still there: {output}")
    })?;
    let again = try_insula(&["down", "--file", FILE])?;
    Finding::unless(again.status == Some(0), || format!("again: {again:?}"))
}
