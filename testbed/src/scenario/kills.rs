//! `insula` itself is killed at any moment.

use std::process::Stdio;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::holdings::{Holdings, assert_unchanged};
use super::insula_command::{Answer, attended, command, insula, insula_json, names, wait_for};
use super::test_node::{add_image, log, path};
use super::{Context, Finding, Module, Scenario, Shape};
use crate::kernels::Flavour;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "kills",
    proves: "after a SIGKILL of insula at any moment all is whole or gone, with no repair command",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &Flavour::USUAL,
    limit: Duration::from_secs(400),
    soak_limit: Some(Duration::from_secs(3500)),
    play,
};

/// Kills may come later than the command usually ends, by this factor: it is not always as fast.
const SPREAD: f64 = 1.2;

/// The node or image that it happens to.
const VICTIM: &str = "victim";

/// What is killed.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Run,
    Stop,
    Remove,
    Add,
}

const DEEDS: [Deed; 4] = [Deed::Run, Deed::Stop, Deed::Remove, Deed::Add];

fn play(context: &Context) -> Result<(), Finding> {
    let seed = Rng::new().u64(..);
    println!("seed: {seed}");
    let mut rng = Rng::with_seed(seed);
    attended(|| {
        add_image(context, "old", "6.1")?;
        let before = Holdings::now()?;
        let add = Words::add(context)?;
        let usual = DEEDS
            .iter()
            .map(|&deed| measure(deed, &add, &before))
            .collect::<Result<Vec<_>, _>>()?;
        let mut struck = 0;
        let kills = context.count(12, 200);
        for number in 0..kills {
            let which = number as usize % DEEDS.len();
            let delay = usual[which].mul_f64(rng.f64() * SPREAD);
            let situation = format!("kill {number} of {:?} after {delay:?}", DEEDS[which]);
            let killed = kill(DEEDS[which], &add, delay, &before)
                .map_err(|finding| finding.when(&situation))?;
            struck += u64::from(killed);
        }
        context.figure("kills", kills as f64, "1")?;
        context.figure("kills.before_the_end", struck as f64, "1")?;
        Finding::unless(struck > 0, || {
            "no kill came before the command's end".into()
        })
    })
}

/// The words of `insula image add`, of which some are not known before.
struct Words(Vec<String>);

impl Words {
    fn add(context: &Context) -> Result<Self, Finding> {
        let (kernel, initrd) = (path(&context.kernel("6.1")?), path(context.node_initrd()));
        let words = [
            "image", "add", VICTIM, "--kernel", &kernel, "--initrd", &initrd,
        ];
        Ok(Self(words.map(str::to_owned).to_vec()))
    }

    fn of(&self, deed: Deed) -> Vec<&str> {
        match deed {
            Deed::Run => RUN.to_vec(),
            Deed::Stop => STOP.to_vec(),
            Deed::Remove => vec!["rm", "--force", VICTIM],
            Deed::Add => self.0.iter().map(String::as_str).collect(),
        }
    }
}

const RUN: [&str; 9] = [
    "run", "--image", "old", "--name", VICTIM, "--cpus", "2", "--memory", "256M",
];

/// A node that does not yet know of its power button is stopped after this second.
const STOP: [&str; 4] = ["stop", "--time", "1", VICTIM];

/// How long a deed takes when nobody disturbs it.
fn measure(deed: Deed, add: &Words, before: &Holdings) -> Result<Duration, Finding> {
    prepare(deed)?;
    let began = Instant::now();
    insula(&add.of(deed))?;
    let usual = began.elapsed();
    println!("{deed:?} takes {usual:?}");
    tidy(before)?;
    Ok(usual)
}

/// To be stopped or removed, a node must run.
fn prepare(deed: Deed) -> Result<(), Finding> {
    match deed {
        Deed::Stop | Deed::Remove => insula(&RUN).map(drop),
        Deed::Run | Deed::Add => Ok(()),
    }
}

/// Begins a deed and kills it. Answers whether it was struck before its end.
fn kill(deed: Deed, add: &Words, delay: Duration, before: &Holdings) -> Result<bool, Finding> {
    prepare(deed)?;
    let words = add.of(deed);
    let mut child = command(&words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    std::thread::sleep(delay);
    child.kill()?;
    let answer = Answer::new(&words, &child.wait_with_output()?);
    let struck = answer.status.is_none();
    if !struck {
        answer.succeeded()?;
    }
    check_whole(deed)?;
    tidy(before)?;
    Ok(struck)
}

/// What is listed is whole: a node runs or has ended, an image can be started.
fn check_whole(deed: Deed) -> Result<(), Finding> {
    let nodes = insula_json(&["ps", "--all", "--json"])?;
    for node in nodes.as_array().into_iter().flatten() {
        let whole = node["state"] == "running" || node["state"] == "stopped";
        Finding::unless(whole, || format!("half a node is left: {node}"))?;
    }
    let is_listed = |list: &[&str]| Ok::<_, Finding>(names(list)?.iter().any(|one| one == VICTIM));
    match deed {
        Deed::Run if is_listed(&["ps", "--json"])? => comes_up(),
        Deed::Add if is_listed(&["image", "ls", "--json"])? => {
            let words = ["run", "--name", VICTIM, "--image", VICTIM];
            insula(&words)?;
            comes_up()
        }
        _ => Ok(()),
    }
}

/// The node's kernel begins to log.
fn comes_up() -> Result<(), Finding> {
    wait_for("the node to log", || {
        Ok(log(VICTIM)?.contains("Linux version ").then_some(()))
    })
}

/// Removes what is there by the usual commands; then nothing is missing.
fn tidy(before: &Holdings) -> Result<(), Finding> {
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
