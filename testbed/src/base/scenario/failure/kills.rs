//! `insula` itself is killed at any moment.

use std::process::Stdio;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::base::support::insula_command::{
    Answer, command, insula, insula_json, names, wait_for, with_cleanup,
};
use crate::base::support::nodes::test_node::{add_image, log, path};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "kills",
    proves: "after a SIGKILL of insula at any moment all is complete or removed, without a repair command",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_1],
    limit: Duration::from_secs(400),
    soak_limit: Some(Duration::from_secs(3500)),
    play,
};

/// Kills are drawn up to the command's usual duration times this factor: its speed varies.
const SPREAD: f64 = 1.2;

/// Node or image of the killed command.
const VICTIM: &str = "victim";

/// Killed command.
#[derive(Clone, Copy, Debug)]
enum Action {
    Run,
    Stop,
    Remove,
    Add,
}

const ACTIONS: [Action; 4] = [Action::Run, Action::Stop, Action::Remove, Action::Add];

fn play(context: &Context) -> Result<(), Finding> {
    let seed = Rng::new().u64(..);
    println!("seed: {seed}");
    let mut rng = Rng::with_seed(seed);
    with_cleanup(|| {
        add_image(context, "old", "6.1")?;
        let before = Resources::now()?;
        let add = Words::add(context)?;
        let usual = ACTIONS
            .iter()
            .map(|&action| measure(action, &add, &before))
            .collect::<Result<Vec<_>, _>>()?;
        let mut killed = 0;
        let kills = context.count(12, 200);
        for number in 0..kills {
            let which = number as usize % ACTIONS.len();
            let delay = usual[which].mul_f64(rng.f64() * SPREAD);
            let situation = format!("kill {number} of {:?} after {delay:?}", ACTIONS[which]);
            let in_time = kill(ACTIONS[which], &add, delay, &before)
                .map_err(|finding| finding.when(&situation))?;
            killed += u64::from(in_time);
        }
        context.figure("kills", kills as f64, "1")?;
        context.figure("kills.before_the_end", killed as f64, "1")?;
        Finding::unless(killed > 0, || "no command was killed before its end".into())
    })
}

/// Arguments of `insula image add`, some of which are only known at run time.
struct Words(Vec<String>);

impl Words {
    fn add(context: &Context) -> Result<Self, Finding> {
        let (kernel, initrd) = (path(&context.kernel("6.1")?), path(context.node_initrd()));
        let words = [
            "image", "add", VICTIM, "--kernel", &kernel, "--initrd", &initrd,
        ];
        Ok(Self(words.map(str::to_owned).to_vec()))
    }

    fn of(&self, action: Action) -> Vec<&str> {
        match action {
            Action::Run => RUN.to_vec(),
            Action::Stop => STOP.to_vec(),
            Action::Remove => vec!["rm", "--force", VICTIM],
            Action::Add => self.0.iter().map(String::as_str).collect(),
        }
    }
}

const RUN: [&str; 9] = [
    "run", "--image", "old", "--name", VICTIM, "--cpus", "2", "--memory", "256M",
];

/// A node that does not yet handle its power button is killed after this second.
const STOP: [&str; 4] = ["stop", "--time", "1", VICTIM];

/// Duration of a command that is not killed.
fn measure(action: Action, add: &Words, before: &Resources) -> Result<Duration, Finding> {
    prepare(action)?;
    let began = Instant::now();
    insula(&add.of(action))?;
    let usual = began.elapsed();
    println!("{action:?} takes {usual:?}");
    clean_up(before)?;
    Ok(usual)
}

/// A node must run to be stopped or removed.
fn prepare(action: Action) -> Result<(), Finding> {
    match action {
        Action::Stop | Action::Remove => insula(&RUN).map(drop),
        Action::Run | Action::Add => Ok(()),
    }
}

/// Starts a command and kills it. Returns whether it was killed before its end.
fn kill(action: Action, add: &Words, delay: Duration, before: &Resources) -> Result<bool, Finding> {
    prepare(action)?;
    let words = add.of(action);
    let mut child = command(&words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    std::thread::sleep(delay);
    child.kill()?;
    let answer = Answer::new(&words, &child.wait_with_output()?);
    let killed = answer.status.is_none();
    if !killed {
        answer.succeeded()?;
    }
    check_whole(action)?;
    clean_up(before)?;
    Ok(killed)
}

/// All that is listed is complete: a node runs or has ended, an image can be started.
fn check_whole(action: Action) -> Result<(), Finding> {
    let nodes = insula_json(&["ps", "--all", "--json"])?;
    for node in nodes.as_array().into_iter().flatten() {
        let whole = node["state"] == "running" || node["state"] == "stopped";
        Finding::unless(whole, || format!("an incomplete node is left: {node}"))?;
    }
    let is_listed = |list: &[&str]| Ok::<_, Finding>(names(list)?.iter().any(|one| one == VICTIM));
    match action {
        Action::Run if is_listed(&["ps", "--json"])? => comes_up(),
        Action::Add if is_listed(&["image", "ls", "--json"])? => {
            let words = ["run", "--name", VICTIM, "--image", VICTIM];
            insula(&words)?;
            comes_up()
        }
        _ => Ok(()),
    }
}

/// The node's kernel starts to log.
fn comes_up() -> Result<(), Finding> {
    wait_for("the node to log", || {
        Ok(log(VICTIM)?.contains("Linux version ").then_some(()))
    })
}

/// Removes all by the usual commands; then no resource is missing.
fn clean_up(before: &Resources) -> Result<(), Finding> {
    for name in names(&["ps", "--all", "--json"])? {
        insula(&["rm", "--force", &name])?;
    }
    for name in names(&["image", "ls", "--json"])? {
        if !before.images.contains(&name) {
            insula(&["image", "rm", &name])?;
        }
    }
    assert_unchanged(before)
}
