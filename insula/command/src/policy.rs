//! `insula policy`.

mod program;
pub(super) mod runner;

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use insula_base::error::Error;
use insula_policy::{Losses, Outcome, Place, Policy, read_trace, simulate};
use serde::Serialize;

use super::cli::{Policy as PolicyCommand, PolicyFiles, Simulate};
use super::{Context, Failure, compose, output};
use runner::Runner;

/// Time between two measurements.
const INTERVAL: Duration = Duration::from_secs(1);

pub(super) fn policy(context: &Context, command: &PolicyCommand) -> Result<(), Failure> {
    match command {
        PolicyCommand::Run { files, dry_run } => run(context, files, *dry_run),
        PolicyCommand::Record { files } => record(files),
        PolicyCommand::Simulate(options) => simulate_all(options),
    }
}

/// The policies that the options name.
fn policies(options: &PolicyFiles) -> Result<Vec<Policy>, Failure> {
    let projects = compose::read(&options.file, None)?;
    let mut found: Vec<_> = projects
        .into_iter()
        .flat_map(|project| project.policies)
        .collect();
    for name in &options.policies {
        if !found.iter().any(|policy| policy.name == *name) {
            let error = Error::new(format!("there is no policy '{name}' in the files"));
            return Err(error.untouched().into());
        }
    }
    found.retain(|policy| options.policies.is_empty() || options.policies.contains(&policy.name));
    match found.is_empty() {
        true => Err(Error::new("the files have no policy")
            .untouched()
            .hint("add one as [[policy]] to insula.toml")
            .into()),
        false => Ok(found),
    }
}

fn run(context: &Context, options: &PolicyFiles, dry_run: bool) -> Result<(), Failure> {
    let policies = policies(options)?;
    let driver = match dry_run {
        true => None,
        false => Some(context.driver()?),
    };
    let mut runners: Vec<_> = policies.iter().map(Runner::new).collect();
    each_second(|at_ms| {
        for runner in &mut runners {
            let Some(decided) = runner.step(at_ms, driver.as_ref()) else {
                continue;
            };
            match options.json {
                true => output::line(&serde_json::to_string(&decided.view())?)?,
                false => output::line(&decided.to_string())?,
            }
        }
        Ok(())
    })
}

fn record(options: &PolicyFiles) -> Result<(), Failure> {
    let policies = policies(options)?;
    let mut runners: Vec<_> = policies.iter().map(Runner::new).collect();
    each_second(|at_ms| {
        let samples = runners.iter_mut().filter_map(|runner| runner.sample(at_ms));
        let lines: Result<Vec<_>, _> = samples
            .map(|sample| serde_json::to_string(&sample))
            .collect();
        lines?.iter().try_for_each(|line| output::line(line))
    })
}

/// Calls `step` each second with the time since the first in ms, until that fails.
fn each_second(mut step: impl FnMut(u64) -> Result<(), Failure>) -> Result<(), Failure> {
    let began = Instant::now();
    let mut next = began;
    loop {
        step(began.elapsed().as_millis() as u64)?;
        next = (next + INTERVAL).max(Instant::now());
        sleep(next.saturating_duration_since(Instant::now()));
    }
}

fn simulate_all(options: &Simulate) -> Result<(), Failure> {
    let mut outcomes = Vec::new();
    for policy in policies(&options.files)? {
        let trace = read_trace(BufReader::new(open(&options.trace)?), policy.name.as_str());
        let trace = trace.map_err(|error| no_trace(&options.trace).because(error))?;
        let outcome = simulate(&policy, &trace, options.stopped_ms);
        outcomes.push((policy, outcome));
    }
    match options.files.json {
        true => output::json(&outcomes.iter().map(Simulated::new).collect::<Vec<_>>()),
        false => output::print(&outcomes.iter().map(as_text).collect::<String>()),
    }
}

fn open(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(|error| no_trace(path).because(error))
}

fn no_trace(path: &Path) -> Error {
    let what = format!("the trace '{}' cannot be read", path.display());
    Error::new(what)
        .untouched()
        .hint("`insula policy record` prints one")
}

/// The place's name for users.
fn place(policy: &Policy, place: Place) -> &str {
    match place {
        Place::Base => insula_node::BASE,
        Place::Node => policy.node.as_str(),
    }
}

fn as_text((policy, outcome): &(Policy, Outcome)) -> String {
    let mut text = String::new();
    for made in &outcome.moves {
        let at_s = made.at_ms as f64 / 1e3;
        let to = place(policy, made.to);
        text += &format!("{}: {at_s:.1} s: to '{to}': {}\n", policy.name, made.reason);
    }
    let Losses {
        policy_s,
        best_s,
        base_s,
        node_s,
    } = outcome.losses;
    text + &format!(
        "{}: {} moves; lost {policy_s:.1} s, at best {best_s:.1} s, always on the base {base_s:.1} s, \
         always on '{}' {node_s:.1} s\n",
        policy.name,
        outcome.moves.len(),
        policy.node
    )
}

/// What the simulation of a policy has shown.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Simulated {
    /// The policy's name.
    policy: String,
    /// Moves that it would have made.
    moves: Vec<SimulatedMove>,
    /// What was lost, in seconds.
    lost_s: LostSeconds,
}

/// A move that would have been made.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SimulatedMove {
    /// When, in ms since the trace's begin.
    at_ms: u64,
    /// Where to: `base`, or the node.
    to: String,
    /// Why.
    reason: String,
}

/// Seconds that were lost.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LostSeconds {
    /// By the policy.
    policy: f64,
    /// By the best that was possible.
    best: f64,
    /// If the program had always been on the base.
    base: f64,
    /// If it had always been on the node.
    node: f64,
}

impl Simulated {
    fn new((policy, outcome): &(Policy, Outcome)) -> Self {
        let moves = outcome.moves.iter().map(|made| SimulatedMove {
            at_ms: made.at_ms,
            to: place(policy, made.to).to_owned(),
            reason: made.reason.to_string(),
        });
        Self {
            policy: policy.name.to_string(),
            moves: moves.collect(),
            lost_s: LostSeconds {
                policy: outcome.losses.policy_s,
                best: outcome.losses.best_s,
                base: outcome.losses.base_s,
                node: outcome.losses.node_s,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_outcome_as_text_and_as_json() {
        let policy: Policy = serde_json::from_value(json!({
            "name": "shop", "pid_file": "/run/shop.pid", "node": "quiet",
            "when": ["pressure-cpu > 40"], "back": ["pressure-cpu < 10"],
        }))
        .unwrap();
        let line = |at_s: u64| {
            format!(
                "{{\"policy\":\"shop\",\"at_ms\":{},\"pressure-cpu\":50}}\n",
                at_s * 1000
            )
        };
        let text: String = (0..100).map(line).collect();
        let trace = read_trace(text.as_bytes(), "shop").unwrap();
        let outcome = (policy.clone(), simulate(&policy, &trace, 20.0));
        assert_eq!(
            as_text(&outcome),
            "shop: 10.0 s: to 'quiet': its conditions held for 10.0 of 10.0 s\n\
             shop: 1 moves; lost 10.4 s, at best 0.4 s, always on the base 99.0 s, always on 'quiet' \
             0.4 s\n"
        );
        let json = json!(Simulated::new(&outcome));
        assert_eq!(json["moves"][0]["to"], "quiet");
        assert_eq!(json["lost_s"]["base"], 99.0);
    }
}
