//! Eight nodes from one file.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::holdings::{Holdings, assert_unchanged};
use super::insula_command::{
    Answer, ask, assert_equal, attended, command, insula, insula_json, text, wait_for,
};
use super::test_node::path;
use super::{Context, Finding, Module, Scenario, Shape, supervisor_process};
use crate::kernels::Flavour;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "up_down",
    proves: "eight nodes of one file come and go in order; only what differs is touched",
    machine: Shape {
        cpus: 9,
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
/// Long enough for nodes that switch themselves off all at once.
const PATIENCE: [&str; 2] = ["--time", "60"];

/// The nodes, and those that each comes after.
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
    attended(|| {
        let before = Holdings::now()?;
        refusals(&file)?;
        comes_up_in_the_end(context)?;
        comes_up_in_order(context, &file)?;
        nothing_differs()?;
        one_differs(&file)?;
        one_is_gone(&file)?;
        broken_off(&file)?;
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

/// Brings the file up. Answers what was done to each node.
fn up() -> Result<Value, Finding> {
    let words = ["up", "--file", FILE, "--json"];
    insula_json(&[&words[..], &PATIENCE].concat())
}

/// The deed done to each node.
fn deeds(report: &Value) -> BTreeMap<String, String> {
    let nodes = report["nodes"].as_array().into_iter().flatten();
    nodes
        .map(|node| (text(&node["name"]), text(&node["deed"])))
        .collect()
}

/// A node's id and when it was started, of all that run.
fn running() -> Result<BTreeMap<String, (u64, u64)>, Finding> {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let listed = insula_json(&["ps", "--json"])?;
    let nodes = listed.as_array().into_iter().flatten();
    let stamp = |node: &Value| (number(&node["id"]), number(&node["started_ns"]));
    Ok(nodes
        .map(|node| (text(&node["name"]), stamp(node)))
        .collect())
}

/// Each is told with the line at fault, and touches nothing.
fn refusals(file: &File) -> Result<(), Finding> {
    let before = Holdings::now()?;
    // Each is added behind the last node; what is told of it, with the line from there.
    let cases = [
        ("colour = \"red\"", 1, "unknown field `colour`"),
        ("cpus = 9", 1, "cores asked for: 9"),
        ("cpu_list = \"0\"", 1, "core 0 cannot be taken"),
        ("cpu_list = \"3-\"", 1, "is no list of cores"),
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
            "circle",
        ),
        (
            "[nodes.more]\nimage = \"small\"\nmemory = \"64G\"",
            3,
            "memory are asked for",
        ),
        (
            "[nodes.more]\nimage = \"small\"\nmemory = \"16M\"",
            3,
            "ask for a larger",
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
        let place = format!("{FILE}:{}:", lines + line);
        let answer = ask(&["up", "--file", FILE])?;
        answer.refused(1, &[&place, message, "nothing was touched"])?;
        assert_unchanged(&before).map_err(|finding| finding.when(message))?;
    }
    Ok(())
}

/// A node that dies before it is ready is waited for as long as its policy brings it back, also
/// when its supervisor dies with it.
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
    let answer = ask(&["up", "--file", nodes])?;
    answer.refused(1, &["'late' has ended before it was ready (crashed)"])?;
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

/// Each is started when those that it comes after are ready, not before.
fn comes_up_in_order(context: &Context, file: &File) -> Result<(), Finding> {
    File::write(&file.text(&[], ""))?;
    let planned = insula_json(&["up", "--file", FILE, "--dry-run", "--json"])?;
    assert_equal("nodes after a dry run", &running()?.len(), &0)?;
    let began = Instant::now();
    let report = up()?;
    context.figure("up", began.elapsed().as_secs_f64(), "s")?;
    assert_equal("deeds", &deeds(&report), &deeds(&planned))?;
    let started = running()?;
    let nodes = report["nodes"].as_array().into_iter().flatten();
    let ready = |node: &Value| Some((text(&node["name"]), node["ready_ns"].as_u64()?));
    let ready: BTreeMap<String, u64> = nodes.filter_map(ready).collect();
    for (name, after) in NODES {
        for before in after {
            let start = started.get(name).map(|stamp| stamp.1);
            let earlier = started.get(*before).map(|stamp| stamp.1 + ready[*before]);
            Finding::unless(earlier.is_some() && earlier <= start, || {
                format!("{name} was started at {start:?}, {before} was ready at {earlier:?}")
            })?;
        }
    }
    // Two that do not wait for each other are on their way at one time.
    let end = |name: &str| started[name].1 + ready[name];
    let both = started["db"].1 < end("queue") && started["queue"].1 < end("db");
    Finding::unless(both, || format!("not side by side: {started:?}, {ready:?}"))
}

/// Brought up again, all run on. One that has lost its supervisor is given another.
fn nothing_differs() -> Result<(), Finding> {
    let before = running()?;
    supervisor_process::kill("db")?;
    let report = up()?;
    supervisor_process::wait_for_one("db")?;
    let all_kept = deeds(&report).values().all(|deed| deed == "keep");
    Finding::unless(all_kept && report["images"][0]["deed"] == "keep", || {
        format!("not all was kept: {report}")
    })?;
    assert_equal("nodes", &running()?, &before)
}

/// One with another command line is started anew, alone.
fn one_differs(file: &File) -> Result<(), Finding> {
    let mut before = running()?;
    File::write(&file.text(&[], "append = \"changed=1\"\n"))?;
    let report = up()?;
    let mut after = running()?;
    assert_equal("its deed", &deeds(&report)["watch"].as_str(), &"restart")?;
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

/// One that the file describes no more is removed, alone. A stranger stays.
fn one_is_gone(file: &File) -> Result<(), Finding> {
    let mut before = running()?;
    File::write(&file.text(&["watch", "mail"], ""))?;
    up()?;
    before.remove("watch");
    before.remove("mail");
    assert_equal("the others", &running()?, &before)?;
    let stranger = [
        "run", "--image", "small", "--name", "mail", "--memory", "128M",
    ];
    insula(&stranger)?;
    File::write(&file.text(&["watch"], ""))?;
    let answer = ask(&["up", "--file", FILE])?;
    answer.refused(
        1,
        &["a node 'mail' already", "which this project has not made"],
    )?;
    insula(&["down", "--project", "elsewhere"])?;
    assert_equal("nodes", &running()?.len(), &(before.len() + 1))?;
    insula(&["rm", "--force", "mail"]).map(drop)
}

/// Ctrl-C leaves what runs and gives back the rest; the next one goes on from there.
fn broken_off(file: &File) -> Result<(), Finding> {
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
        "the started one is gone".into()
    })?;
    assert_equal("the others", &after, &before)?;
    let report = up()?;
    let done = deeds(&report);
    assert_equal(
        "deeds",
        &(done["one"].as_str(), done["two"].as_str()),
        &("keep", "start"),
    )?;
    assert_equal("nodes", &running()?.len(), &NODES.len())
}

/// Each goes before those that it came after; nothing is left.
fn goes_down(context: &Context) -> Result<(), Finding> {
    let began = Instant::now();
    let told = insula(&[&["down", "--file", FILE, "--images"][..], &PATIENCE].concat())?;
    context.figure("down", began.elapsed().as_secs_f64(), "s")?;
    let place = |name: &str| {
        let line = format!("node {name}: switched itself off, removed");
        let found = told.lines().position(|one| one == line);
        found.ok_or_else(|| Finding::new(format!("{name} did not go: {told}")))
    };
    for (name, after) in [
        ("two", &["one"][..]),
        NODES[1],
        NODES[3],
        NODES[4],
        NODES[6],
    ] {
        for before in after {
            Finding::unless(place(name)? < place(before)?, || {
                format!("{before} went before {name}: {told}")
            })?;
        }
    }
    Finding::unless(told.ends_with("image small: removed\n"), || {
        format!("the image is still there: {told}")
    })?;
    let again = ask(&["down", "--file", FILE])?;
    Finding::unless(again.status == Some(0), || format!("again: {again:?}"))
}
